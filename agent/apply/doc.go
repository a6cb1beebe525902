// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apply applies the hub's sets in the member and repairs drift.
//
// A set is a group of objects that the hub sends. The agent stores each set as a Secret, applies the set's objects,
// and removes objects that are no longer in the set. The agent also works while the hub is unreachable: it reacts
// when namespaces are created or deleted, when objects drift, and when sets expire.
// docs/design/0015-how-the-agent-applies.md explains the reasons for this design.
package apply
