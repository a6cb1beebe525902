// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/agent/repair"
	"github.com/drover-dev/drover/internal/set"
)

// localSet is a set in the member. It exists from the first request from the hub until all objects of the set have been
// removed. Only one goroutine at a time handles a localSet. That goroutine owns the fields below label.
type localSet struct {
	id    string
	label string

	wanted   set.Set     // the set without its JSON, which only the store keeps
	content  set.Content // with the labels of the set
	kept     kept
	deleting bool
	claimed  map[ref]bool
	budgets  repair.Budgets[ref]
	quotas   *quotas // nil until the quotas have been read
	// published is when the state of a Baseline was last published.
	published time.Time
	// removed is when the first pass to remove the set ran.
	removed time.Time
}

// quotas holds the current quota of each namespace.
type quotas struct {
	held map[string]corev1.ResourceList
}

// want replaces the set's desired content. It adds the set's labels to all objects that Drover fully owns. The agent
// uses these labels to find objects that are no longer in the set.
func (s *localSet) want(wanted *set.Set, content set.Content) {
	s.wanted, s.content = set.Set{ID: wanted.ID, Digest: wanted.Digest, ExpiresAt: wanted.ExpiresAt}, content
	labels := set.Labels(wanted.ID)
	for _, o := range content.Objects {
		if o != nil && o.GetKind() != kindNamespace {
			set.AddLabels(o, labels)
		}
	}
}

// claim makes the set the owner of an object. If another set owns the object, claim returns the ID of that set and
// false.
func (l *leadership) claim(r ref, s *localSet) (owner string, ok bool) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	owner, taken := l.state.owners[r]
	if taken && owner != s.id {
		if l.state.waiting[r] == nil {
			l.state.waiting[r] = map[string]bool{}
		}
		l.state.waiting[r][s.id] = true
		return owner, false
	}
	l.state.owners[r] = s.id
	s.claimed[r] = true
	return s.id, true
}

// unclaim ends the set's ownership of objects that are not in the wanted map, and returns those objects.
func (l *leadership) unclaim(s *localSet, wanted map[ref]bool) (given []ref) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	for r := range s.claimed {
		if wanted[r] {
			continue
		}
		given = append(given, r)
		delete(s.claimed, r)
		delete(l.state.owners, r)
		delete(l.state.applied, r)
		s.budgets.Forget(r)
		for id := range l.state.waiting[r] {
			l.queue.Add(id)
		}
		delete(l.state.waiting, r)
	}
	return given
}
