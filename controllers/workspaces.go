// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/baseline"
	"github.com/drover-dev/drover/controllers/binding"
	"github.com/drover-dev/drover/controllers/direct"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/controllers/project"
	"github.com/drover-dev/drover/controllers/role"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/wiring"
)

// workspaces holds the controllers that deliver objects to members through the delivery store.
type workspaces struct {
	shared
	deliveries *delivery.Store
	guards     *project.Guards
	progress   *plan.Progress
	poller     *release.Poller
	values     *baseline.Values
	// caches of the Secrets that users have labeled for projects and plans
	projectSecrets, planSecrets cache.Cache
	// cache of the metadata of the ConfigMaps and Secrets that users have labeled for Baselines
	baselineSources cache.Cache
}

// newWorkspaces creates the delivery store and the state that plans wait for.
func newWorkspaces(s shared) (*workspaces, error) {
	w := &workspaces{shared: s}
	var err error
	if w.projectSecrets, err = labelledSecrets(s.mgr, v1.LabelProject, selection.Exists); err != nil {
		return nil, err
	}
	if w.planSecrets, err = labelledSecrets(s.mgr, v1.LabelPlansUse, selection.Equals, "true"); err != nil {
		return nil, err
	}
	if w.baselineSources, err = labelledSources(s.mgr); err != nil {
		return nil, err
	}
	w.deliveries = delivery.New(delivery.Options{
		State: s.Members.State, Leading: s.Members.Leading, Leaving: leaving(s.client), ReadOnly: readOnly(s.client),
		Restore:  s.Checkpoints.Policy(s.client, kinds.Rules()),
		Observer: s.Deliveries, Log: s.mgr.GetLogger().WithName("delivery"),
	})
	s.Members.OnChange(w.deliveries.Changed)
	s.Members.FollowSets(w.deliveries)
	w.progress = plan.NewProgress(s.Members.State)
	s.Members.OnChange(w.progress.Changed)
	s.Members.FollowPlans(w.progress)
	reach := release.Public
	if s.Config.Channels.Private {
		reach = release.Private
	}
	w.poller = release.NewPoller(release.New(reach).Latest, time.Now)
	w.values = &baseline.Values{Clusters: s.client, Deliveries: w.deliveries}
	w.guards, err = project.NewGuards(s.client, w.deliveries)
	return w, err
}

// runnables returns the runnables that run in addition to the controllers.
func (w *workspaces) runnables() []manager.Runnable {
	return []manager.Runnable{
		w.projectSecrets, w.planSecrets, w.baselineSources, counter{Store: w.deliveries, hub: w.client}, w.progress, w.poller,
		manager.RunnableFunc(w.Members.Lead),
		role.BuiltIn{
			Live: w.mgr.GetAPIReader(), Writer: w.client, Log: w.mgr.GetLogger().WithName("built-in-roles"),
			Retry: 10 * time.Second,
		},
	}
}

// controllers lists the controllers. Changes to members are collected for a short time. An object is then reconciled
// only once for many results, and many objects are sent before the first status is written.
//
// Each controller's kind is watched without a predicate. If a status was computed from an outdated cache, the event for
// the status write therefore triggers a correction.
func (w *workspaces) controllers() []wiring.Controller {
	return append([]wiring.Controller{
		{Name: set.Guards, Reconciler: w.guards, Triggers: []wiring.Trigger{w.onAffecting(&v1.Cluster{}, index.Self)}},
		{Name: set.Values, Reconciler: w.values, Triggers: []wiring.Trigger{w.onAffecting(&v1.Cluster{}, index.Self)}},
		w.direct(), w.roles(), w.projects(), w.plans(), w.baselines(),
	}, w.bindings()...)
}

// direct returns the controller for the data that agents need to verify users' tokens. If a User, an AuthProvider, a
// session or the keys change, the controller reconciles all Clusters with direct access.
func (w *workspaces) direct() wiring.Controller {
	reconciler := &direct.Reconciler{Client: w.client, Deliveries: w.deliveries, Issuer: w.Issuer, Now: time.Now}
	triggers := []wiring.Trigger{w.onAffecting(&v1.Cluster{}, index.Self)}
	if w.Issuer != nil {
		all := reconciler.Handler(50 * time.Millisecond)
		decides := predicate.NewPredicateFuncs(w.Issuer.Decides)
		respecified := builder.WithPredicates(predicate.GenerationChangedPredicate{})
		triggers = append(triggers,
			wiring.OnOtherChange(&corev1.Secret{}, all,
				builder.WithPredicates(decides, predicate.ResourceVersionChangedPredicate{})),
			wiring.OnOtherChange(&v1.User{}, all, respecified),
			wiring.OnOtherChange(&v1.AuthProvider{}, all, respecified),
		)
	}
	return wiring.Controller{Name: set.Direct, Reconciler: reconciler, Workers: 4, Triggers: triggers}
}

func (w *workspaces) roles() wiring.Controller {
	return wiring.Controller{
		Name: set.Role, Workers: 4,
		Reconciler: &role.Reconciler{Output: w.output("drover-role"), Deliveries: w.deliveries},
		Triggers: []wiring.Trigger{
			wiring.OnChange(&v1.RoleTemplate{}), w.onAffecting(&v1.RoleTemplate{}, index.RoleToRoles),
			w.onAffecting(&v1.ClusterRoleTemplateBinding{}, index.BindingToRoles),
			w.onAffecting(&v1.ProjectRoleTemplateBinding{}, index.BindingToRoles),
			w.onAffecting(&v1.Baseline{}, index.BindingToRoles),
			w.onAffecting(&v1.Project{}, index.ProjectToRoles), w.onAffecting(&v1.Cluster{}, index.ClusterToRoles),
			onOutcome(w.deliveries, 50*time.Millisecond, set.Role),
		},
	}
}

func (w *workspaces) bindings() []wiring.Controller {
	options := binding.Options{Output: w.output("drover-binding"), Deliveries: w.deliveries}
	return []wiring.Controller{
		{
			Name: set.ClusterBinding, Reconciler: binding.NewCluster(options), Workers: 8,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.ClusterRoleTemplateBinding{}),
				wiring.OnOwnedChange(&rbacv1.Role{}), wiring.OnOwnedChange(&rbacv1.RoleBinding{}),
				w.onAffecting(&v1.Cluster{}, index.ClusterTo[*v1.ClusterRoleTemplateBinding]),
				w.onAffecting(&v1.RoleTemplate{}, index.RoleTo[*v1.ClusterRoleTemplateBinding]),
				onOutcome(w.deliveries, 100*time.Millisecond, set.ClusterBinding),
			},
		},
		{
			Name: set.ProjectBinding, Reconciler: binding.NewProject(options), Workers: 8,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.ProjectRoleTemplateBinding{}),
				wiring.OnOwnedChange(&rbacv1.Role{}), wiring.OnOwnedChange(&rbacv1.RoleBinding{}),
				w.onAffecting(&v1.Cluster{}, index.ClusterToProjectBindings),
				w.onAffecting(&v1.Project{}, index.ProjectToProjectBindings),
				w.onAffecting(&v1.RoleTemplate{}, index.RoleTo[*v1.ProjectRoleTemplateBinding]),
				onOutcome(w.deliveries, 100*time.Millisecond, set.ProjectBinding),
			},
		},
	}
}

func (w *workspaces) projects() wiring.Controller {
	return wiring.Controller{
		Name: set.Project, Workers: 4, Reconciler: &project.Reconciler{
			Output: w.output("drover-project"), Deliveries: w.deliveries,
			Secrets: &index.SecretReader{Reader: w.projectSecrets, Live: w.live},
		},
		Triggers: []wiring.Trigger{
			wiring.OnChange(&v1.Project{}), w.onAffecting(&v1.Project{}, index.ProjectToConflicting),
			w.onAffecting(&v1.Cluster{}, index.ClusterTo[*v1.Project]), w.onSecret(w.projectSecrets, index.SecretToProjects),
			onOutcome(w.deliveries, 20*time.Millisecond, set.Project, set.Secrets),
			wiring.LookUpOnCall(ownersOf(w.deliveries, set.Guards), 20*time.Millisecond, w.projectsOfMember),
		},
	}
}

func (w *workspaces) plans() wiring.Controller {
	reconciler := &plan.Reconciler{
		Output: w.output("drover-plan"), Deliveries: w.deliveries,
		Secrets: &index.SecretReader{Reader: w.planSecrets, Live: w.live},
		State:   w.progress.State, Channel: w.poller.Result,
		Settled: w.settled(since(w.Started)), Returned: w.settled(firstConnected(w.Members.States, w.Members.Notices)),
	}
	if w.Checkpoints != nil {
		reconciler.Unconfirmed = w.deliveries.Unconfirmed
	}
	return wiring.Controller{
		Name: set.Plan, Reconciler: reconciler, Workers: 4,
		Triggers: []wiring.Trigger{
			wiring.OnChange(&v1.Plan{}), w.onAffecting(&v1.Cluster{}, index.ClusterToPlans),
			w.onSecret(w.planSecrets, index.SecretToPlans), onOutcome(w.deliveries, 20*time.Millisecond, set.Plan),
			wiring.OnCall(w.progress.OnPlan, 20*time.Millisecond),
			wiring.LookUpOnCall(w.progress.OnMember, 20*time.Millisecond, w.plansOfMember),
			wiring.LookUpOnCall(w.poller.OnPolled, 20*time.Millisecond, w.plansOfChannel),
			wiring.LookUpOnCall(ownersOf(w.deliveries, set.Guards), 20*time.Millisecond, w.plansOfMember),
		},
	}
}

// labelledSecrets returns a cache of the Secrets with a given label. The cache does not contain the Secrets' content. A
// separate cache is needed because a cache accepts only one selector. The manager's own cache selects the Secrets that
// Drover created.
func labelledSecrets(
	mgr ctrl.Manager, label string, operator selection.Operator, values ...string,
) (cache.Cache, error) {
	labelled, err := labels.NewRequirement(label, operator, values)
	if err != nil {
		return nil, err
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Secret{}: {Label: labels.NewSelector().Add(*labelled), Transform: index.SecretOutline},
		},
	})
}

// plansOfMember lists the plans for a member. If a plan is gone or not known yet, the event for the plan itself
// triggers a reconcile.
func (w *workspaces) plansOfMember(ctx context.Context, member types.NamespacedName) ([]types.NamespacedName, error) {
	object := &v1.Cluster{}
	if err := w.client.Get(ctx, member, object, client.UnsafeDisableDeepCopy); err != nil {
		w.progress.Forget(member)
		return nil, client.IgnoreNotFound(err)
	}
	return index.ClusterToPlans(ctx, w.client, object)
}

// projectsOfMember lists the projects that apply to a member.
func (w *workspaces) projectsOfMember(
	ctx context.Context, member types.NamespacedName,
) ([]types.NamespacedName, error) {
	object := &v1.Cluster{}
	if err := w.client.Get(ctx, member, object, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return index.ClusterTo[*v1.Project](ctx, w.client, object)
}

// plansOfChannel lists the plans that use a release channel.
func (w *workspaces) plansOfChannel(ctx context.Context, url string) ([]types.NamespacedName, error) {
	return index.ChannelToPlans(ctx, w.client, url)
}
