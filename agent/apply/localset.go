// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/set"
)

// localSet is a set in the member. It exists from when the hub first sends it until all of its objects have been
// removed. The queue gives it to one goroutine at a time, which owns the fields below label.
type localSet struct {
	id    string
	label string

	wanted   set.Set     // without its JSON, which is in the store
	content  set.Content // with the labels of the set
	kept     kept
	deleting bool
	claimed  map[ref]bool
	budgets  map[ref]*budget
	quotas   *quotas // nil until they are read
}

// quotas holds the quota of each namespace.
type quotas struct {
	held map[string]corev1.ResourceList
}

// want replaces the desired content. All objects that Drover owns entirely get the labels of the set. With these
// labels, the agent finds objects that are no longer in the set.
func (s *localSet) want(wanted *set.Set, content set.Content) {
	s.wanted, s.content = set.Set{ID: wanted.ID, Digest: wanted.Digest, ExpiresAt: wanted.ExpiresAt}, content
	labels := set.Labels(wanted.ID)
	for _, o := range content.Objects {
		if o != nil && o.GetKind() != kindNamespace {
			set.AddLabels(o, labels)
		}
	}
}
