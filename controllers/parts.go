// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/authority"
	"github.com/drover-dev/drover/controllers/binding"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/controllers/direct"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/controllers/inventory"
	"github.com/drover-dev/drover/controllers/plan"
	"github.com/drover-dev/drover/controllers/project"
	"github.com/drover-dev/drover/controllers/provision/etcd"
	"github.com/drover-dev/drover/controllers/provision/infrastructure"
	"github.com/drover-dev/drover/controllers/provision/installation"
	"github.com/drover-dev/drover/controllers/provision/machine"
	"github.com/drover-dev/drover/controllers/role"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/trust"
)

// returnTime returns how long after a manager's start an agent that lost the hub may take to be connected again: its longest wait, and then the time in which
// the hub admits all. Before, a wave does not go on without an agent, and no Plan begins that it may know better about.
func returnTime(clusters int) time.Duration {
	return protocol.LongestReturn + members.AdmissionTime(clusters)
}

// parts are the reconcilers and what they share.
type parts struct {
	options Options
	client  client.Client

	authorities
	clusters *cluster.Reconciler
	upgrades *cluster.Upgrades
	revoker  *cluster.Revoker
	profiles *inventory.Reconciler
	machines
	profile *inventory.Kind
	provider
	installer
	tenants
	// runnables run beside the controllers.
	runnables []manager.Runnable
}

// machines are the reconcilers of Hosts.
type machines struct {
	hosts       *host.Reconciler
	hostRevoker *host.Revoker
}

// installer is the reconciler of what is made of Hosts without Cluster API.
type installer struct {
	installations  *installation.Reconciler
	installedEtcds *etcd.Reconciler
}

// provider are the reconcilers of the kinds that Cluster API makes clusters of.
type provider struct {
	infrastructure *infrastructure.Reconciler
	nodes          *machine.Reconciler
	etcds          *etcd.Reconciler
}

// authorities are the reconcilers of the hub's CA.
type authorities struct {
	loader    *authority.Loader
	publisher *authority.Publisher
	keeper    *authority.Keeper
}

// tenants are the reconcilers that hand sets to the delivery store, and what they read.
type tenants struct {
	deliveries *delivery.Store
	guards     *project.Guards
	direct     *direct.Reconciler
	roles      *role.Reconciler
	bindings   binding.Options
	projects   *project.Reconciler
	plans      *plan.Reconciler
	progress   *plan.Progress
	poller     *release.Poller

	projectSecrets, planSecrets cache.Cache
}

// newParts makes the reconcilers.
func newParts(mgr ctrl.Manager, o Options) (*parts, error) {
	if o.Started.IsZero() {
		o.Started = time.Now()
	}
	p := &parts{options: o, client: mgr.GetClient()}
	if err := p.makeTenants(mgr); err != nil {
		return nil, err
	}
	if o.Trust != nil {
		p.makeHub(mgr)
	}
	return p, nil
}

// makeHub makes the reconcilers of the hub's CA and of Clusters.
func (p *parts) makeHub(mgr ctrl.Manager) {
	o, hub, live := p.options, mgr.GetClient(), mgr.GetAPIReader()
	in := func(name string) types.NamespacedName {
		return types.NamespacedName{Namespace: o.Config.Namespace, Name: name}
	}
	p.loader = &authority.Loader{Client: hub, Live: live, Trust: o.Trust, Authority: in(trust.AuthoritySecret), Now: time.Now}
	if name := o.Config.Server.TLSSecretName; name != "" {
		p.loader.Given = in(name)
		o.Trust.AwaitGiven()
	}
	settings := o.Config.AgentSettings(o.Trust.Bundle)
	p.publisher = &authority.Publisher{Client: hub, Settings: settings, ConfigMap: in(trust.AuthorityConfigMap)}
	p.keeper = &authority.Keeper{
		Client: hub, Recorder: mgr.GetEventRecorder("drover-authority"), Secret: in(trust.AuthoritySecret),
		Member: o.Members.State, Settings: settings, Now: time.Now,
	}
	p.profile = &inventory.Kind{Mapper: mgr.GetRESTMapper(), Scheme: mgr.GetScheme(), Cache: mgr.GetCache(), Clusters: p.clusterNames, Every: inventory.LookEvery}
	p.profiles = &inventory.Reconciler{Client: hub, Recorder: mgr.GetEventRecorder("drover-inventory"), Settings: settings, Served: p.profile.Served}
	p.hosts = &host.Reconciler{
		Client: hub, Live: live, Recorder: mgr.GetEventRecorder("drover-host"), Members: o.Members, Settings: settings,
		Trust: cmp.Or(o.Config.Agent.Defaults().Trust, v1.TrustPinned), Settled: p.settled(o, since(o.Started)), Now: time.Now,
		Checkpoint: o.Checkpoints.Current, Forgot: o.Checkpoints.Forgot,
	}
	p.infrastructure = &infrastructure.Reconciler{Client: hub, Live: live, Recorder: mgr.GetEventRecorder("drover-infrastructure"), Settings: settings, Snapshots: o.Config.Provision.Enabled}
	clean := host.ReportsClean(o.Members.State)
	p.nodes = &machine.Reconciler{Client: hub, Live: live, Recorder: mgr.GetEventRecorder("drover-machine"), Now: time.Now, Clean: clean}
	etcdEvents := mgr.GetEventRecorder("drover-etcd")
	p.etcds = &etcd.Reconciler{Client: hub, Live: live, Recorder: etcdEvents, Backend: etcd.Kubeadm{Client: hub, Live: live, Recorder: etcdEvents, Now: time.Now}}
	p.installations = &installation.Reconciler{Client: hub, Live: live, Recorder: mgr.GetEventRecorder("drover-installation"), Now: time.Now, Clean: clean}
	p.installedEtcds = &etcd.Reconciler{Client: hub, Live: live, Recorder: etcdEvents, Backend: etcd.Installations{Progress: p.installations.EtcdProgress}}
	p.hostRevoker = &host.Revoker{Client: hub, Live: live, Tunnels: o.Members}
	p.revoker = &cluster.Revoker{Client: hub, Live: live, Tunnels: o.Members}
	p.upgrades = &cluster.Upgrades{Client: hub, Recorder: mgr.GetEventRecorder("drover-cluster"), Pace: o.Config.Agent.Rollout.Pace, Now: time.Now}
	p.clusters = &cluster.Reconciler{
		Client: hub, Live: live, Recorder: mgr.GetEventRecorder("drover-cluster"),
		Members: o.Members, Settings: settings, Agent: o.Config.Agent.Defaults(), Places: cluster.NewPlaces(o.Config.Limits.Workspace.Clusters),
		Upgrades: p.upgrades,
		Synced:   o.Synced, Started: o.Started, Now: time.Now,
		Sets: cluster.Sets{Unconfirmed: p.deliveries.Unconfirmed, Guards: p.outcome(set.Guards)},
	}
	if o.Issuer != nil {
		p.clusters.Direct = p.outcome(set.Direct)
	}
}

// outcome returns what returns the outcome of the one set of a kind in a member.
func (p *parts) outcome(id string) func(types.NamespacedName) delivery.Outcome {
	return func(member types.NamespacedName) delivery.Outcome {
		return p.deliveries.Outcomes(id, []types.NamespacedName{member})[0]
	}
}

// makeTenants makes the delivery store, the reconcilers that hand over to it, and what plans wait for.
func (p *parts) makeTenants(mgr ctrl.Manager) error {
	o, hub, live := p.options, mgr.GetClient(), mgr.GetAPIReader()
	var err error
	if p.projectSecrets, err = labelledSecrets(mgr, v1.LabelProject, selection.Exists); err != nil {
		return err
	}
	if p.planSecrets, err = labelledSecrets(mgr, v1.LabelPlansUse, selection.Equals, "true"); err != nil {
		return err
	}
	p.deliveries = delivery.New(delivery.Options{
		State: o.Members.State, Leading: o.Members.Leading, Leaving: leaving(hub), ReadOnly: readOnly(hub), Restore: o.Checkpoints.Policy(hub, kinds.Rules()), Observer: o.Deliveries, Log: mgr.GetLogger().WithName("delivery"),
	})
	o.Members.OnChange(p.deliveries.Changed)
	o.Members.FollowSets(p.deliveries)
	p.progress = plan.NewProgress(o.Members.State)
	o.Members.OnChange(p.progress.Changed)
	o.Members.FollowPlans(p.progress)
	reach := release.Public
	if o.Config.Channels.Private {
		reach = release.Private
	}
	p.poller = release.NewPoller(release.New(reach).Latest, time.Now)
	p.runnables = []manager.Runnable{p.projectSecrets, p.planSecrets, counter{Store: p.deliveries, hub: hub}, p.progress, p.poller, manager.RunnableFunc(o.Members.Lead)}

	if p.guards, err = project.NewGuards(hub, p.deliveries); err != nil {
		return err
	}
	p.direct = &direct.Reconciler{Client: hub, Deliveries: p.deliveries, Issuer: o.Issuer, Now: time.Now}
	p.roles = &role.Reconciler{Client: hub, Recorder: mgr.GetEventRecorder("drover-role"), Deliveries: p.deliveries, Now: time.Now}
	p.bindings = binding.Options{Client: hub, Recorder: mgr.GetEventRecorder("drover-binding"), Deliveries: p.deliveries, Now: time.Now}
	p.projects = &project.Reconciler{
		Client: hub, Secrets: &index.SecretReader{Reader: p.projectSecrets, Live: live}, Recorder: mgr.GetEventRecorder("drover-project"), Deliveries: p.deliveries, Now: time.Now,
	}
	p.plans = &plan.Reconciler{
		Client: hub, Secrets: &index.SecretReader{Reader: p.planSecrets, Live: live}, Recorder: mgr.GetEventRecorder("drover-plan"), Deliveries: p.deliveries,
		State: p.progress.State, Channel: p.poller.Result, Now: time.Now,
		Settled: p.settled(o, since(o.Started)), Returned: p.settled(o, firstConnected(o.Members)),
	}
	if o.Checkpoints != nil {
		p.plans.Unconfirmed = p.deliveries.Unconfirmed
	}
	return nil
}

// labelledSecrets returns a cache of the Secrets with a label, without their content. The manager's own has those that Drover made, and one cache
// takes one selector.
func labelledSecrets(mgr ctrl.Manager, label string, operator selection.Operator, values ...string) (cache.Cache, error) {
	labelled, err := labels.NewRequirement(label, operator, values)
	if err != nil {
		return nil, err
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{&corev1.Secret{}: {Label: labels.NewSelector().Add(*labelled), Transform: index.SecretOutline}},
	})
}

// since returns a function that returns that time.
func since(at time.Time) func() time.Time { return func() time.Time { return at } }

// firstConnected returns a function that returns when the first agent was connected, on whatever replica, that this manager knows of; zero before.
func firstConnected(all *members.Registry) func() time.Time {
	var first atomic.Pointer[time.Time]
	look := func(member types.NamespacedName) {
		if first.Load() == nil && all.State(member).Connected() {
			first.CompareAndSwap(nil, new(time.Now()))
		}
	}
	all.OnChange(look)
	all.OnHostChange(look)
	return func() time.Time {
		if at := first.Load(); at != nil {
			return *at
		}
		return time.Time{}
	}
}

// settled returns a function that reports whether agents have had time to come back since a time, false while that is zero.
func (p *parts) settled(o Options, from func() time.Time) func() bool {
	var returned atomic.Bool // it stays so
	return func() bool {
		if at := from(); !returned.Load() && !at.IsZero() && time.Since(at) > returnTime(0) {
			clusters, err := p.clusterNames(context.Background()) // from the cache
			hosts, errHosts := p.hostNames(context.Background())
			returned.Store(errors.Join(err, errHosts) == nil && time.Since(at) > returnTime(len(clusters)+len(hosts)))
		}
		return returned.Load() && (o.Synced == nil || o.Synced())
	}
}

// hostNames lists all Hosts.
func (p *parts) hostNames(ctx context.Context) ([]types.NamespacedName, error) {
	return listNames(ctx, p.client, &v1.HostList{})
}

// infrastructureNames lists all DroverClusters.
func (p *parts) infrastructureNames(ctx context.Context) ([]types.NamespacedName, error) {
	return listNames(ctx, p.client, &infrav1.DroverClusterList{})
}

// clusterNames lists all Clusters.
func (p *parts) clusterNames(ctx context.Context) ([]types.NamespacedName, error) {
	return listNames(ctx, p.client, &v1.ClusterList{})
}

// plansOfMember lists the plans for a member. One that is gone, or not known yet, wakes them by its own event.
func (p *parts) plansOfMember(ctx context.Context, member types.NamespacedName) ([]types.NamespacedName, error) {
	object := &v1.Cluster{}
	if err := p.client.Get(ctx, member, object, client.UnsafeDisableDeepCopy); err != nil {
		p.progress.Forget(member)
		return nil, client.IgnoreNotFound(err)
	}
	return index.ClusterToPlans(ctx, p.client, object)
}

// projectsOfMember lists the projects for a member.
func (p *parts) projectsOfMember(ctx context.Context, member types.NamespacedName) ([]types.NamespacedName, error) {
	object := &v1.Cluster{}
	if err := p.client.Get(ctx, member, object, client.UnsafeDisableDeepCopy); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return index.ClusterToProjects(ctx, p.client, object)
}

// plansOfChannel lists the plans that read a release channel.
func (p *parts) plansOfChannel(ctx context.Context, url string) ([]types.NamespacedName, error) {
	return index.ChannelToPlans(ctx, p.client, url)
}
