// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import "k8s.io/apimachinery/pkg/types"

// listeners are the functions to call on a change. Registry.mu guards them.
type listeners struct {
	clusters, hosts heard
	tokens          []func(Peer)
	refused         []func(name types.NamespacedName, reason, message string)
}

// heard are the functions to call on changes of members of one kind.
type heard struct {
	changed []func(types.NamespacedName)
	opened  []func(types.NamespacedName)
}

// of returns those of a member's kind.
func (l *listeners) of(name types.NamespacedName) *heard {
	if isHost(name) {
		return &l.hosts
	}
	return &l.clusters
}

// OnChange calls f after each change of a Cluster on whatever replica: connected, lost, reported, refused. f must not block.
func (r *Registry) OnChange(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.clusters.changed = append(r.listeners.clusters.changed, f)
}

// OnHostChange calls f, with the name among members, after each change of a Host on whatever replica. f must not block.
func (r *Registry) OnHostChange(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.hosts.changed = append(r.listeners.hosts.changed, f)
}

// OnOpen calls f after a tunnel of a Cluster was opened here. f must not block.
func (r *Registry) OnOpen(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.clusters.opened = append(r.listeners.clusters.opened, f)
}

// OnHostOpen calls f, with the name among members, after a tunnel of a Host was opened here. f must not block.
func (r *Registry) OnHostOpen(f func(types.NamespacedName)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.hosts.opened = append(r.listeners.hosts.opened, f)
}

// OnToken calls f when a tunnel becomes known that was opened at another replica. f must not block.
func (r *Registry) OnToken(f func(Peer)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listeners.tokens = append(r.listeners.tokens, f)
}

// changed notifies feeds and listeners of a change that happened here.
func (r *Registry) changed(name types.NamespacedName) {
	r.mu.Lock()
	r.notifyFeedsLocked(name)
	r.mu.Unlock()
	r.notify(name)
}

// notify notifies listeners of a change on whatever replica.
func (r *Registry) notify(names ...types.NamespacedName) {
	r.mu.Lock()
	clusters, hosts := r.listeners.clusters.changed, r.listeners.hosts.changed
	for _, name := range names {
		r.followFarLocked(name)
		r.examineLocked(name)
		r.awaitLeaderLocked(name)
	}
	r.mu.Unlock()
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
