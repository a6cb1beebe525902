// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package infrastructure reconciles DroverCluster.
//
// It writes the kubeconfig that Cluster API uses to reach a cluster through the hub, and lists the failure domains.
package infrastructure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/status"
)

// lookAgain is the interval at which Cluster API's progress is checked. Cluster API objects are not watched.
const lookAgain = 5 * time.Second

// maxDomains is the maximum number of failure domains. The schema defines the same limit.
const maxDomains = 100

// Reconciler reconciles DroverClusters.
type Reconciler struct {
	// Client writes objects and reads them from the cache. Live reads from the API server.
	Client   client.Client
	Live     client.Reader
	Recorder events.EventRecorder
	// Settings returns the hub's addresses and CA.
	Settings func(context.Context) (protocol.Settings, error)
}

// +kubebuilder:rbac:groups=infrastructure.cluster.drover.dev,resources=droverclusters,verbs=get;list;watch
// +kubebuilder:rbac:groups=infrastructure.cluster.drover.dev,resources=droverclusters/status,verbs=patch
// +kubebuilder:rbac:groups=infrastructure.cluster.drover.dev,resources=droverclusters/finalizers,verbs=update
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=clusters,verbs=get
// The drover-secrets policy requires the following right to write a Secret that Cluster API reads.
// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters/credentials,verbs=update

// Reconcile writes the kubeconfig of one cluster and its status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	object := &infrav1.DroverCluster{}
	if err := r.Client.Get(ctx, req.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !object.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil // the Secret is garbage collected together with the object
	}
	update := status.Begin(object)
	defer func() { err = errors.Join(err, update.Commit(ctx, r.Client, r.Recorder)) }()
	setScheduled(object, update)
	decided, err := r.advance(ctx, object)
	if denied := hub.NotPermitted(ctx, r.Live, req.Namespace, err); denied != nil {
		decided, err = *denied, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	setConditions(object, decided)
	return ctrl.Result{RequeueAfter: decided.Again}, nil
}

func (r *Reconciler) advance(ctx context.Context, object *infrav1.DroverCluster) (status.Readiness, error) {
	owner, problem, err := clusterapi.ClusterOf(ctx, r.Live, object)
	switch {
	case err != nil:
		return status.Readiness{}, err
	case problem != "":
		return status.Readiness{Reason: infrav1.ReasonWaitingForOwner, Message: problem, Again: lookAgain}, nil
	case clusterapi.IsPaused(owner, object):
		return status.Readiness{Reason: infrav1.ReasonPaused, Message: "Cluster API has paused the cluster", Again: lookAgain}, nil
	}
	if err := r.setDomains(ctx, object); err != nil {
		return status.Readiness{}, err
	}
	key := types.NamespacedName{Namespace: object.Namespace, Name: owner.Name}
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, key, cluster); apierrors.IsNotFound(err) {
		return status.Readiness{Reason: infrav1.ReasonClusterMissing, Message: fmt.Sprintf("make a Cluster %s of cluster.drover.dev, which Cluster API reaches the cluster through", owner.Name), Again: lookAgain}, nil
	} else if err != nil {
		return status.Readiness{}, err
	}
	if v, err := r.writeKubeconfig(ctx, object, cluster); err != nil || v.Reason != "" {
		return v, err
	}
	if object.Spec.ControlPlaneEndpoint.Host == "" && owner.Spec.ControlPlaneEndpoint.Host == "" {
		return status.Readiness{Reason: infrav1.ReasonWaitingForCluster, Message: "set spec.controlPlaneEndpoint to where the nodes reach their API servers", Again: lookAgain}, nil
	}
	done := true
	object.Status.Initialization.Provisioned = &done
	v := status.Readiness{Ready: true, Reason: infrav1.ReasonProvisioned, Message: "Cluster API reaches the cluster through the hub, once its agent is connected"}
	if object.Spec.FailureDomainLabel != "" {
		v.Again = time.Minute // labels of Hosts rarely change
	}
	return v, nil
}

// setDomains sets the failure domains. Each value of the configured label on the Hosts is one failure domain.
func (r *Reconciler) setDomains(ctx context.Context, object *infrav1.DroverCluster) error {
	object.Status.FailureDomains = nil
	if object.Spec.FailureDomainLabel == "" {
		return nil
	}
	list := &v1.HostList{}
	if err := r.Client.List(ctx, list, client.InNamespace(object.Namespace)); err != nil {
		return err
	}
	object.Status.FailureDomains = domains(list.Items, object.Spec.FailureDomainLabel)
	return nil
}

// domains returns the sorted values of a label. It has no side effects.
func domains(hosts []v1.Host, label string) []infrav1.FailureDomain {
	var names []string
	for i := range hosts {
		if value := hosts[i].Labels[label]; value != "" {
			names = append(names, value)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	yes := true
	var out []infrav1.FailureDomain
	for _, name := range names[:min(len(names), maxDomains)] {
		out = append(out, infrav1.FailureDomain{Name: name, ControlPlane: &yes})
	}
	return out
}

// writeKubeconfig writes the Secret that Cluster API reads. It does not change a Secret with this name that Drover did
// not create.
func (r *Reconciler) writeKubeconfig(ctx context.Context, object *infrav1.DroverCluster, cluster *v1.Cluster) (status.Readiness, error) {
	name := types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + infrav1.KubeconfigSecretSuffix}
	ours := owned.Marks{
		Type: corev1.SecretTypeOpaque, Labels: map[string]string{clusterapi.LabelCluster: cluster.Name, v1.LabelSecretKind: v1.SecretKindKubeconfig}, Owner: object.UID,
	}
	present := &corev1.Secret{}
	if err := r.Live.Get(ctx, name, present); apierrors.IsNotFound(err) {
		present = nil
	} else if err != nil {
		return status.Readiness{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	if present != nil && !ours.Has(present) {
		return status.Readiness{Reason: infrav1.ReasonSecretConflict, Message: "Secret " + name.Name + " exists and is not Drover's: delete it, or let Cluster API reach the cluster with it, without Drover", Again: lookAgain}, nil
	}
	settings, err := r.Settings(ctx)
	switch {
	case apierrors.IsNotFound(err) || err == nil && len(settings.Servers) == 0:
		return status.Readiness{
			Reason: infrav1.ReasonHubUnknown, Again: lookAgain,
			Message: "the manager has not published the hub's address in ConfigMap drover-ca: start a manager of this version",
		}, nil
	case err != nil:
		return status.Readiness{}, err
	}
	content, err := kubeconfig(cluster, settings)
	if err != nil {
		return status.Readiness{}, err
	}
	if present != nil && string(present.Data[kubeconfigKey]) == string(content) {
		return status.Readiness{}, nil
	}
	want := corev1ac.Secret(name.Name, name.Namespace).
		WithLabels(ours.Labels).
		WithOwnerReferences(metav1ac.OwnerReference().WithAPIVersion(infrav1.GroupVersion.String()).WithKind("DroverCluster").WithName(object.Name).WithUID(object.UID)).
		WithType(ours.Type).WithData(map[string][]byte{kubeconfigKey: content})
	if err := owned.WriteSecret(ctx, r.Client, present, want); err != nil {
		return status.Readiness{}, fmt.Errorf("write Secret %s: %w", name, err)
	}
	return status.Readiness{}, nil
}

func setConditions(object *infrav1.DroverCluster, v status.Readiness) {
	conditions, generation := &object.Status.Conditions, object.Generation
	if v.Reason == infrav1.ReasonPaused {
		meta.SetStatusCondition(conditions, metav1.Condition{Type: infrav1.ConditionPaused, Status: metav1.ConditionTrue, Reason: v.Reason, Message: v.Message, ObservedGeneration: generation})
		return // the Ready condition keeps its value
	}
	meta.RemoveStatusCondition(conditions, infrav1.ConditionPaused)
	v.Write(generation, &object.Status.ObservedGeneration, conditions)
}
