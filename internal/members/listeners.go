// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "k8s.io/apimachinery/pkg/types"

// Notices tells other replicas and listeners that a member has changed.
type Notices struct {
	table *table
	// first are the parts that look at a member that has changed, before listeners do. table.mu is held then.
	first []func(name types.NamespacedName)
	// What follows is guarded by table.mu.
	feeds     map[*Feed]struct{}
	listeners listeners
}

// listeners has the functions to call on a change. table.mu guards them.
type listeners struct {
	clusters, hosts heard
	tokens          []func(Peer)
}

// heard has the functions to call on changes of members of one kind.
type heard struct {
	changed []func(types.NamespacedName)
	opened  []func(types.NamespacedName)
}

// of returns the functions for a member's kind.
func (l *listeners) of(name types.NamespacedName) *heard {
	if isHost(name) {
		return &l.hosts
	}
	return &l.clusters
}

// OnChange calls f after each change of a Cluster on whatever replica: connected, lost, reported, refused. f must not
// block.
func (n *Notices) OnChange(f func(types.NamespacedName)) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	n.listeners.clusters.changed = append(n.listeners.clusters.changed, f)
}

// OnHostChange calls f, with the name among members, after each change of a Host on whatever replica. f must not block.
func (n *Notices) OnHostChange(f func(types.NamespacedName)) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	n.listeners.hosts.changed = append(n.listeners.hosts.changed, f)
}

// OnOpen calls f after a tunnel of a Cluster was opened here. f must not block.
func (n *Notices) OnOpen(f func(types.NamespacedName)) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	n.listeners.clusters.opened = append(n.listeners.clusters.opened, f)
}

// OnHostOpen calls f, with the name among members, after a tunnel of a Host was opened here. f must not block.
func (n *Notices) OnHostOpen(f func(types.NamespacedName)) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	n.listeners.hosts.opened = append(n.listeners.hosts.opened, f)
}

// OnToken calls f when a tunnel becomes known that was opened at another replica. f must not block.
func (n *Notices) OnToken(f func(Peer)) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	n.listeners.tokens = append(n.listeners.tokens, f)
}

// changed notifies feeds and listeners of a change that happened here.
func (n *Notices) changed(name types.NamespacedName) {
	n.table.mu.Lock()
	n.notifyFeedsLocked(name)
	n.table.mu.Unlock()
	n.notify(name)
}

// notify notifies listeners of a change on whatever replica.
func (n *Notices) notify(names ...types.NamespacedName) {
	n.table.mu.Lock()
	clusters, hosts := n.listeners.clusters.changed, n.listeners.hosts.changed
	for _, name := range names {
		for _, look := range n.first {
			look(name)
		}
	}
	n.table.mu.Unlock()
	for _, name := range names {
		listeners := clusters
		if isHost(name) {
			listeners = hosts
		}
		for _, f := range listeners {
			f(name)
		}
	}
}
