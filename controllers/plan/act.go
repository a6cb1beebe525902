// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// fieldOwner is the manager's field manager on Clusters.
	fieldOwner = client.FieldOwner("drover")
	// conflictPause is how long a cache has to get what it lacked.
	conflictPause = 50 * time.Millisecond
)

// advance makes steps until there is a reason to wait. A member whose agent has not reported whether it takes part is asked first. Its place is
// reserved meanwhile, so that no more are asked than may begin.
func (r *Reconciler) advance(ctx context.Context, s *scope) error {
	var asked []int
	var failed error
	for {
		fleet, err := rollout.NewFleet(s.clusters, s.fleet, r.Now())
		if err != nil {
			s.fail(v1.ReasonInvalidSelector, err.Error()+": change the plan", true)
			break
		}
		decision := fleet.Next()
		if s.problem != nil || decision.Step == nil {
			break
		}
		i := slices.IndexFunc(s.clusters, func(c rollout.Cluster) bool { return c.Name == decision.Step.Cluster })
		if decision.Step.Verb == rollout.VerbBegin && (!s.members[i].state.Reported || r.unsettled(s)) {
			asked = append(asked, i)
			s.clusters[i].Claim, s.clusters[i].Unreported = decision.Step.Claim, false
			continue
		}
		if failed = r.write(ctx, s, i, decision.Step); failed != nil {
			break
		}
	}
	r.follow(s)
	for _, i := range asked {
		s.clusters[i].Claim, s.clusters[i].Unreported = readClaim(s.members[i].object, s.plan.Name), unreported(s.members[i].state)
	}
	var err error
	if s.observed, err = rollout.NewFleet(s.clusters, s.fleet, r.Now()); err == nil {
		s.decision = s.observed.Next()
	}
	if len(asked) > 0 {
		s.decision = rollout.FleetDecision{Wait: rollout.Wait{Reason: v1.ReasonApplying, Message: rollout.Clusters(len(asked)) + " asked whether to take part"}}
	}
	return failed
}

// unsettled reports whether members may not have come back yet since the manager's start. A wave is not skipped because of that.
func (r *Reconciler) unsettled(s *scope) bool {
	return r.Settled != nil && !r.Settled() && slices.ContainsFunc(s.members, func(m member) bool { return !m.state.Connected })
}

// follow follows the progress of members that have a claim or are about to, and of those that have reported.
func (r *Reconciler) follow(s *scope) {
	var names []types.NamespacedName
	for i := range s.clusters {
		if s.clusters[i].Claim != nil || s.clusters[i].Selected && s.members[i].state.Followed {
			names = append(names, client.ObjectKeyFromObject(s.members[i].object))
		}
	}
	r.Progress.Follow(client.ObjectKeyFromObject(s.plan), names)
}

// write makes a step: one write of one Cluster, which fails if the Cluster is no longer what the step was decided from.
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

// patch writes a Cluster as it was read, and remembers the result until the cache has it. A Cluster that is gone is not an error.
func (r *Reconciler) patch(ctx context.Context, read *v1.Cluster, change func(*v1.Cluster) error) (*v1.Cluster, error) {
	next := read.DeepCopy()
	if err := change(next); err != nil {
		return nil, err
	}
	err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(read, client.MergeFromWithOptimisticLock{}), fieldOwner)
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	next.ManagedFields = nil
	r.claims.note(next)
	return next, nil
}

// releaseAll takes the claims and labels of a plan that is gone off all Clusters. The label with which a person keeps a plan off stays.
func (r *Reconciler) releaseAll(ctx context.Context, plan types.NamespacedName) error {
	var list v1.ClusterList
	if err := r.Client.List(ctx, &list, client.InNamespace(plan.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list clusters of %s: %w", plan.Namespace, err)
	}
	key := v1.PlanLabel(plan.Name)
	for i := range list.Items {
		object := r.claims.newest(&list.Items[i])
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

// deliver hands over what each member is to have.
func (r *Reconciler) deliver(s *scope) {
	made := map[rollout.Delivery]*delivery.Set{}
	sets := map[types.NamespacedName]*delivery.Set{}
	for i := range s.clusters {
		what := s.delivery(i)
		if what == rollout.DeliverNothing {
			continue
		}
		if what == rollout.DeliverUnchanged {
			made[what] = delivery.Unchanged(setID(s.plan.Name))
		} else if made[what] == nil {
			set, err := s.set(what == rollout.DeliverPaused)
			if err != nil {
				s.fail(v1.ReasonDeliveryFailed, err.Error(), true)
				return // what was handed over before stays
			}
			made[what] = set
		}
		sets[client.ObjectKeyFromObject(s.members[i].object)] = made[what]
	}
	r.Deliveries.Replace(keyOf(client.ObjectKeyFromObject(s.plan)), sets)
}

// delivery returns what a member is given.
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

// set returns the set with the Plan for members and the copies of its Secrets.
func (s *scope) set(paused bool) (*delivery.Set, error) {
	plan := &v1.Plan{Spec: *s.spec.DeepCopy()}
	plan.SetGroupVersionKind(v1.GroupVersion.WithKind("Plan"))
	plan.Namespace, plan.Name = v1.PlansNamespace, s.plan.Name
	plan.Annotations = map[string]string{v1.AnnotationRevision: s.fleet.Revision}
	plan.Spec.Paused = plan.Spec.Paused || paused
	object, err := delivery.Object(plan)
	if err != nil {
		return nil, err
	}
	delete(object.Object, "status")
	content := expansion.Content{}
	content.Objects = append(content.Objects, object)
	for _, secret := range s.secrets {
		if object, err = delivery.Object(secret); err != nil {
			return nil, err
		}
		content.Objects = append(content.Objects, object)
	}
	return delivery.NewSet(setID(s.plan.Name), nil, content)
}

// claims remembers Clusters as the API server returned them for writes, until the cache has them. The zero value is ready.
type claims struct {
	mu       sync.Mutex // guards what follows
	clusters map[types.NamespacedName]*v1.Cluster
}

func (c *claims) note(object *v1.Cluster) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clusters == nil {
		c.clusters = map[types.NamespacedName]*v1.Cluster{}
	}
	name := client.ObjectKeyFromObject(object)
	if known := c.clusters[name]; known == nil || newer(object, known) {
		c.clusters[name] = object
	}
}

// newest returns a Cluster as it was written, or as the cache has it.
func (c *claims) newest(cached *v1.Cluster) *v1.Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := client.ObjectKeyFromObject(cached)
	known := c.clusters[name]
	if known != nil && known.UID == cached.UID && newer(known, cached) {
		return known
	}
	delete(c.clusters, name)
	return cached
}

// newer reports whether a is newer than b; false if the versions cannot be compared.
func newer(a, b *v1.Cluster) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order > 0
}
