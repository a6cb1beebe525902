// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllers lists every controller of the manager.
package controllers

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/binding"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/controllers/provision/clusterimport"
	"github.com/drover-dev/drover/controllers/provision/installation"
	"github.com/drover-dev/drover/controllers/provision/machine"
	"github.com/drover-dev/drover/controllers/signin"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/set"
	issuer "github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/trust"
)

// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=events,verbs=create;patch

// Options are what the controllers share with the hub's server.
type Options struct {
	Config  config.Config
	Members *members.Registry
	Trust   *trust.Holder
	// Deliveries records what is sent to members.
	Deliveries delivery.Observer
	// Checkpoints are sent along with sets. Nil means that a restored etcd is not noticed.
	Checkpoints *checkpoint.Recorder
	// Issuer signs users' tokens. Nil means that users do not sign in at the hub.
	Issuer *issuer.Server
	// Synced reports whether it is known which members other replicas hold. Nil means that it always is.
	Synced func() bool
	// Started is when this manager began to accept tunnels. Zero means the time of Setup.
	Started time.Time
}

// entry is one controller of the list.
type entry struct {
	name       string
	reconciler reconcile.Reconciler
	// workers is how many reconciles run at once.
	workers int
	// everywhere means that it runs on every replica, and not only on the leader.
	everywhere bool
	triggers   []trigger
}

// Setup adds every controller to a manager.
func Setup(mgr ctrl.Manager, o Options) error {
	p, err := newParts(mgr, o)
	if err != nil {
		return err
	}
	machines, err := p.clusterAPI(mgr)
	if err != nil {
		return err
	}
	installations, err := p.provision(mgr)
	if err != nil {
		return err
	}
	return p.add(mgr, slices.Concat(p.hub(), p.workspaces(), p.signIn(mgr), machines, installations))
}

// hub lists the controllers of the hub's CA and of Clusters.
func (p *parts) hub() []entry {
	o, all := p.options, types.NamespacedName{Name: "all"}
	return []entry{
		{"authority-loader", p.loader, 1, true, []trigger{
			self(&corev1.Secret{}, only(p.loader.Authority, p.loader.Given)), atStart(p.loader.Authority, p.loader.Given)}},
		{"authority-publisher", p.publisher, 1, false, []trigger{
			self(&corev1.ConfigMap{}, only(p.publisher.ConfigMap)), atStart(p.publisher.ConfigMap), always(p.publisher.ConfigMap, o.Trust.OnChange)}},
		// A member that confirms, or that is lost, may be the last that the end of an old authority waits for.
		{"authority", p.keeper, 1, false, []trigger{
			self(&corev1.Secret{}, only(p.keeper.Secret)), atStart(p.keeper.Secret), always(p.keeper.Secret, o.Trust.OnChange), after(p.keeper.Secret, nameless(o.Members.OnChange), time.Second)}},
		// What was revoked between the look at the agent's key and the opening of its tunnel has had its event before.
		{"cluster-revocation", p.revoker, 1, true, []trigger{
			self(&v1.Cluster{}), owned(&corev1.Secret{}, builder.MatchEveryOwner), calls(o.Members.OnOpen, 0)}},
		// A reconcile may wait for an agent. An agent that connects reports within 50 ms, mostly, so that no status has to say that its report is awaited.
		{"cluster", p.clusters, 16, false, []trigger{
			self(&v1.Cluster{}), owned(&corev1.Secret{}, builder.MatchEveryOwner), handled(&v1.Cluster{}, p.clusters.Places.Handler()), before(p.clusters.Lead),
			calls(o.Members.OnChange, 50*time.Millisecond), results(p.deliveries, 50*time.Millisecond, set.Guards, set.Direct), each(p.clusterNames, o.Trust.OnChange),
			calls(p.upgrades.OnTurn, 0)}},
		{"host-revocation", p.hostRevoker, 1, true, []trigger{
			self(&v1.Host{}), handled(&corev1.Secret{}, host.Handler()), calls(host.OfMembers(o.Members.OnHostOpen), 0)}},
		{"host", p.hosts, 8, false, []trigger{
			self(&v1.Host{}), handled(&corev1.Secret{}, host.Handler()), calls(host.OfMembers(o.Members.OnHostChange), 50*time.Millisecond),
			each(p.hostNames, o.Trust.OnChange)}},
		{"inventory", p.profiles, 4, false, []trigger{
			self(&v1.Cluster{}, predicate.NewPredicateFuncs(func(client.Object) bool { return p.profile.Served() })),
			func(b *builder.Builder) { b.WatchesRawSource(p.profile) }, each(p.clusterNames, o.Trust.OnChange)}},
		{"agent-upgrades", p.upgrades, 1, false, []trigger{atStart(all), after(all, p.upgrades.OnChange, time.Second)}},
	}
}

// workspaces lists the controllers of what is delivered to members. A change of many members is gathered for a moment: an object is reconciled once
// for many of their results, and many objects are sent before their first status is written.
//
// What a controller is for is watched without a predicate: a status that was computed from a cache that lagged behind is corrected on the event of its
// own write.
func (p *parts) workspaces() []entry {
	return []entry{
		{set.Guards, p.guards, 1, false, []trigger{p.on(&v1.Cluster{}, index.Self)}},
		{set.Direct, p.direct, 4, false, append(p.signedIn(), p.on(&v1.Cluster{}, index.Self))},
		{set.Role, p.roles, 4, false, []trigger{
			self(&v1.RoleTemplate{}), p.on(&v1.RoleTemplate{}, index.RoleToRoles), p.on(&v1.ClusterRoleTemplateBinding{}, index.BindingToRoles),
			p.on(&v1.ProjectRoleTemplateBinding{}, index.BindingToRoles), p.on(&v1.Project{}, index.ProjectToRoles), p.on(&v1.Cluster{}, index.ClusterToRoles),
			results(p.deliveries, 50*time.Millisecond, set.Role)}},
		{set.ClusterBinding, binding.NewCluster(p.bindings), 8, false, []trigger{
			self(&v1.ClusterRoleTemplateBinding{}), owned(&rbacv1.Role{}), owned(&rbacv1.RoleBinding{}), p.on(&v1.Cluster{}, index.ClusterToClusterBindings),
			p.on(&v1.RoleTemplate{}, index.RoleToClusterBindings), results(p.deliveries, 100*time.Millisecond, set.ClusterBinding)}},
		{set.ProjectBinding, binding.NewProject(p.bindings), 8, false, []trigger{
			self(&v1.ProjectRoleTemplateBinding{}), owned(&rbacv1.Role{}), owned(&rbacv1.RoleBinding{}), p.on(&v1.Cluster{}, index.ClusterToProjectBindings),
			p.on(&v1.Project{}, index.ProjectToProjectBindings), p.on(&v1.RoleTemplate{}, index.RoleToProjectBindings),
			results(p.deliveries, 100*time.Millisecond, set.ProjectBinding)}},
		{set.Project, p.projects, 4, false, []trigger{
			self(&v1.Project{}), p.on(&v1.Project{}, index.ProjectToConflicting), p.on(&v1.Cluster{}, index.ClusterToProjects),
			p.onSecret(p.projectSecrets, index.SecretToProjects), results(p.deliveries, 20*time.Millisecond, set.Project, set.Secrets),
			looked(ownersOf(p.deliveries, set.Guards), 20*time.Millisecond, p.projectsOfMember)}},
		{set.Plan, p.plans, 4, false, []trigger{
			self(&v1.Plan{}), p.on(&v1.Cluster{}, index.ClusterToPlans), p.onSecret(p.planSecrets, index.SecretToPlans),
			results(p.deliveries, 20*time.Millisecond, set.Plan), calls(p.progress.OnPlan, 20*time.Millisecond),
			looked(p.progress.OnMember, 20*time.Millisecond, p.plansOfMember), looked(p.poller.OnPolled, 20*time.Millisecond, p.plansOfChannel),
			looked(ownersOf(p.deliveries, set.Guards), 20*time.Millisecond, p.plansOfMember)}},
	}
}

// signedIn wakes for all Clusters with direct access when a user or session has ended, or other keys are published.
func (p *parts) signedIn() []trigger {
	if p.options.Issuer == nil {
		return nil
	}
	all := p.direct.Handler(50 * time.Millisecond)
	return []trigger{
		handled(&corev1.Secret{}, all, builder.WithPredicates(predicate.NewPredicateFuncs(p.options.Issuer.Decides), predicate.ResourceVersionChangedPredicate{})),
		handled(&v1.User{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})),
		handled(&v1.AuthProvider{}, all, builder.WithPredicates(predicate.GenerationChangedPredicate{})),
	}
}

// signIn lists the controllers of what sign-in keeps: none unless it is configured.
func (p *parts) signIn(mgr ctrl.Manager) []entry {
	cfg := p.options.Config
	if !cfg.SignIn.On() {
		return nil
	}
	secret := types.NamespacedName{Namespace: cfg.Namespace, Name: issuer.KeysSecret}
	users := &signin.Users{Client: p.client, Recorder: mgr.GetEventRecorder("drover-user"), Namespace: cfg.Namespace, Now: time.Now}
	connectors := &upstream.Connectors{Reader: p.client, Namespace: cfg.Namespace}
	providers := &signin.Providers{Client: p.client, Recorder: mgr.GetEventRecorder("drover-authprovider"), Connectors: connectors, Now: time.Now}
	sessions := &signin.Sessions{Client: p.client, Namespace: cfg.Namespace, Now: time.Now}
	return []entry{
		{"sign-in-keys", &signin.Keys{Client: p.client, Secret: secret, Now: time.Now}, 1, false, []trigger{self(&corev1.Secret{}, only(secret)), atStart(secret)}},
		{"sign-in-sessions", sessions, 1, false, []trigger{self(&corev1.Secret{}, predicate.NewPredicateFuncs(sessions.Ends))}},
		{"authprovider", providers, 4, false, []trigger{
			self(&v1.AuthProvider{}, predicate.GenerationChangedPredicate{}), handled(&corev1.Secret{}, providers.Handler())}},
		{"user", users, 1, false, []trigger{self(&v1.User{}), handled(&corev1.Secret{}, users.Handler())}},
	}
}

// clusterAPI lists the controllers of what Cluster API makes clusters of: none unless it is configured.
func (p *parts) clusterAPI(mgr ctrl.Manager) ([]entry, error) {
	entries, err := p.imports(mgr)
	if err != nil || !p.options.Config.ClusterAPI.Enabled {
		return entries, err
	}
	for _, kind := range []string{"DroverCluster", machine.Kind} {
		if _, err := mgr.GetRESTMapper().RESTMapping(infrav1.GroupVersion.WithKind(kind).GroupKind(), infrav1.GroupVersion.Version); err != nil {
			return nil, fmt.Errorf("clusterAPI.enabled takes the kinds of config/clusterapi: apply it before: %w", err)
		}
	}
	if p.options.Config.Provision.Enabled {
		wake := p.etcds.Handler()
		entries = append(entries, entry{"etcd", p.etcds, 2, false, []trigger{
			handled(&provisionv1.EtcdSnapshot{}, wake), handled(&provisionv1.EtcdRestore{}, wake), handled(&infrav1.DroverMachine{}, wake), handled(&v1.Host{}, wake),
			handled(&infrav1.DroverCluster{}, wake)}})
	}
	return append(entries, []entry{
		{"drovercluster", p.infrastructure, 4, false, []trigger{self(&infrav1.DroverCluster{}), each(p.infrastructureNames, p.options.Trust.OnChange)}},
		// One worker: see machine.Reconciler.
		{"drovermachine", p.nodes, 1, false, []trigger{self(&infrav1.DroverMachine{}), handled(&v1.Host{}, hosts.Handler(machine.Kind))}},
	}...), nil
}

// imports lists the controller of clusters that Cluster API makes anywhere: none unless it is configured.
func (p *parts) imports(mgr ctrl.Manager) ([]entry, error) {
	if !p.options.Config.ClusterAPI.Import {
		return nil, nil
	}
	source := clusterimport.Outline()
	if _, err := mgr.GetRESTMapper().RESTMapping(source.GroupVersionKind().GroupKind(), source.GroupVersionKind().Version); err != nil {
		return nil, fmt.Errorf("clusterAPI.import takes Cluster API, with %s: %w", clusterapi.GroupVersion, err)
	}
	r := &clusterimport.Reconciler{Client: p.client, Live: mgr.GetAPIReader(), Recorder: mgr.GetEventRecorder("drover-import"), Reach: release.Private}
	return []entry{{"clusterimport", r, clusterimport.Workers, false, []trigger{self(source), handled(&v1.Cluster{}, &handler.EnqueueRequestForObject{})}}}, nil
}

// provision lists the controller of what is made of Hosts without Cluster API: none unless it is configured.
func (p *parts) provision(mgr ctrl.Manager) ([]entry, error) {
	if !p.options.Config.Provision.Enabled {
		return nil, nil
	}
	if _, err := mgr.GetRESTMapper().RESTMapping(provisionv1.GroupVersion.WithKind(installation.Kind).GroupKind(), provisionv1.GroupVersion.Version); err != nil {
		return nil, fmt.Errorf("provision.enabled takes the kind of config/provision: apply it before: %w", err)
	}
	wake := p.installations.Handler()
	etcds := p.installedEtcds.Handler()
	return []entry{
		{"clusterinstallation", p.installations, 4, false, []trigger{
			self(&provisionv1.ClusterInstallation{}), handled(&v1.Host{}, wake), handled(&v1.Cluster{}, wake), handled(&provisionv1.EtcdSnapshot{}, wake),
			handled(&provisionv1.EtcdRestore{}, wake),
		}},
		{"etcd-installation", p.installedEtcds, 2, false, []trigger{
			handled(&provisionv1.EtcdSnapshot{}, etcds), handled(&provisionv1.EtcdRestore{}, etcds), handled(&provisionv1.ClusterInstallation{}, etcds), handled(&v1.Host{}, etcds),
		}},
	}, nil
}

// add adds the controllers of a list to a manager, and what they are woken by.
func (p *parts) add(mgr ctrl.Manager, list []entry) error {
	for _, runnable := range p.runnables {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("set up controllers: %w", err)
		}
	}
	for _, e := range list {
		elected := !e.everywhere
		b := ctrl.NewControllerManagedBy(mgr).Named(e.name).WithOptions(controller.Options{MaxConcurrentReconciles: e.workers, NeedLeaderElection: &elected})
		for _, trigger := range e.triggers {
			trigger(b)
		}
		if err := b.Complete(e.reconciler); err != nil {
			return fmt.Errorf("set up controller %s: %w", e.name, err)
		}
	}
	return nil
}
