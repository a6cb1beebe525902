// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/binding"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/controllers/project"
	"github.com/drover-dev/drover/controllers/role"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/secrets"
	"github.com/drover-dev/drover/internal/tenancy"
)

// newStore makes the delivery store, which hears of connections.
func newStore(mgr ctrl.Manager, o Options) *delivery.Store {
	deliveries := delivery.New(delivery.Options{
		Members: o.Members, Leaving: leaving(mgr.GetClient()), ReadOnly: readOnly(mgr.GetClient()), Observer: o.Deliveries, Log: mgr.GetLogger().WithName("delivery"),
	})
	o.Members.OnChange(deliveries.Changed)
	return deliveries
}

// guarded returns the outcome of the guards in a member.
func guarded(deliveries *delivery.Store) func(types.NamespacedName) delivery.Outcome {
	return func(member types.NamespacedName) delivery.Outcome {
		return deliveries.Outcomes(tenancy.GuardsSet, []types.NamespacedName{member})[0]
	}
}

// onGuards calls back when the outcome of a member's guards changes.
func onGuards(deliveries *delivery.Store) func(func(types.NamespacedName)) {
	return func(wake func(types.NamespacedName)) {
		deliveries.OnResult(project.KindGuards, func(k delivery.Key) { wake(types.NamespacedName{Namespace: k.Namespace, Name: k.Name}) })
	}
}

// setUpDelivery adds the delivery store and the controllers that hand over to it.
func setUpDelivery(mgr ctrl.Manager, o Options, deliveries *delivery.Store) error {
	labelled, err := labels.NewRequirement(v1.LabelProject, selection.Exists, nil)
	if err != nil {
		return err
	}
	labelledOnes, err := labelledSecrets(mgr, *labelled)
	if err != nil {
		return err
	}
	guards, err := project.NewGuards(mgr.GetClient(), deliveries)
	if err != nil {
		return err
	}
	bindings := binding.Options{Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("drover-binding"), Deliveries: deliveries, Now: time.Now}
	roles := &role.Reconciler{Client: mgr.GetClient(), Recorder: mgr.GetEventRecorder("drover-role"), Deliveries: deliveries, Now: time.Now}
	projects := &project.Reconciler{
		Client: mgr.GetClient(), Secrets: &secrets.Reader{Reader: labelledOnes, Live: mgr.GetAPIReader()}, Recorder: mgr.GetEventRecorder("drover-project"), Deliveries: deliveries, Now: time.Now,
	}
	for _, register := range []func() error{
		func() error { return mgr.Add(labelledOnes) },
		func() error { return mgr.Add(counter{Store: deliveries, hub: mgr.GetClient()}) },
		func() error { return guards.Register(mgr) },
		func() error { return roles.Register(mgr) },
		func() error { return binding.NewCluster(bindings).Register(mgr) },
		func() error { return binding.NewProject(bindings).Register(mgr) },
		func() error { return projects.Register(mgr, labelledOnes) },
		func() error { return setUpPlans(mgr, o, deliveries) },
	} {
		if err := register(); err != nil {
			return err
		}
	}
	return nil
}

// leaving reports whether a Cluster is being deleted or gone. It reads the cache that the controllers read, so that both see the same.
func leaving(hub client.Reader) func(context.Context, types.NamespacedName) bool {
	return func(ctx context.Context, name types.NamespacedName) bool {
		cluster := &v1.Cluster{}
		err := hub.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy)
		return apierrors.IsNotFound(err) || err == nil && !cluster.DeletionTimestamp.IsZero()
	}
}

// readOnly reports whether the spec of a Cluster says ReadOnly, from the same cache.
func readOnly(hub client.Reader) func(context.Context, types.NamespacedName) (bool, error) {
	return func(ctx context.Context, name types.NamespacedName) (bool, error) {
		cluster := &v1.Cluster{}
		err := hub.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy)
		return cluster.Spec.Agent.Profile == v1.ProfileReadOnly, client.IgnoreNotFound(err)
	}
}

// labelledSecrets is a cache of the Secrets with a label, without their content. The manager's own has those that Drover made, and one cache takes one selector.
func labelledSecrets(mgr ctrl.Manager, labelled labels.Requirement) (cache.Cache, error) {
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.NewSelector().Add(labelled), Transform: secrets.Outline}},
	})
}

// counter runs the delivery store. When its manager begins to lead, it counts the objects on the hub: no set is removed as unwanted before all
// of them have been looked at.
type counter struct {
	*delivery.Store
	hub client.Reader
}

// recount is how often objects that were deleted before they were looked at are taken out of the count.
const recount = 5 * time.Second

// Start sends sets until ctx ends.
func (c counter) Start(ctx context.Context) error {
	if err := c.count(ctx); err != nil {
		return err
	}
	var counting sync.WaitGroup
	defer counting.Wait()
	counting.Go(func() {
		tick := time.NewTicker(recount)
		defer tick.Stop()
		for !c.Complete() {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if err := c.count(ctx); err != nil {
					c.Log.Error(err, "sets that no object wants are not removed yet")
				}
			}
		}
	})
	return c.Store.Start(ctx)
}

func (c counter) count(ctx context.Context) error {
	keys, err := c.keys(ctx)
	if err != nil {
		return err
	}
	c.Expect(keys)
	return nil
}

// keys returns those of all objects that have sets.
func (c counter) keys(ctx context.Context) ([]delivery.Key, error) {
	var keys []delivery.Key
	for _, list := range []struct {
		objects client.ObjectList
		kinds   []string
	}{
		{&v1.ClusterList{}, []string{project.KindGuards}},
		{&v1.RoleTemplateList{}, []string{role.Kind}},
		{&v1.ClusterRoleTemplateBindingList{}, []string{binding.KindCluster}},
		{&v1.ProjectRoleTemplateBindingList{}, []string{binding.KindProject}},
		{&v1.ProjectList{}, []string{project.Kind, project.KindSecrets}},
		{&v1.PlanList{}, []string{plan.Kind}},
	} {
		names, err := listNames(ctx, c.hub, list.objects)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			for _, kind := range list.kinds {
				keys = append(keys, delivery.Key{Kind: kind, Namespace: name.Namespace, Name: name.Name})
			}
		}
	}
	return keys, nil
}

func listNames(ctx context.Context, reader client.Reader, list client.ObjectList) ([]types.NamespacedName, error) {
	if err := reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list what is to be delivered: %w", err)
	}
	var names []types.NamespacedName
	err := meta.EachListItem(list, func(o runtime.Object) error {
		names = append(names, client.ObjectKeyFromObject(o.(client.Object)))
		return nil
	})
	return names, err
}
