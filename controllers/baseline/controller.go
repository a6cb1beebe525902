// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline reconciles Baseline.
//
// It reads the objects of a Baseline from their sources, and delivers them to members together with the binding of the
// Baseline's user.
package baseline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/status"
)

// Reconciler reconciles Baselines.
type Reconciler struct {
	// Client writes objects, and reads them from a cache with the indexes from package index. The cache does not contain
	// manifests.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Sources reads from a cache. The cache contains the metadata of the ConfigMaps and Secrets that are labeled for
	// Baselines.
	Sources    client.Reader
	Recorder   events.EventRecorder
	Deliveries delivery.Deliverer
	Values     *Values
	// Settled reports whether agents have had time to reconnect since this manager started. Until then, no rollout
	// continues.
	Settled func() bool
	Now     func() time.Time

	written status.Written[*v1.Baseline]
	known   memory
	turns   turns
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=baselines;roletemplates;clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=baselines/status,verbs=get;update;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=baselines/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=configmaps,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch;create;update
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile delivers one Baseline to its members, and writes the progress to its status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	key := delivery.Key{Kind: set.Baseline, Namespace: req.Namespace, Name: req.Name}
	b := &v1.Baseline{}
	if err := r.Client.Get(ctx, req.NamespacedName, b); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read %s: %w", key, err)
	} else if err != nil || !b.DeletionTimestamp.IsZero() {
		r.Deliveries.Replace(key, nil)
		r.written.Forget(req.NamespacedName)
		r.known.forget(req.NamespacedName)
		r.known.forget(completeKey(req.NamespacedName))
		r.turns.set(req.NamespacedName, nil)
		return ctrl.Result{}, r.Values.Use(ctx, req.NamespacedName, nil)
	}
	b = r.written.Newest(b)
	members, problem, err := index.MembersToKeep(ctx, r.Client, b.Namespace, b.Spec.ClusterTarget)
	if err != nil { // without the members, Replace would remove the objects everywhere
		return ctrl.Result{}, err
	}
	d := decision{id: set.ID(set.Baseline, b.Name), members: members, problem: problem}
	err = r.decide(ctx, b, &d)
	err = errors.Join(err, r.Values.Use(ctx, req.NamespacedName, d.uses()))
	r.Deliveries.Replace(key, d.sets()) // after an error, members keep the objects that they have
	if errors.Is(err, errOutdated) {
		return ctrl.Result{RequeueAfter: outdatedPause}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	unrecorded := r.record(ctx, b, d.content) // the status tells users about the members, even if there is no history
	result, err := r.writeStatus(ctx, b, d)
	if err = errors.Join(unrecorded, err); err != nil {
		return ctrl.Result{}, err
	}
	return result, nil
}

// decision is the result of reconciling a Baseline.
type decision struct {
	id      string
	members []types.NamespacedName
	// content is nil if the members keep their current objects.
	content *content
	// complete is the content of the last complete revision, for members without a revision. It is nil if no member needs
	// it.
	complete *content
	// rollout is the progress of the rollout. It is nil if all members get the content at once.
	rollout *progress
	// problem explains why members keep their objects, or why there are no members. It is nil if there is no problem.
	problem *index.Problem
}

// sets returns the sets that the delivery store must contain.
func (d decision) sets() map[types.NamespacedName]*set.Set {
	sets := make(map[types.NamespacedName]*set.Set, len(d.members))
	unchanged := delivery.Unchanged(d.id) // shared, because the store compares pointers first
	for _, member := range d.members {
		if sets[member] = unchanged; d.given(member.Name) != nil {
			sets[member] = d.given(member.Name).set
		}
	}
	return sets
}

// given returns the content that a member gets, or nil if the member keeps its current objects.
func (d decision) given(member string) *content {
	switch {
	case d.rollout == nil || d.content == nil:
		return d.content
	case d.rollout.give[member] == giveCurrent:
		return d.content
	case d.rollout.give[member] == giveComplete:
		return d.complete
	}
	return nil
}

// uses returns the members that need the values of their Clusters. See Values.Use.
func (d decision) uses() map[string]bool {
	uses := map[string]bool{}
	for _, member := range d.members {
		if given := d.given(member.Name); given == nil || given.refers {
			uses[member.Name] = given != nil
		}
	}
	return uses
}

// decide reads everything that a Baseline depends on. A mistake in the objects, the role template or the selector
// becomes the decision's problem. Members then keep the objects that they have, because the members may not work
// without these objects. The same applies if decide returns an error.
func (r *Reconciler) decide(ctx context.Context, b *v1.Baseline, d *decision) error {
	if d.problem != nil && d.problem.Reason == v1.ReasonInvalidSelector {
		return nil
	}
	content, problem, err := r.resolve(ctx, b)
	if err != nil {
		return err
	}
	if problem != nil {
		d.problem = problem
	}
	if d.content = content; content == nil {
		return nil
	}
	if b.Spec.Rollout == nil {
		r.turns.set(client.ObjectKeyFromObject(b), nil)
		return nil
	}
	if err = r.rollOut(ctx, b, d); err != nil {
		d.content = nil
	}
	return err
}

func (r *Reconciler) writeStatus(ctx context.Context, b *v1.Baseline, d decision) (ctrl.Result, error) {
	outcomes := d.rollout.replace(r.Deliveries.Outcomes(d.id, d.members))
	summary := delivery.Summarize(outcomes)
	if d.problem != nil {
		summary.Refuse(len(d.members), d.problem.Reason, d.problem.Message, d.problem.Stalled)
		if d.problem.Reason == v1.ReasonInvalidSelector { // it is not known which of the Clusters are selected
			summary.Clusters = *cmp.Or(b.Status.Clusters, &v1.ClusterCount{Summary: "0/0"})
		}
	} else if summary.Reason == v1.ReasonDelivering {
		describe(&summary, outcomes, d.content.set.Baseline.Revision)
	}
	d.rollout.explain(&summary)
	s := &b.Status
	change := summary.Change(b.Generation, delivery.Status{
		Observed: &s.ObservedGeneration, Conditions: &s.Conditions, Clusters: &s.Clusters,
	}, r.Now(), func(update *status.Update) {
		s.Failures = summary.Failures
		if d.content == nil {
			return
		}
		if now := d.content.set.Baseline.Revision; s.Revision != now && d.content.unrecorded() {
			update.Event(status.Event{Warning: true, Reason: v1.ReasonRevisionNotFound, Action: "Record", Message: fmt.Sprintf(
				"The hub does not keep revision %s, because other Secrets have the names %s to %s: rename these",
				now, slotName(b.Name, 0), slotName(b.Name, v1.MaxBaselineRevisions-1))})
		}
		s.Revision, s.Objects = d.content.set.Baseline.Revision, d.content.set.Baseline.Objects
		s.History = history(s.History, d.content.revision(b.Spec.RoleTemplateName, r.Now()), d.content.recorded)
		if d.rollout == nil && summary.Reason == v1.ReasonApplied || d.rollout != nil && d.rollout.complete {
			s.CompleteRevision = s.Revision
		}
		before := s.Waves
		if s.Waves = nil; d.rollout != nil {
			s.Waves = d.rollout.waves
		}
		for _, w := range rollout.RecordApprovals(s.Waves, before, b.Spec.Approvals, true, r.Now()) {
			update.Event(status.WaveApproved(w))
		}
	})
	if d.rollout != nil && !d.rollout.wait.Until.IsZero() { // the time may have passed since the decision
		change.Until = max(d.rollout.wait.Until.Sub(r.Now()), time.Millisecond)
	}
	return r.written.Write(ctx, status.Output{Client: r.Client, Recorder: r.Recorder, Now: r.Now}, b, change)
}

// describe adds to the summary the first member, if any, that has the revision but also has objects that are not
// healthy.
func describe(summary *delivery.Summary, outcomes []delivery.Outcome, revision string) {
	for _, o := range outcomes {
		if o.Stage != delivery.Pending || o.Reported == nil {
			continue
		}
		if said := o.Reported.Baseline; said != nil && said.Revision == revision {
			summary.Reason = v1.ReasonApplying
			summary.Message = fmt.Sprintf("%s clusters have it. In cluster %s, %d of %d objects are healthy",
				summary.Clusters.Summary, o.Cluster, said.Healthy, said.Objects)
			return
		}
	}
}

// errOutdated means that a cache does not contain the latest version of the Baseline or a source yet. The event for
// that version triggers a reconcile. Even without an event, the controller checks again after outdatedPause.
var errOutdated = errors.New("the cache is outdated")

const outdatedPause = time.Second
