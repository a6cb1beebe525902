// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package installation reconciles ClusterInstallation.
//
// It claims Hosts, gives them the instructions that internal/provision/k3s determines, and releases the Hosts.
package installation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/etcd"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/hub"
	"github.com/drover-dev/drover/internal/provision/k3s"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/status"
)

// Kind is the value of spec.consumerRef.kind in Hosts that a ClusterInstallation has claimed.
const Kind = "ClusterInstallation"

// lookAgain is the interval at which an installation is checked even if no event occurs. It is needed because users'
// Secrets are not watched.
const lookAgain = 5 * time.Minute

// soon is the delay before an installation is checked again after a write that the cache might not contain yet.
const soon = time.Second

// lostTime is how long a one-time task, such as a snapshot, waits for a disconnected Host before it fails.
const lostTime = 10 * time.Minute

// leaveTime is how long the deletion of an installation waits for disconnected Hosts.
const leaveTime = 20 * time.Second

// Reconciler reconciles ClusterInstallations.
type Reconciler struct {
	hosts.Hub
	Recorder events.EventRecorder
	Now      func() time.Time

	written status.Written[*provisionv1.ClusterInstallation]
}

type input struct {
	installation *provisionv1.ClusterInstallation
	update       *status.Update
	cluster      *v1.Cluster // nil if it does not exist
	hosts        map[string]*v1.Host
	given        map[string]hosts.Given // instruction Secrets of the claimed Hosts
	etcd         etcd.Objects
	progress     progress.All      // progress of etcd; empty until the decision has been stored
	refused      *status.Readiness // reason why the spec cannot be applied; nil if the spec can be applied
	former       []*v1.Host        // Hosts that a former installation with this name claimed
	unreadable   map[string]error  // Hosts whose instructions cannot be read and that are therefore left unchanged
	store        *store
	decide       roster.Input
	decision     decision.Decision // empty if no decision was made
	now          time.Time
}

// newInput returns the input for an installation before any other object has been read.
func (r *Reconciler) newInput(object *provisionv1.ClusterInstallation) *input {
	return &input{
		installation: object, now: r.Now(), hosts: map[string]*v1.Host{}, given: map[string]hosts.Given{},
		unreadable: map[string]error{},
	}
}

// Reconcile performs the next step for an installation and writes the installation's status.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (_ ctrl.Result, err error) {
	object, found, err := r.written.Get(ctx, r.Client, req.NamespacedName, &provisionv1.ClusterInstallation{})
	if err != nil {
		return ctrl.Result{}, err
	} else if !found {
		return ctrl.Result{}, r.absent(ctx, req.NamespacedName)
	}
	if object.DeletionTimestamp.IsZero() && !slices.Contains(object.Finalizers, provisionv1.FinalizerHosts) {
		return ctrl.Result{}, owned.SetFinalizer(ctx, r.Client, object, provisionv1.FinalizerHosts, controllerutil.AddFinalizer)
	}
	in := r.newInput(object)
	// If this fails, no status is written. It fails only during outages, because the provisioner always has the right
	// to list these objects.
	if err := r.gatherEtcd(ctx, in); err != nil {
		return ctrl.Result{}, err
	}
	in.update = status.Begin(object)
	defer func() {
		err = errors.Join(err, r.written.Commit(ctx, r.output(), in.update),
			etcd.Write(ctx, r.output(), in.etcd, in.progress))
	}()
	step := r.advance
	if !object.DeletionTimestamp.IsZero() {
		step = r.remove
	}
	decided, err := step(ctx, in)
	if denied := hub.NotPermitted(ctx, r.Live, req.Namespace, err); denied != nil {
		decided, err = *denied, nil
		in.progress = in.waits(denied.Message)
	}
	if apierrors.IsConflict(err) { // another object claimed the Host, or the cache is outdated
		return ctrl.Result{RequeueAfter: soon}, nil
	} else if err != nil {
		return ctrl.Result{}, err
	}
	writeStatus(in, decided)
	return ctrl.Result{RequeueAfter: cmp.Or(decided.Again, lookAgain)}, nil
}

func (r *Reconciler) output() status.Output {
	return status.Output{Client: r.Client, Recorder: r.Recorder}
}

// consumer returns the value of spec.consumerRef for a Host that an installation claims.
func consumer(i *provisionv1.ClusterInstallation) v1.HostConsumerRef {
	return v1.HostConsumerRef{APIVersion: provisionv1.GroupVersion.String(), Kind: Kind, Name: i.Name, UID: i.UID}
}

// advance makes a decision and carries it out. It stores the decision before it writes anything that depends on the
// decision.
func (r *Reconciler) advance(ctx context.Context, in *input) (status.Readiness, error) {
	why, err := r.gather(ctx, in)
	if err != nil {
		return status.Readiness{}, err
	} else if why != nil {
		in.progress = in.waits(why.Message)
		return *why, nil
	}
	d, err := k3s.Decide(in.decide)
	if err == nil {
		err = r.configure(ctx, in, &d)
	}
	if err == nil {
		err = r.save(ctx, in, d.Stored)
	}
	if err != nil {
		return status.Readiness{}, err
	}
	in.progress = d.Etcd
	failed, err := r.act(ctx, in, d)
	if err != nil {
		return status.Readiness{}, err
	}
	in.decision = d
	if in.refused != nil && d.Restore.Step == "" {
		return *in.refused, nil
	}
	for name, err := range failed {
		d.Waiting[name] = "cannot be changed: " + err.Error()
	}
	v := judge(in, d)
	if len(failed) > 0 {
		v.Again = cmp.Or(v.Again, leaveTime)
	}
	return v, nil
}

// act carries out a stored decision. If it cannot change a host, it continues with the other hosts. It returns the
// errors by host name.
func (r *Reconciler) act(ctx context.Context, in *input, d decision.Decision) (map[string]error, error) {
	me, failed := consumer(in.installation), maps.Clone(in.unreadable)
	var conflict error
	note := func(host string, err error) {
		if apierrors.IsConflict(err) {
			conflict = err
		} else if err != nil {
			failed[host] = err
		}
	}
	for _, host := range in.former {
		_, err := r.ReleaseFormer(ctx, host.DeepCopy())
		note(host.Name, err)
	}
	for _, name := range d.Release {
		if in.unreadable[name] != nil {
			continue
		}
		_, err := r.Release(ctx, in.hosts[name].DeepCopy(), me)
		note(name, err)
	}
	for _, name := range d.Take {
		note(name, r.Take(ctx, in.hosts[name].DeepCopy(), me))
	}
	for _, host := range in.decide.Hosts {
		if next := d.Instructions[host.Name]; next != nil && in.unreadable[host.Name] == nil {
			note(host.Name, r.give(ctx, in, host, next))
		}
	}
	return failed, conflict
}

func (r *Reconciler) give(ctx context.Context, in *input, host roster.Host, next *distribution.Instructions) error {
	held, err := json.Marshal(next.Held)
	if err != nil {
		return err
	}
	set, err := r.GiveWithNote(ctx, in.hosts[host.Name], consumer(in.installation), in.given[host.Name],
		hosts.Noted{HostInstructions: next.HostInstructions, Note: string(held)})
	if set && host.Held == nil {
		in.update.Event(status.Event{Reason: "HostJoins", Action: "Join", Message: fmt.Sprintf("Host %s joins as %s", host.Name, next.Roles)})
	} else if set && host.Held.Start != next.Start {
		in.update.Event(status.Event{Reason: "HostChanges", Action: "Change", Message: fmt.Sprintf("Host %s is changed to %s", host.Name, next.Version)})
	}
	return err
}

// remove releases the Hosts and then removes the finalizer from the installation. A disconnected Host stays claimed
// until its agent has reconnected and has cleaned the machine.
func (r *Reconciler) remove(ctx context.Context, in *input) (status.Readiness, error) {
	in.progress = in.waits("it is being deleted")
	if !slices.Contains(in.installation.Finalizers, provisionv1.FinalizerHosts) {
		return status.Readiness{Reason: provisionv1.ReasonGivingBack, Message: "the hosts are given back"}, nil
	}
	if err := r.getCluster(ctx, in); err != nil {
		return status.Readiness{}, err
	}
	list := &v1.HostList{}
	if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
		return status.Readiness{}, err
	}
	holds := slices.ContainsFunc(list.Items, func(h v1.Host) bool { return hosts.TakenBy(&h, consumer(in.installation)) })
	if holds && in.cluster != nil && in.cluster.Spec.DeletionProtection {
		return status.Readiness{Stalled: true, Reason: provisionv1.ReasonDeletionProtected, Message: "Cluster " + in.cluster.Name + " has deletionProtection: giving the hosts back would destroy it"}, nil
	}
	left, away := 0, 0
	for i := range list.Items {
		host := &list.Items[i]
		done, err := r.Release(ctx, host.DeepCopy(), consumer(in.installation))
		switch {
		case errors.Is(err, hosts.ErrForeignInstructions): // a user created the instructions, so the Host stays claimed
		case err != nil:
			return status.Readiness{}, err
		case !done && !connected(host) && in.now.After(in.installation.DeletionTimestamp.Add(leaveTime)):
			away++
		case !done:
			left++
		}
	}
	if left > 0 {
		return status.Readiness{Reason: provisionv1.ReasonGivingBack, Message: fmt.Sprintf("%d hosts are being cleaned", left), Again: 5 * time.Second}, nil
	}
	if away > 0 {
		in.update.Event(status.Event{Warning: true, Reason: "HostsAway", Action: "Release", Message: fmt.Sprintf(
			"%d Hosts are not connected. They stay claimed until their agents connect and have cleaned them", away)})
	}
	return status.Readiness{Reason: provisionv1.ReasonGivingBack, Message: "the hosts are given back"}, owned.SetFinalizer(ctx, r.Client, in.installation, provisionv1.FinalizerHosts, controllerutil.RemoveFinalizer)
}

// absent handles the Hosts, snapshots and restores of an installation that is not in the cache.
func (r *Reconciler) absent(ctx context.Context, name types.NamespacedName) error {
	present := &provisionv1.ClusterInstallation{} // the cache might not contain a new installation yet
	if err := r.Live.Get(ctx, name, present); !apierrors.IsNotFound(err) {
		return err
	}
	return errors.Join(r.releaseFormer(ctx, name), r.refuseEtcd(ctx, name))
}

// releaseFormer releases Hosts that a former installation with this name claimed. They were disconnected when that
// installation was deleted.
func (r *Reconciler) releaseFormer(ctx context.Context, name types.NamespacedName) error {
	list := &v1.HostList{}
	if err := r.Client.List(ctx, list, client.InNamespace(name.Namespace)); err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		if host := list.Items[i].DeepCopy(); takenByName(host, name.Name) {
			if _, err := r.ReleaseFormer(ctx, host); !errors.Is(err, hosts.ErrForeignInstructions) && !errors.Is(err, hosts.ErrFormerInstructions) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// takenByName reports whether a current or former installation with the given name has claimed a Host.
func takenByName(host *v1.Host, name string) bool {
	ref := host.Spec.ConsumerRef
	return ref != nil && ref.Kind == Kind && ref.APIVersion == provisionv1.GroupVersion.String() && ref.Name == name
}

// Handler enqueues the installations that a change to a Host, Cluster, snapshot or restore may affect. A change to an
// available Host may affect all installations in the Host's namespace.
func (r *Reconciler) Handler() handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, object client.Object) []reconcile.Request {
		switch of := object.(type) {
		case *provisionv1.EtcdSnapshot:
			return requestOf(of.Namespace, of.Spec.ClusterRef)
		case *provisionv1.EtcdRestore:
			return requestOf(of.Namespace, of.Spec.ClusterRef)
		}
		host, isHost := object.(*v1.Host)
		if isHost && host.Spec.ConsumerRef != nil {
			if host.Spec.ConsumerRef.Kind != Kind {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: host.Namespace, Name: host.Spec.ConsumerRef.Name}}}
		}
		list := &provisionv1.ClusterInstallationList{}
		if r.Client.List(ctx, list, client.InNamespace(object.GetNamespace())) != nil {
			return nil // installations are checked again anyway
		}
		var all []reconcile.Request
		for i := range list.Items {
			if isHost || list.Items[i].Spec.ClusterName == object.GetName() {
				all = append(all, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
			}
		}
		return all
	})
}

// requestOf returns a request for an installation. It returns no request if ref refers to another kind of cluster.
func requestOf(namespace string, ref provisionv1.EtcdClusterRef) []reconcile.Request {
	if ref.Kind != provisionv1.EtcdOfInstallation {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: namespace, Name: ref.Name}}}
}

func selectors(pools []provisionv1.HostPool) (all []selector, err error) {
	for i := range pools {
		s, err := metav1.LabelSelectorAsSelector(&pools[i].Selector)
		if err != nil {
			return nil, fmt.Errorf("the selector of pool %s: %w", pools[i].Name, err)
		}
		all = append(all, s)
	}
	return all, nil
}
