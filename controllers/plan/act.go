// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/internal/set"
)

const (
	// fieldOwner is the manager's field manager for Clusters.
	fieldOwner = owned.FieldOwner
	// conflictPause is how long the controller waits after a conflict, so that the cache can catch up.
	conflictPause = 50 * time.Millisecond
)

// advance performs steps until there is a reason to wait.
func (r *Reconciler) advance(ctx context.Context, s *scope) error {
	for {
		var err error
		if s.observed, err = rollout.NewFleet(s.clusters, s.fleet, r.Now()); err != nil {
			s.fail(v1.ReasonInvalidSelector, err.Error()+": change the plan", true)
		} else {
			s.decision = s.observed.Next()
		}
		if s.problem != nil || s.decision.Step == nil {
			return nil
		}
		if s.decision.Step.Verb == rollout.VerbBegin {
			if wait := r.awaitConfirmation(s, s.decision.Step.Cluster); wait.Reason != "" {
				s.decision = rollout.FleetDecision{Wait: wait}
				return nil
			}
		}
		i := slices.IndexFunc(s.clusters, func(c rollout.Cluster) bool { return c.Name == s.decision.Step.Cluster })
		if err := r.write(ctx, s, i, s.decision.Step); err != nil {
			return err
		}
	}
}

// unsettled reports whether some members might not have had time to reconnect since the manager started. A wave must
// not continue without such members.
func (r *Reconciler) unsettled(s *scope) bool {
	return r.Settled != nil && !r.Settled() && s.misses()
}

// misses reports whether any member of the plan is disconnected.
func (s *scope) misses() bool {
	return slices.ContainsFunc(s.members, func(m observedMember) bool { return !m.state.Connected })
}

// write performs one step by writing to one Cluster. It fails if the Cluster has changed since the decision.
func (r *Reconciler) write(ctx context.Context, s *scope, i int, step *rollout.ClusterStep) error {
	key := v1.PlanLabel(s.plan.Name)
	object, err := r.patch(ctx, s.members[i].object, func(c *v1.Cluster) error {
		if step.Label != "" {
			if c.Labels == nil {
				c.Labels = map[string]string{}
			}
			c.Labels[key] = step.Label
		}
		if step.Claim == nil {
			delete(c.Annotations, key)
			return nil
		}
		text, err := json.Marshal(step.Claim)
		if err != nil {
			return err
		}
		if c.Annotations == nil {
			c.Annotations = map[string]string{}
		}
		c.Annotations[key] = string(text)
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s cluster %s/%s: %w", step.Verb, s.plan.Namespace, step.Cluster, err)
	}
	s.members[i].object = object
	s.clusters[i].Labels, s.clusters[i].Claim = object.Labels, step.Claim
	return nil
}

// patch writes a Cluster and stores the result until the cache contains it. If the Cluster no longer exists, patch
// returns no error.
func (r *Reconciler) patch(ctx context.Context, read *v1.Cluster, change func(*v1.Cluster) error) (*v1.Cluster, error) {
	next := read.DeepCopy()
	if err := change(next); err != nil {
		return nil, err
	}
	err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	r.claims.Note(next)
	return next, nil
}

// releaseAll removes the claims and labels of a deleted plan from all Clusters. It keeps the label that a user has set
// to exclude a Cluster from the plan.
func (r *Reconciler) releaseAll(ctx context.Context, plan types.NamespacedName) error {
	var list v1.ClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(plan.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", plan.Namespace, err)
	}
	key := v1.PlanLabel(plan.Name)
	for i := range list.Items {
		object := r.claims.Newest(&list.Items[i])
		_, claimed := object.Annotations[key]
		value, labelled := object.Labels[key]
		labelled = labelled && value != v1.PlanDisabled
		if !claimed && !labelled || !object.DeletionTimestamp.IsZero() {
			continue
		}
		if _, err := r.patch(ctx, object, func(c *v1.Cluster) error {
			delete(c.Annotations, key)
			if labelled {
				delete(c.Labels, key)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("release cluster %s/%s: %w", plan.Namespace, object.Name, err)
		}
	}
	return nil
}

// deliver passes each member's set to the delivery store.
func (r *Reconciler) deliver(s *scope) {
	type variant struct {
		what    rollout.Delivery
		checks  string // that are overridden
		ungated bool   // whether the member's Plans have no gates
	}
	made := map[variant]*set.Set{}
	sets := map[types.NamespacedName]*set.Set{}
	for i := range s.clusters {
		what := s.delivery(i)
		if what == rollout.DeliverNothing {
			continue
		}
		v := variant{what, s.overriddenChecks(s.clusters[i].Name), s.members[i].state.Unchecked}
		if what == rollout.DeliverUnchanged {
			made[v] = delivery.Unchanged(set.ID(set.Plan, s.plan.Name))
		} else if made[v] == nil {
			made[v] = s.made(what == rollout.DeliverPaused, v.ungated, v.checks)
		}
		sets[client.ObjectKeyFromObject(s.members[i].object)] = made[v]
	}
	r.Deliveries.Replace(keyOf(client.ObjectKeyFromObject(s.plan)), sets)
}

// delivery returns the set to deliver to a member.
func (s *scope) delivery(i int) rollout.Delivery {
	switch {
	case s.clusters[i].Claim == nil:
		return rollout.DeliverNothing
	case (s.problem != nil || s.observed == nil) && s.clusters[i].Unreported:
		return rollout.DeliverUnchanged
	case s.problem != nil || s.observed == nil:
		return rollout.DeliverPaused
	}
	return s.observed.Deliver(&s.clusters[i])
}

// made returns the set of a plan. If the set cannot be built, made returns a placeholder that makes members keep their
// current set. Each plan must declare a set for each of its members, because the store does not remove unwanted objects
// from members until all owners have declared their sets.
func (s *scope) made(paused, ungated bool, overridden string) *set.Set {
	made, err := s.set(paused, ungated, overridden)
	if err != nil {
		s.fail(v1.ReasonDeliveryFailed, err.Error(), true)
		return delivery.Unchanged(set.ID(set.Plan, s.plan.Name))
	}
	return made
}

// set returns the set that contains the Plan for members, together with copies of the Plan's Secrets. The Plan for
// members whose agents do not know gates has none, because they would refuse it.
func (s *scope) set(paused, ungated bool, overridden string) (*set.Set, error) {
	plan := &v1.Plan{Spec: *s.spec.DeepCopy()}
	plan.SetGroupVersionKind(v1.GroupVersion.WithKind("Plan"))
	plan.Namespace, plan.Name = v1.PlansNamespace, s.plan.Name
	plan.Annotations = map[string]string{v1.AnnotationRevision: s.fleet.Revision}
	if overridden != "" {
		plan.Annotations[v1.AnnotationOverrides] = overridden
	}
	plan.Spec.Paused = plan.Spec.Paused || paused
	if ungated {
		plan.Spec.Gates = nil
	}
	object, err := set.Object(plan)
	if err != nil {
		return nil, err
	}
	delete(object.Object, "status")
	content := set.Content{}
	content.Objects = append(content.Objects, object)
	for _, secret := range s.secrets {
		if object, err = set.Object(secret); err != nil {
			return nil, err
		}
		content.Objects = append(content.Objects, object)
	}
	return set.New(set.ID(set.Plan, s.plan.Name), nil, content)
}
