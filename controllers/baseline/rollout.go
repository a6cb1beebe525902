// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/rollout"
)

// rollOut decides which members get the content, and which get the last complete revision.
func (r *Reconciler) rollOut(ctx context.Context, b *v1.Baseline, d *decision) error {
	var list v1.ClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(b.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", b.Namespace, err)
	}
	clusters := make(map[string]*v1.Cluster, len(list.Items))
	for i := range list.Items {
		clusters[list.Items[i].Name] = &list.Items[i]
	}
	name, now := client.ObjectKeyFromObject(b), r.Now()
	s := stage{
		current: d.content.set.Baseline.Revision, complete: b.Status.CompleteRevision,
		pace:     rollout.PaceOfBaseline(&b.Spec.BaselinePace),
		patience: patience(b), begins: r.Settled == nil || r.Settled(),
		name: b.Name, approvals: b.Spec.Approvals,
	}
	// Without a revision, no approval counts.
	s.toApprove, _ = rollout.BaselineApprovalRevision(b.UID, d.content.set.Digest, &b.Spec)
	if last := r.turns.of(name, s.current); last != nil { // the write of the status may be delayed
		s.turns, s.busy, s.waves = last.members, last.busy, last.waves
	} else if b.Status.Revision == s.current {
		s.waves = b.Status.Waves
	}
	var members []observed
	for _, o := range r.Deliveries.Outcomes(d.id, d.members) {
		if cluster := clusters[o.Cluster]; cluster != nil {
			members = append(members, observe(o, cluster, d.content.set, now))
		}
	}
	if s.complete != s.current && slices.ContainsFunc(members, s.lacks) {
		var err error
		if d.complete, err = r.completeContent(ctx, b); err != nil {
			return err
		}
		if d.complete == nil { // members without a revision wait for their turn
			s.complete = ""
		}
	}
	progress, err := decideRollout(members, s, now)
	if err != nil {
		d.problem = &index.Problem{Reason: v1.ReasonInvalidSelector, Message: err.Error(), Stalled: true}
		d.content = nil // members keep their objects
		return nil
	}
	r.turns.set(name, &turn{s.current, progress.turns, progress.busy, progress.waves})
	d.rollout = progress
	return nil
}

// patience returns how long a member may apply a revision. The agent counts healthTimeout from the time when it has
// applied an object.
func patience(b *v1.Baseline) time.Duration {
	limit := cmp.Or(b.Spec.HealthTimeout, &metav1.Duration{Duration: 5 * time.Minute}) // the default of the API
	return limit.Duration + rollout.LostTime
}

// turns remembers the last decision about each Baseline.
type turns struct {
	mu  sync.Mutex // guards all
	all map[types.NamespacedName]*turn
}

// turn contains the results of a decision that the next one depends on. See stage.
type turn struct {
	revision string
	members  map[string]bool
	busy     map[string]time.Time
	waves    []v1.WaveStatus
}

// of returns the last decision about a revision, or nil if there is none.
func (t *turns) of(name types.NamespacedName, revision string) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.all[name]; known != nil && known.revision == revision {
		return known
	}
	return nil
}

// set replaces the last decision. It forgets it if now is nil.
func (t *turns) set(name types.NamespacedName, now *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if delete(t.all, name); now == nil {
		return
	}
	if t.all == nil {
		t.all = map[types.NamespacedName]*turn{}
	}
	t.all[name] = now
}
