// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package provision lists every controller of the provisioner.
package provision

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/clusterimport"
	"github.com/drover-dev/drover/controllers/provision/etcd"
	"github.com/drover-dev/drover/controllers/provision/infrastructure"
	"github.com/drover-dev/drover/controllers/provision/installation"
	"github.com/drover-dev/drover/controllers/provision/machine"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/provision/inplace"
	"github.com/drover-dev/drover/internal/release"
	"github.com/drover-dev/drover/internal/wiring"
)

// Every provisioner has the rights in config/provision/role.yaml. The rights for Cluster API are defined next to its
// controllers. In workspaces where an administrator has bound the role drover-provisioner-workspace, the provisioner
// can get Secrets whose names it knows, but cannot list Secrets. The policies in config/provision/policy.yaml restrict
// its writes, because Hosts' instructions run as root on the machines.
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,verbs=create
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,resourceNames=drover-provisioner,verbs=get;update
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=drover-system,resources=leases,resourceNames=drover-manager,verbs=get
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,resourceNames=drover-ca,verbs=get;list;watch
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=hosts/instructions,verbs=update
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;create;update;patch;delete,roleName=drover-provisioner-workspace
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=clusterinstallations,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=etcdsnapshots,verbs=get;list;watch;create;delete
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=etcdrestores,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=clusterinstallations/status,verbs=patch
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=etcdsnapshots/status,verbs=patch
// +kubebuilder:rbac:groups=provision.cluster.drover.dev,resources=etcdrestores/status,verbs=patch

// Setup adds all controllers to a manager. It also adds the hooks that Cluster API calls.
func Setup(mgr ctrl.Manager, cfg config.Config) error {
	s := shared{
		mgr: mgr, client: mgr.GetClient(), live: mgr.GetAPIReader(),
		hub: hub.Hub{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Namespace: cfg.Namespace, Now: time.Now},
	}
	err := s.served("config/provision", provisionv1.GroupVersion, installation.Kind, "EtcdSnapshot", "EtcdRestore")
	if err != nil {
		return err
	}
	all := s.installations()
	if cfg.ClusterAPI.Enabled {
		if err := s.served("config/clusterapi", infrav1.GroupVersion, "DroverCluster", machine.Kind); err != nil {
			return err
		}
		all = slices.Concat(all, s.clusterAPI())
	}
	if cfg.ClusterAPI.Import {
		if err := s.served("Cluster API, before clusterAPI.import", clusterapi.GroupVersion, "Cluster"); err != nil {
			return err
		}
		all = append(all, s.imports())
	}
	if cfg.ClusterAPI.InPlaceUpdates {
		mux := http.NewServeMux()
		hooks := inplace.Hooks{Live: s.live, Writer: s.client, Log: mgr.GetLogger().WithName("in-place")}
		inplace.New(hooks).Register(mux)
		mgr.GetWebhookServer().Register(inplace.Path+"/", mux)
	}
	if err := watch(mgr, cfg); err != nil {
		return err
	}
	return wiring.Add(mgr, all)
}

// watch adds the runnables that run on every replica, except for the controllers.
func watch(mgr ctrl.Manager, cfg config.Config) error {
	clients, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	restores := hub.NewRestoreWatch(clients.CoordinationV1(), cfg.Namespace, mgr.GetLogger().WithName("restore"))
	return errors.Join(addProbes(mgr, cfg), watchPolicies(mgr, cfg, clients), mgr.Add(restores))
}

// shared holds the dependencies of all controllers.
type shared struct {
	mgr ctrl.Manager
	// client writes objects and reads them from the cache. live reads from the API server.
	client client.Client
	live   client.Reader
	hub    hub.Hub
}

func (s shared) recorder(name string) events.EventRecorder { return s.mgr.GetEventRecorder(name) }

// served returns an error unless the hub serves the given kinds.
func (s shared) served(install string, version schema.GroupVersion, kinds ...string) error {
	for _, kind := range kinds {
		if _, err := s.mgr.GetRESTMapper().RESTMapping(version.WithKind(kind).GroupKind(), version.Version); err != nil {
			return fmt.Errorf("the hub does not have %s: install %s: %w", kind, install, err)
		}
	}
	return nil
}

// hosts returns a controller's access to Hosts. Unless the finalizer is empty, the controller sets it on the Hosts that
// it claims.
func (s shared) hosts(finalizer string) hosts.Hub {
	return hosts.Hub{Client: s.client, Live: s.live, NotCurrent: s.hub.NotCurrent, Finalizer: finalizer}
}

// installations lists the controllers for k3s and RKE2 clusters and for the etcd of these clusters.
func (s shared) installations() []wiring.Controller {
	clusters := &installation.Reconciler{
		Hub: s.hosts(provisionv1.FinalizerNode), Recorder: s.recorder("drover-installation"), Now: time.Now,
	}
	affected := clusters.Handler()
	return []wiring.Controller{
		{
			Name: "clusterinstallation", Reconciler: clusters, Workers: 4,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&provisionv1.ClusterInstallation{}),
				wiring.OnOtherChange(&v1.Host{}, affected), wiring.OnOtherChange(&v1.Cluster{}, affected),
				wiring.OnOtherChange(&provisionv1.EtcdSnapshot{}, affected),
				wiring.OnOtherChange(&provisionv1.EtcdRestore{}, affected),
			},
		},
	}
}

// clusterAPI lists the controllers for the kinds that Cluster API uses to create clusters, and for the etcd of these
// clusters.
func (s shared) clusterAPI() []wiring.Controller {
	return []wiring.Controller{
		s.etcd(),
		{
			Name: "drovercluster", Workers: 4, Reconciler: &infrastructure.Reconciler{
				Client: s.client, Live: s.live, Recorder: s.recorder("drover-infrastructure"), Settings: s.hub.Settings,
			},
			Triggers: []wiring.Trigger{
				wiring.OnChange(&infrav1.DroverCluster{}),
				// This ConfigMap contains the hub's addresses and CA, which are not secret.
				wiring.OnOtherChange(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(s.everyDroverCluster),
					builder.WithPredicates(wiring.Named(s.hub.ConfigMap()))),
			},
		},
		{
			Name: "drovermachine", Workers: 1, // see machine.Reconciler
			Reconciler: &machine.Reconciler{
				Hub: s.hosts(""), Recorder: s.recorder("drover-machine"), Now: time.Now,
			},
			Triggers: []wiring.Trigger{
				wiring.OnChange(&infrav1.DroverMachine{}), wiring.OnOtherChange(&v1.Host{}, hosts.Handler(machine.Kind)),
			},
		},
	}
}

// etcd returns the controller for the etcd of DroverClusters.
func (s shared) etcd() wiring.Controller {
	r := &etcd.Reconciler{Client: s.client, Live: s.live, Recorder: s.recorder("drover-etcd"), Now: time.Now}
	c, affected := wiring.Controller{Name: "etcd", Reconciler: r, Workers: 2}, r.Handler()
	for _, o := range []client.Object{
		&provisionv1.EtcdSnapshot{}, &provisionv1.EtcdRestore{},
		&infrav1.DroverMachine{}, &infrav1.DroverCluster{}, &v1.Host{},
	} {
		c.Triggers = append(c.Triggers, wiring.OnOtherChange(o, affected))
	}
	return c
}

func (s shared) everyDroverCluster(ctx context.Context, _ client.Object) (requests []reconcile.Request) {
	list := &infrav1.DroverClusterList{}
	// Reading from the cache fails only while the manager is stopping.
	if err := s.client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "reconciles not requested")
	}
	for i := range list.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return requests
}

// imports returns the controller that imports Cluster API clusters.
func (s shared) imports() wiring.Controller {
	return wiring.Controller{
		Name: "clusterimport", Workers: clusterimport.Workers, Reconciler: &clusterimport.Reconciler{
			Client: s.client, Live: s.live, Recorder: s.recorder("drover-import"), Reach: release.Private,
		},
		Triggers: []wiring.Trigger{
			wiring.OnChange(clusterimport.Outline()),
			wiring.OnOtherChange(&v1.Cluster{}, &handler.EnqueueRequestForObject{}),
		},
	}
}
