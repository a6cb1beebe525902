// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterapi"
	"github.com/drover-dev/drover/internal/hosts"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// advance takes a machine one step further: wait for Cluster API, choose a Host, take it, give it the plan.
//
// The provider ID is written before the Host is taken. So a machine never takes two, whenever the manager is killed and however far its cache lags behind.
func (r *Reconciler) advance(ctx context.Context, in *input) (verdict, error) {
	machine := in.machine
	if taken := in.host != nil && hosts.TakenBy(in.host, consumer(machine)); taken || machine.Status.HostName != "" {
		if !taken {
			return verdict{reason: infrav1.ReasonHostGone, message: fmt.Sprintf("Host %s was deleted or given to another: let Cluster API replace the machine", machine.Status.HostName)}, nil
		}
		return r.bootstrap(ctx, in)
	}
	if v := waits(in); v.reason != "" {
		return v, nil
	}
	data, manifest, v, err := r.content(ctx, in)
	if err != nil || v.reason != "" {
		return v, err
	}
	if in.host == nil {
		if in.host, v, err = r.choose(ctx, in); err != nil || v.reason != "" {
			return v, err
		}
	}
	if _, err := makePlan(planInput{string(machine.UID), in.host, data, manifest}); err != nil {
		return verdict{infrav1.ReasonBootstrapRefused, err.Error(), lookAgain}, nil
	}
	if err := r.setProviderID(ctx, in, ProviderID(in.host)); err != nil {
		return verdict{}, err
	}
	err = r.hub().Take(ctx, in.host, consumer(machine))
	switch {
	case errors.Is(err, hosts.ErrNotFree):
		in.host = nil
		return verdict{infrav1.ReasonNoHost, "the Host that was chosen is no longer free", lookAgain}, r.setProviderID(ctx, in, "")
	case err != nil: // also one that was changed meanwhile: it is read again
		return verdict{}, err
	}
	in.update.Event(status.Event{Reason: "HostTaken", Action: "Take", Message: "Took Host " + in.host.Name})
	return r.bootstrap(ctx, in)
}

// waits says what Cluster API has not done yet. It is pure.
func waits(in *input) verdict {
	switch {
	case in.owner == nil || in.cluster == nil:
		return verdict{infrav1.ReasonWaitingForOwner, "waiting for Cluster API to make a Machine of a Cluster the owner", lookAgain}
	case !in.cluster.Status.Initialization.InfrastructureProvisioned:
		return verdict{infrav1.ReasonWaitingForCluster, "the infrastructure of the Cluster is not provisioned yet", lookAgain}
	case in.owner.Spec.Bootstrap.DataSecretName == "":
		return verdict{infrav1.ReasonWaitingForBootstrap, "the bootstrap provider has not made its data yet", lookAgain}
	}
	return verdict{}
}

// content reads the bootstrap data, and the agent's manifest for the first machine of a control plane.
func (r *Reconciler) content(ctx context.Context, in *input) (data, manifest []byte, v verdict, err error) {
	data, err = clusterapi.GetBootstrap(ctx, r.Live, in.owner)
	var refusal interface{ Refused() bool }
	switch {
	case errors.As(err, &refusal):
		return nil, nil, verdict{infrav1.ReasonBootstrapRefused, err.Error(), lookAgain}, nil
	case apierrors.IsNotFound(err):
		return nil, nil, verdict{infrav1.ReasonWaitingForBootstrap, "the Secret with the bootstrap data is not there", lookAgain}, nil
	case err != nil:
		return nil, nil, v, err
	}
	if _, controlPlane := in.owner.Labels[clusterapi.LabelControlPlane]; !controlPlane {
		return data, nil, v, nil
	}
	name := types.NamespacedName{Namespace: in.machine.Namespace, Name: in.owner.Spec.ClusterName}
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, name, cluster); apierrors.IsNotFound(err) {
		return nil, nil, verdict{infrav1.ReasonClusterMissing, fmt.Sprintf("make a Cluster %s of cluster.drover.dev, which Cluster API reaches the cluster through", name.Name), lookAgain}, nil
	} else if err != nil {
		return nil, nil, v, err
	}
	if meta.IsStatusConditionTrue(cluster.Status.Conditions, v1.ConditionRegistered) {
		return data, nil, v, nil
	}
	secret := &corev1.Secret{}
	err = r.Live.Get(ctx, registration.RegistrationSecret(name), secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, nil, v, err
	}
	if err != nil || !registration.Ours(secret, name.Name, v1.SecretKindRegistration) || len(secret.Data[registration.KeyManifest]) == 0 {
		return nil, nil, verdict{infrav1.ReasonWaitingForCluster, "the agent's manifest is not there yet", lookAgain}, nil
	}
	return data, secret.Data[registration.KeyManifest], v, nil
}

// choose returns a free Host that the machine may be.
func (r *Reconciler) choose(ctx context.Context, in *input) (*v1.Host, verdict, error) {
	all, others := &v1.HostList{}, &infrav1.DroverMachineList{}
	if err := r.Client.List(ctx, all, client.InNamespace(in.machine.Namespace)); err != nil {
		return nil, verdict{}, err
	}
	// Not from the cache: the Host of the machine before may not be in it.
	if err := r.Live.List(ctx, others, client.InNamespace(in.machine.Namespace)); err != nil {
		return nil, verdict{}, err
	}
	// Cluster API deletes the Node of a machine after the machine: by its name, which the next machine on that Host has, too.
	leaving, err := clusterapi.ProviderIDs(ctx, r.Live, in.machine.Namespace)
	if err != nil {
		return nil, verdict{}, err
	}
	isLeft := func(h v1.Host) bool { m := leaving[ProviderID(&h)]; return m != "" && m != in.owner.Name }
	free := slices.DeleteFunc(slices.Clone(all.Items), isLeft)
	host, why := pick(wanted{in.machine, in.domainLabel, in.owner.Spec.FailureDomain}, free, others.Items)
	if left := len(all.Items) - len(free); left > 0 {
		why = fmt.Sprintf("%s; Hosts of Machines that are there are not looked at: %d", why, left)
	}
	if host == nil {
		return nil, verdict{infrav1.ReasonNoHost, why, lookAgain}, nil
	}
	return host.DeepCopy(), verdict{}, nil
}

// wanted is what a machine asks of a Host.
type wanted struct {
	machine *infrav1.DroverMachine
	// domainLabel is the label with the failure domain, and domain the one that the Machine must be in; empty for any.
	domainLabel, domain string
}

// pick returns the first free Host, by name, that a machine may be, or why there is none. It is pure.
func pick(want wanted, all []v1.Host, machines []infrav1.DroverMachine) (*v1.Host, string) {
	selector, err := metav1.LabelSelectorAsSelector(want.machine.Spec.HostSelector)
	if err != nil {
		return nil, "spec.hostSelector is not valid: " + err.Error()
	}
	if want.machine.Spec.HostSelector == nil {
		selector = labels.Everything()
	}
	named := map[string]*v1.Host{}
	selected := 0
	for i := range all {
		named[ProviderID(&all[i])] = &all[i]
		if selector.Matches(labels.Set(all[i].Labels)) {
			selected++
		}
	}
	claimed, used := map[string]bool{}, map[string]bool{}
	for i := range machines {
		other := &machines[i]
		if other.Spec.ProviderID == "" || other.UID == want.machine.UID {
			continue
		}
		claimed[other.Spec.ProviderID] = true
		if host := named[other.Spec.ProviderID]; host != nil && want.machine.Spec.AntiAffinity != nil && group(other) == group(want.machine) {
			used[host.Labels[want.machine.Spec.AntiAffinity.TopologyKey]] = true
		}
	}
	free, apart, elsewhere := 0, 0, 0
	for _, host := range hosts.Free(all, selector) {
		if claimed[ProviderID(host)] {
			continue
		}
		free++
		if want.domain != "" && want.domainLabel != "" && host.Labels[want.domainLabel] != want.domain {
			elsewhere++
			continue
		}
		if rule := want.machine.Spec.AntiAffinity; rule != nil && (host.Labels[rule.TopologyKey] == "" || used[host.Labels[rule.TopologyKey]]) {
			apart++
			continue
		}
		return host, ""
	}
	return nil, fmt.Sprintf("of %d Hosts, %d are selected and %d of these are free; %d are in another failure domain than the Machine's and %d too near to others of its group", len(all), selected, free, elsewhere, apart)
}

// group returns what machines share that are kept apart: their cluster, and whether they are its control plane or of which MachineDeployment.
func group(machine *infrav1.DroverMachine) string {
	_, controlPlane := machine.Labels[clusterapi.LabelControlPlane]
	return strings.Join([]string{machine.Labels[clusterapi.LabelCluster], machine.Labels[clusterapi.LabelDeployment], fmt.Sprint(controlPlane)}, "/")
}

// setProviderID writes the Host that the machine is about to take, unless another writer was faster.
func (r *Reconciler) setProviderID(ctx context.Context, in *input, id string) error {
	if in.machine.Spec.ProviderID == id {
		return nil
	}
	patched := in.machine.DeepCopy()
	patched.Spec.ProviderID = id
	if err := r.Client.Patch(ctx, patched, client.MergeFromWithOptions(in.machine, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write the provider ID of DroverMachine %s: %w", in.machine.Name, err)
	}
	state := in.machine.Status
	patched.DeepCopyInto(in.machine)
	in.machine.Status = state
	return nil
}

// bootstrap gives the Host its plan, once, and says how far it is.
func (r *Reconciler) bootstrap(ctx context.Context, in *input) (verdict, error) {
	in.machine.Status.HostName = in.host.Name
	v := ofHost(in.machine, in.host)
	if provisioned(in.machine) && v.reason != infrav1.ReasonHostGone {
		return r.work(ctx, in, v)
	}
	if v.reason == infrav1.ReasonBootstrapFailed || v.reason == infrav1.ReasonHostGone {
		return v, nil
	}
	// Once made, the plan stays as it is: an instruction that changed would be refused.
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: in.host.Namespace, Name: in.host.Name + v1.HostPlanSecretSuffix}, &corev1.Secret{})
	if !apierrors.IsNotFound(err) {
		return v, err
	}
	if w := waits(in); w.reason != "" {
		return w, nil
	}
	data, manifest, w, err := r.content(ctx, in)
	if err != nil || w.reason != "" {
		return w, err
	}
	plan, err := makePlan(planInput{string(in.machine.UID), in.host, data, manifest})
	if err != nil {
		return verdict{infrav1.ReasonBootstrapRefused, err.Error(), lookAgain}, nil
	}
	if _, err := r.hub().SetPlan(ctx, in.host, consumer(in.machine), *plan); err != nil {
		return verdict{}, err
	}
	return verdict{reason: infrav1.ReasonBootstrapping, message: fmt.Sprintf("Host %s was given the bootstrap", in.host.Name)}, nil
}
