// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "k8s.io/apimachinery/pkg/types"

// Notices informs other replicas and listeners when a member changes.
type Notices struct {
	table *table
	// first contains functions that are called when a member changes. They are called before the listeners and with
	// table.mu held.
	first []func(name types.NamespacedName)
	// The following fields are guarded by table.mu.
	feeds     map[*Feed]struct{}
	listeners listeners
}

// listeners holds the functions to call when a member changes. It is guarded by table.mu.
type listeners struct {
	clusters, hosts heard
	tokens          []func(Peer)
}

// heard contains the functions to call for one kind of member: Clusters or Hosts.
type heard struct {
	changed []func(types.NamespacedName)
	opened  []func(types.NamespacedName)
}

// of returns the functions for Hosts if name belongs to a Host, and the functions for Clusters otherwise.
func (l *listeners) of(name types.NamespacedName) *heard {
	if isHost(name) {
		return &l.hosts
	}
	return &l.clusters
}

// OnChange registers f, which is called after each change to a Cluster, whichever replica observes it. A Cluster
// changes when it connects, is lost or is refused, and when its agent sends a report. f must not block.
func (n *Notices) OnChange(f func(types.NamespacedName)) {
	register(n, &n.listeners.clusters.changed, f)
}

// OnHostChange registers f, which is called after each change to a Host, whichever replica observes it. The argument is
// the Host's member name. f must not block.
func (n *Notices) OnHostChange(f func(types.NamespacedName)) {
	register(n, &n.listeners.hosts.changed, f)
}

// OnOpen registers f, which is called after a Cluster's tunnel has been opened to this replica. f must not block.
func (n *Notices) OnOpen(f func(types.NamespacedName)) {
	register(n, &n.listeners.clusters.opened, f)
}

// OnHostOpen registers f, which is called after a Host's tunnel has been opened to this replica. The argument is the
// Host's member name. f must not block.
func (n *Notices) OnHostOpen(f func(types.NamespacedName)) {
	register(n, &n.listeners.hosts.opened, f)
}

// OnToken registers f, which is called when another replica reports a previously unknown tunnel. f must not block.
func (n *Notices) OnToken(f func(Peer)) {
	register(n, &n.listeners.tokens, f)
}

func register[F any](n *Notices, list *[]F, f F) {
	n.table.mu.Lock()
	defer n.table.mu.Unlock()
	*list = append(*list, f)
}

// changed notifies feeds and listeners that a member has changed on this replica.
func (n *Notices) changed(name types.NamespacedName) {
	n.table.mu.Lock()
	n.notifyFeedsLocked(name)
	n.table.mu.Unlock()
	n.notify(name)
}

// notify notifies listeners that members have changed on any replica.
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
