// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
)

// rollOut decides which members get the content, and which get the last complete revision.
func (r *Reconciler) rollOut(ctx context.Context, b *v1.Baseline, d *decision) error {
	var clusters v1.ClusterList
	if err := r.Client.List(ctx, &clusters, client.InNamespace(b.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", b.Namespace, err)
	}
	labels := make(map[string]map[string]string, len(clusters.Items))
	for i := range clusters.Items {
		labels[clusters.Items[i].Name] = clusters.Items[i].Labels
	}
	name := client.ObjectKeyFromObject(b)
	s := stage{
		current: d.content.set.Baseline.Revision, complete: b.Status.CompleteRevision, pace: paceOf(&b.Spec.BaselinePace),
		turns: r.turns.of(name, d.content.set.Baseline.Revision), begins: r.Settled == nil || r.Settled(),
	}
	if b.Status.Revision == s.current {
		s.waves = b.Status.Waves
	}
	if s.complete != "" && s.complete != s.current {
		complete, err := r.completeContent(ctx, b)
		if err != nil {
			return err
		}
		if d.complete = complete; complete == nil { // members without a revision wait for their turn
			s.complete = ""
		}
	}
	var members []observed
	for _, o := range r.Deliveries.Outcomes(d.id, d.members) {
		members = append(members, observe(o, labels[o.Cluster], d.content.set))
	}
	slices.SortFunc(members, func(a, b observed) int { return cmp.Compare(a.name, b.name) })
	progress, err := decideRollout(members, s, r.Now())
	if err != nil {
		d.problem = &index.Problem{Reason: v1.ReasonInvalidSelector, Message: err.Error(), Stalled: true}
		d.content = nil // members keep their objects
		return nil
	}
	r.turns.set(name, &turn{revision: s.current, members: progress.turns})
	d.rollout = progress
	return nil
}

// turns remembers the members in which a revision has begun, until their agents report that revision.
type turns struct {
	mu  sync.Mutex // guards all
	all map[types.NamespacedName]*turn
}

type turn struct {
	revision string
	members  map[string]bool
}

func (t *turns) of(name types.NamespacedName, revision string) map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.all[name]; known != nil && known.revision == revision {
		return known.members
	}
	return nil
}

func (t *turns) set(name types.NamespacedName, now *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.all, name); now == nil || len(now.members) == 0 {
		return
	}
	if t.all == nil {
		t.all = map[types.NamespacedName]*turn{}
	}
	t.all[name] = now
}
