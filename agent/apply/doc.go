// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply keeps sets true in the member.
//
// The hub hands sets over; the agent stores each as a Secret, applies what it holds, removes what it no longer holds, and goes on doing
// so without the hub: for namespaces that come and go, for objects that somebody changes, and until a set's time is over.
// docs/design/0004-sets-roles-projects.md says why it is as it is.
package apply
