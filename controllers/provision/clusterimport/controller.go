// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clusterimport imports clusters that Cluster API has created on any infrastructure.
//
// It creates Clusters for them and installs the agents, using the kubeconfigs from Cluster API.
package clusterimport

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/release"
)

// Intervals at which a cluster is checked again. The Cluster is the only Cluster API kind that is watched.
const (
	soon      = 5 * time.Second
	lookAgain = 30 * time.Second
	busyPause = time.Second
)

// Workers is the number of reconciles that run in parallel. maxInstalls is how many of them may install agents in the
// clusters of one workspace at the same time. It is lower, because the API servers of these clusters belong to the
// tenant and may respond slowly.
const (
	Workers     = 16
	maxInstalls = 2
)

// Reconciler imports the Cluster API Clusters that have the import label.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	// Reach defines the addresses that API servers may have.
	Reach release.Reach

	once  sync.Once
	seats *limit.Gate // limits concurrent installations; use enter
}

type input struct {
	name    types.NamespacedName
	source  *metav1.PartialObjectMetadata // Cluster API Cluster, or nil if it does not exist
	cluster *v1.Cluster                   // nil if it does not exist
	joined  bool
	foreign bool // whether another Secret has the name of the agent's Secret
	// manifest is the agent's manifest, or nil if it does not exist. kubeconfig is the cluster's kubeconfig, or nil if
	// it does not exist.
	manifest, kubeconfig []byte
}

// step is the next step of an import.
type step int

const (
	nothing step = iota
	makeCluster
	refuse
	blocked
	wait
	install
)

// Outline returns an empty Cluster API Cluster for reading only the object's metadata.
func Outline() *metav1.PartialObjectMetadata {
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(clusterapi.GroupVersion.WithKind("Cluster"))
	return object
}

// The drover-provisioner-clusters policy allows the provisioner to create only Clusters that belong to a Cluster API
// Cluster. Setting the import label requires the "delete" verb on clusters/agent. The drover-provisioner-secrets policy
// prevents the provisioner from using this right for anything else.
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters,verbs=create
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters/agent,verbs=delete

// Reconcile performs the next step for a cluster.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	in, err := r.gather(ctx, req.NamespacedName)
	if denied := hub.NotPermitted(ctx, r.Live, req.Namespace, err); denied != nil && in.cluster != nil {
		r.event(in, corev1.EventTypeWarning, "AgentNotInstalled", "%s", denied.Message)
		return ctrl.Result{RequeueAfter: denied.Again}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	secret := clusterapi.KubeconfigSecret(in.name).Name
	switch decide(in) {
	case makeCluster:
		if err := r.Client.Create(ctx, clusterOf(in.source)); err != nil && !apierrors.IsAlreadyExists(err) {
			return ctrl.Result{}, fmt.Errorf("make Cluster %s: %w", in.name, err)
		}
		return ctrl.Result{RequeueAfter: soon}, nil
	case refuse:
		r.event(in, corev1.EventTypeWarning, "ImportRefused",
			"Cluster API's Cluster of this name is marked for import, but this Cluster existed before: to have the agent installed there, give this Cluster the label %s: \"true\", too"+
				". That takes \"delete\" on clusters/agent, which administrators of the workspace have", v1.LabelImport)
		return ctrl.Result{}, nil // a change to the label triggers a reconcile
	case blocked:
		r.event(in, corev1.EventTypeWarning, "AgentNotInstalled",
			"Secret %s is not Drover's, and no agent can join with it: delete it", registration.AgentSecret(in.name).Name)
		return ctrl.Result{RequeueAfter: lookAgain}, nil
	case wait:
		return ctrl.Result{RequeueAfter: soon}, nil
	case install:
		seat, err := r.enter(ctx, in.name.Namespace)
		if err != nil {
			return ctrl.Result{RequeueAfter: utilwait.Jitter(busyPause, 1)}, nil
		}
		defer seat.Release()
		if err := r.install(ctx, in); err != nil {
			r.event(in, corev1.EventTypeWarning, "AgentNotInstalled", "the agent cannot be installed with Secret %s yet, and Drover tries again: %v", secret, err)
		} else {
			r.event(in, corev1.EventTypeNormal, "AgentInstalled", "the agent was installed with Secret %s of Cluster API", secret)
		}
		return ctrl.Result{RequeueAfter: lookAgain}, nil
	}
	return ctrl.Result{}, nil
}

// enter reserves a seat for an installation in one of a workspace's clusters. It returns an error if too many
// installations are in progress in that workspace.
func (r *Reconciler) enter(ctx context.Context, workspace string) (*limit.Seat, error) {
	r.once.Do(func() { r.seats = limit.NewGate(limit.Bounds{User: maxInstalls}, limit.Observer{}) })
	return r.seats.Enter(ctx, limit.Requester{User: workspace})
}

// gather reads everything that a step depends on. If it returns an error, the input contains the data that was read
// before the error.
func (r *Reconciler) gather(ctx context.Context, name types.NamespacedName) (*input, error) {
	in := &input{name: name, source: Outline()}
	if err := r.Client.Get(ctx, name, in.source); apierrors.IsNotFound(err) {
		in.source = nil
	} else if err != nil {
		return in, err
	}
	if !wanted(in) {
		return in, nil
	}
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, name, cluster); apierrors.IsNotFound(err) {
		return in, nil
	} else if err != nil {
		return in, err
	}
	in.cluster = cluster
	if !agreed(in) {
		return in, nil
	}
	for _, reader := range []client.Reader{r.Client, r.Live} { // the cache might not contain a very recent join yet
		agent := &corev1.Secret{}
		if err := reader.Get(ctx, registration.AgentSecret(name), agent); err == nil {
			in.joined = registration.Ours(agent, name.Name, v1.SecretKindAgent)
			in.foreign = !in.joined
			return in, nil
		} else if !apierrors.IsNotFound(err) {
			return in, err
		}
	}
	secret := &corev1.Secret{}
	if err := r.Live.Get(ctx, registration.RegistrationSecret(name), secret); client.IgnoreNotFound(err) != nil {
		return in, err
	}
	if registration.Owned(secret, cluster) {
		in.manifest = secret.Data[registration.KeyManifest]
	}
	kubeconfig, err := clusterapi.GetKubeconfig(ctx, r.Live, name)
	in.kubeconfig = kubeconfig
	return in, err
}

func wanted(in *input) bool {
	return in.source != nil && in.source.DeletionTimestamp.IsZero() && in.source.Labels[v1.LabelImport] == "true"
}

// agreed reports whether the existing Cluster may be used for the import. If the provisioner did not create the
// Cluster, its owner must have set the import label.
func agreed(in *input) bool {
	return in.cluster.DeletionTimestamp.IsZero() && in.cluster.Labels[v1.LabelImport] == "true"
}

// decide returns the next step. It has no side effects.
func decide(in *input) step {
	switch {
	case !wanted(in):
		return nothing
	case in.cluster == nil:
		return makeCluster
	case !agreed(in) && in.cluster.DeletionTimestamp.IsZero():
		return refuse
	case !agreed(in), in.joined:
		return nothing
	case in.foreign:
		return blocked
	case len(in.manifest) == 0 || len(in.kubeconfig) == 0:
		return wait
	}
	return install
}

// clusterOf returns the Cluster to create. It is deleted along with the Cluster API Cluster, but not before it, because
// Cluster API may need the connection through the hub until then.
func clusterOf(source *metav1.PartialObjectMetadata) *v1.Cluster {
	return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: source.Namespace, Name: source.Name, Labels: map[string]string{v1.LabelImport: "true"},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: clusterapi.GroupVersion.String(), Kind: "Cluster", Name: source.Name, UID: source.UID}},
	}}
}

func (r *Reconciler) event(in *input, kind, reason, format string, args ...any) {
	r.Recorder.Eventf(in.cluster, nil, kind, reason, "Import", format, args...)
}
