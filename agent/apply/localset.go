// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/set"
)

// localSet is a set in the member. It exists from the time when the hub first sends the set until all of the set's
// objects have been removed. The queue hands a localSet to only one goroutine at a time. That goroutine owns the fields
// below label.
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

// want replaces the desired content. All objects that Drover owns entirely get the labels of the set. The agent uses
// these labels to find objects that are no longer in the set.
func (s *localSet) want(wanted *set.Set, content set.Content) {
	s.wanted, s.content = set.Set{ID: wanted.ID, Digest: wanted.Digest, ExpiresAt: wanted.ExpiresAt}, content
	labels := set.Labels(wanted.ID)
	for _, o := range content.Objects {
		if o != nil && o.GetKind() != kindNamespace {
			set.AddLabels(o, labels)
		}
	}
}
