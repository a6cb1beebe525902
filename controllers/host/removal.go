// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// inUse returns the finalizers of other controllers that use the Host. If the machine is part of a cluster, the machine
// is not cleaned until its node has been removed from the cluster.
func (in *input) inUse() (others []string) {
	for _, f := range in.host.Finalizers {
		if f != v1.FinalizerUninstall && f != metav1.FinalizerDeleteDependents && f != metav1.FinalizerOrphanDependents {
			others = append(others, f)
		}
	}
	return others
}

// remove cleans the machine, uninstalls the agent, and removes the finalizer from the Host. A machine that is not
// connected is left unchanged.
func (r *Reconciler) remove(ctx context.Context, in *input, update *status.Update) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(in.host, v1.FinalizerUninstall) {
		return ctrl.Result{}, nil
	}
	setRemoving(in.host, "the Host is being deleted")
	if in.host.Spec.DeletionPolicy == v1.HostOrphan || in.identity == nil {
		return ctrl.Result{}, r.release(ctx, in)
	}
	report := in.report()
	switch due := in.host.DeletionTimestamp.Add(removalTime); {
	case report == nil && (!r.Settled() || in.now.Before(due)):
		return ctrl.Result{RequeueAfter: max(due.Sub(in.now), time.Second)}, nil
	case report == nil:
		update.Event(status.Event{Warning: true, Reason: v1.ReasonLeftBehind, Action: "Remove", Message: "the agent is not connected: everything on the machine was left there and continues to run; switch the machine off if it was a node"})
		return ctrl.Result{}, r.release(ctx, in)
	case report.Progress.Version != "":
		return r.clean(in, report), nil
	}
	call := r.Members.StartUninstall(in.member)
	if !call.Done() {
		if call.Err != nil && !errors.Is(call.Err, members.ErrNotConnected) {
			setRemoving(in.host, "the agent did not remove itself:  "+call.Err.Error())
		}
		return ctrl.Result{RequeueAfter: members.CallPause}, nil
	}
	update.Event(status.Event{Reason: v1.ReasonUninstalled, Action: "Remove", Message: "the machine was cleaned and the agent removed itself"})
	return ctrl.Result{}, r.release(ctx, in)
}

// clean removes the instructions from the host and waits until the host is clean.
func (r *Reconciler) clean(in *input, report *protocol.HostReport) ctrl.Result {
	if report.Progress.Phase != protocol.HostCleaning {
		r.give(in, "", nil) // needs no confirmation, because deleting a Host cannot be undone anyway
	}
	in.host.Status.State, in.host.Status.Progress = v1.HostCleaning, shown(&report.Progress)
	setRemoving(in.host, "the machine is being cleaned")
	if failed(report.Progress.Phase) {
		setRemoving(in.host, fmt.Sprintf(
			"the machine cannot be cleaned: %s; repair it, or set spec.deletionPolicy to Orphan", problem(report.Progress)))
	}
	return ctrl.Result{RequeueAfter: members.CallPause}
}

func (r *Reconciler) release(ctx context.Context, in *input) error {
	err := owned.SetFinalizer(ctx, r.Client, in.host, v1.FinalizerUninstall, controllerutil.RemoveFinalizer)
	if err == nil {
		r.Members.Forget(in.member)
	}
	return err
}

// Revoker closes tunnels to this replica that do not belong to the current agent of their Host. It runs on every
// replica.
type Revoker struct {
	// Client reads from the cache. Live reads from the API server, so that an outdated cache never causes a tunnel to
	// be closed.
	Client  client.Reader
	Live    client.Reader
	Tunnels *members.Tunnels
}

// Reconcile closes a Host's tunnels that do not belong to the Host's current agent.
func (r *Revoker) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	member := Member(req.NamespacedName)
	peers := r.Tunnels.Local(member)
	if len(peers) == 0 {
		return ctrl.Result{}, nil
	}
	var keep func(members.Peer) bool
	for _, reader := range []client.Reader{r.Client, r.Live} {
		var err error
		if keep, err = rightful(ctx, reader, req.NamespacedName); err != nil {
			return ctrl.Result{}, err
		}
		if !slices.ContainsFunc(peers, func(p members.Peer) bool { return !keep(p) }) {
			return ctrl.Result{}, nil
		}
	}
	r.Tunnels.Disconnect(member, keep)
	return ctrl.Result{RequeueAfter: time.Second}, nil
}

// rightful returns a function that reports whether a tunnel belongs to a Host's agent. If the Host is gone, the
// function always returns false.
func rightful(ctx context.Context, reader client.Reader, name types.NamespacedName) (func(members.Peer) bool, error) {
	host := &v1.Host{}
	if err := reader.Get(ctx, name, host); apierrors.IsNotFound(err) {
		return func(members.Peer) bool { return false }, nil
	} else if err != nil {
		return nil, fmt.Errorf("look up host %s: %w", name, err)
	}
	id, err := registration.AgentOf(ctx, reader, host)
	return func(p members.Peer) bool {
		return id != nil && p.Key == registration.KeyID(id.PublicKey) && p.Cluster.UID == string(host.UID)
	}, err
}

func setRemoving(host *v1.Host, message string) {
	status.Readiness{Reason: v1.ReasonRemoving, Message: message}.Write(host.Generation, &host.Status.ObservedGeneration, &host.Status.Conditions)
}
