// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package machine reconciles DroverMachine.
//
// It claims a Host for a Cluster API Machine, gives the Host the instructions to bootstrap the node, and finally
// releases the Host.
package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/status"
)

// Kind is the value of spec.consumerRef.kind in Hosts that a DroverMachine has claimed.
const Kind = "DroverMachine"

// Intervals between checks. Cluster API objects are not watched, so that the provisioner can start on a hub without
// Cluster API's kinds.
const (
	lookAgain = 5 * time.Second
	// leaveTime is how long the deletion of a machine waits for a disconnected Host.
	leaveTime = 20 * time.Second
)

// Reconciler reconciles DroverMachines one at a time, because the choice of a Host for one machine depends on the Hosts
// of the other machines.
type Reconciler struct {
	hosts.Hub
	Recorder events.EventRecorder
	Now      func() time.Time

	written status.Written[*infrav1.DroverMachine]
}

type input struct {
	machine *infrav1.DroverMachine
	// owner is the Machine, or nil if it does not exist. cluster is the Machine's Cluster API Cluster, or nil if it
	// does not exist.
	owner   *clusterapi.Machine
	cluster *clusterapi.Cluster
	// domainLabel is the label on Hosts that contains the failure domain, or "" if no label is configured.
	domainLabel string
	// host is the Host that the machine has claimed or is about to claim, or nil if no Host has been chosen.
	host   *v1.Host
	update *status.Update
	now    time.Time
}

// Cluster API Machines are listed, because a machine must not claim a Host while the Node of the Host's previous
// machine still exists.
// +kubebuilder:rbac:groups=infrastructure.cluster.drover.dev,resources=drovermachines,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=infrastructure.cluster.drover.dev,resources=drovermachines/status,verbs=patch
// +kubebuilder:rbac:groups=cluster.x-k8s.io,resources=machines,verbs=get;list

// Reconcile performs the next step for a machine and writes the machine's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	machine, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &infrav1.DroverMachine{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found {
		return ctrl.Result{}, r.releaseOrphans(ctx, req.NamespacedName, "")
	}
	if machine.DeletionTimestamp.IsZero() && !slices.Contains(machine.Finalizers, infrav1.FinalizerHost) {
		return ctrl.Result{}, owned.SetFinalizer(ctx, r.Client, machine, infrav1.FinalizerHost, controllerutil.AddFinalizer)
	}
	if err := r.releaseOrphans(ctx, req.NamespacedName, machine.UID); err != nil {
		return ctrl.Result{}, err
	}
	in := &input{machine: machine, update: status.Begin(machine), now: r.Now()}
	defer func() {
		err = errors.Join(err, r.written.Commit(ctx, status.Output{Client: r.Client, Recorder: r.Recorder}, in.update))
	}()
	if err := r.gather(ctx, in); err != nil {
		return ctrl.Result{}, err
	}
	paused := clusterapi.IsPaused(in.cluster, machine)
	setPaused(machine, paused)
	step := r.advance
	switch {
	case paused:
		again, err := r.workOn(ctx, in)
		return ctrl.Result{RequeueAfter: again}, err
	case !machine.DeletionTimestamp.IsZero():
		step = r.remove
	}
	decided, err := step(ctx, in)
	if denied := hub.NotPermitted(ctx, r.Live, req.Namespace, err); denied != nil {
		decided, err = *denied, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	writeStatus(in, decided)
	return ctrl.Result{RequeueAfter: decided.Again}, nil
}

// consumer returns the value of spec.consumerRef for a Host that a machine claims.
func consumer(machine *infrav1.DroverMachine) v1.HostConsumerRef {
	return v1.HostConsumerRef{APIVersion: infrav1.GroupVersion.String(), Kind: Kind, Name: machine.Name, UID: machine.UID}
}

// gather reads the Machine, the Machine's Cluster, and the Host.
func (r *Reconciler) gather(ctx context.Context, in *input) (err error) {
	in.host, err = r.hostOf(ctx, in.machine)
	if err != nil {
		return err
	}
	if in.owner, err = clusterapi.MachineOf(ctx, r.Live, in.machine); err != nil || in.owner == nil {
		return err
	}
	in.cluster, err = clusterapi.GetCluster(ctx, r.Live, types.NamespacedName{Namespace: in.machine.Namespace, Name: in.owner.Spec.ClusterName})
	if apierrors.IsNotFound(err) {
		in.cluster = nil
		return nil
	} else if err != nil {
		return err
	}
	infrastructure := &infrav1.DroverCluster{}
	err = r.Client.Get(ctx, types.NamespacedName{Namespace: in.machine.Namespace, Name: in.cluster.Spec.InfrastructureRef.Name}, infrastructure)
	in.domainLabel = infrastructure.Spec.FailureDomainLabel
	return client.IgnoreNotFound(err)
}

// hostOf reads the Host that a machine's provider ID refers to. It returns nil if there is no such Host. If the cached
// Host belongs to another object, hostOf reads the Host from the API server.
func (r *Reconciler) hostOf(ctx context.Context, machine *infrav1.DroverMachine) (*v1.Host, error) {
	name, ok := strings.CutPrefix(machine.Spec.ProviderID, infrav1.ProviderIDPrefix+machine.Namespace+"/")
	if !ok {
		return nil, nil
	}
	for _, reader := range []client.Reader{r.Client, r.Live} {
		host := &v1.Host{}
		err := reader.Get(ctx, types.NamespacedName{Namespace: machine.Namespace, Name: name}, host)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read Host %s: %w", name, err)
		}
		if err == nil && (hosts.TakenBy(host, consumer(machine)) || reader == r.Live) {
			return host, nil
		}
	}
	return nil, nil
}

// releaseOrphans releases Hosts that an earlier machine with this name claimed. They were disconnected when that
// machine was deleted.
func (r *Reconciler) releaseOrphans(ctx context.Context, name types.NamespacedName, uid types.UID) error {
	list := &v1.HostList{}
	if err := r.Client.List(ctx, list, client.InNamespace(name.Namespace)); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		host := list.Items[i].DeepCopy()
		ref := host.Spec.ConsumerRef
		if ref == nil || ref.Kind != Kind || ref.APIVersion != infrav1.GroupVersion.String() || ref.Name != name.Name || ref.UID == uid {
			continue
		}
		present := &infrav1.DroverMachine{} // the cache might not contain a new machine yet
		if err := r.Live.Get(ctx, name, present); client.IgnoreNotFound(err) != nil || err == nil && present.UID == ref.UID {
			errs = append(errs, client.IgnoreNotFound(err))
			continue
		}
		if _, err := r.ReleaseFormer(ctx, host); err != nil && !errors.Is(err, hosts.ErrForeignInstructions) && !errors.Is(err, hosts.ErrFormerInstructions) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// remove releases the Host and removes the finalizer from the machine.
func (r *Reconciler) remove(ctx context.Context, in *input) (status.Readiness, error) {
	if !slices.Contains(in.machine.Finalizers, infrav1.FinalizerHost) {
		return status.Readiness{Reason: infrav1.ReasonReleasing, Message: "the Host is given back"}, nil
	}
	done, why := true, ""
	if in.host != nil {
		var err error
		if done, err = r.Release(ctx, in.host.DeepCopy(), consumer(in.machine)); err != nil && !errors.Is(err, hosts.ErrForeignInstructions) {
			return status.Readiness{}, err
		} else if err != nil {
			why = err.Error()
		}
	}
	if !done && isLost(in.host) && in.now.After(in.machine.DeletionTimestamp.Add(leaveTime)) {
		done = true
		in.update.Event(status.Event{Warning: true, Reason: infrav1.ReasonHostLost, Action: "Release", Message: fmt.Sprintf(
			"Host %s is not connected. It stays claimed until its agent connects and has cleaned it", in.host.Name)})
	}
	if done {
		return status.Readiness{Reason: infrav1.ReasonReleasing, Message: "the Host is given back"}, owned.SetFinalizer(ctx, r.Client, in.machine, infrav1.FinalizerHost, controllerutil.RemoveFinalizer)
	}
	if why == "" {
		why = fmt.Sprintf("Host %s is being cleaned: %s", in.host.Name, readyMessage(in.host))
	}
	return status.Readiness{Reason: infrav1.ReasonReleasing, Message: why, Again: lookAgain}, nil
}
