// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply keeps sets applied in the member.
//
// The hub sends sets. The agent stores each set as a Secret, applies the set's objects, and removes objects that are no
// longer in the set. The agent also works without the hub: it reacts when namespaces are created or deleted, when an
// object drifts, and when a set expires. docs/design/0015-how-the-agent-applies.md explains the reasons.
package apply
