// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply keeps sets true in the member.
//
// The hub sends sets. The agent stores each set as a Secret, applies its objects and removes objects that are no longer
// in it. It goes on without the hub: when namespaces come and go, when an object drifts, and until a set expires.
// docs/design/0015-how-the-agent-applies.md gives the reasons.
package apply
