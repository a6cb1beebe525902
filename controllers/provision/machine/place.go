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
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
)

// advance performs the next step for a machine. The steps are waiting for Cluster API, choosing a Host, claiming the
// Host, and giving it instructions.
//
// The provider ID is written before the Host is claimed. A machine therefore never claims two Hosts, even if the
// provisioner is killed at any point or its cache is outdated.
func (r *Reconciler) advance(ctx context.Context, in *input) (status.Readiness, error) {
	machine := in.machine
	if taken := in.host != nil && hosts.TakenBy(in.host, consumer(machine)); taken || machine.Status.HostName != "" {
		if !taken {
			return status.Readiness{Reason: infrav1.ReasonHostGone, Message: fmt.Sprintf("Host %s was deleted or given to another: let Cluster API replace the machine", machine.Status.HostName)}, nil
		}
		return r.bootstrap(ctx, in)
	}
	if v := waits(in); v.Reason != "" {
		return v, nil
	}
	data, manifest, v, err := r.content(ctx, in)
	if err != nil || v.Reason != "" {
		return v, err
	}
	if in.host == nil {
		if in.host, v, err = r.choose(ctx, in); err != nil || v.Reason != "" {
			return v, err
		}
	}
	if _, err := makeInstructions(bootstrapInput{string(machine.UID), in.host, data, in.owner.Spec.Version, manifest}); err != nil {
		return status.Readiness{Reason: infrav1.ReasonBootstrapRefused, Message: err.Error(), Again: lookAgain}, nil
	}
	if err := r.setProviderID(ctx, in, ProviderID(in.host)); err != nil {
		return status.Readiness{}, err
	}
	err = r.Take(ctx, in.host, consumer(machine))
	switch {
	case errors.Is(err, hosts.ErrNotFree):
		in.host = nil
		return status.Readiness{Reason: infrav1.ReasonNoHost, Message: "the Host that was chosen is no longer free", Again: lookAgain}, r.setProviderID(ctx, in, "")
	case err != nil: // the Host is read again even if it has changed in the meantime
		return status.Readiness{}, err
	}
	in.update.Event(status.Event{Reason: "HostTaken", Action: "Take", Message: "Took Host " + in.host.Name})
	return r.bootstrap(ctx, in)
}

// waits returns a readiness that says which step Cluster API has not completed yet. It has no side effects.
func waits(in *input) status.Readiness {
	switch {
	case in.owner == nil || in.cluster == nil:
		return status.Readiness{Reason: infrav1.ReasonWaitingForOwner, Message: "waiting for Cluster API to make a Machine of a Cluster the owner", Again: lookAgain}
	case !in.cluster.Status.Initialization.InfrastructureProvisioned:
		return status.Readiness{Reason: infrav1.ReasonWaitingForCluster, Message: "the infrastructure of the Cluster is not provisioned yet", Again: lookAgain}
	case in.owner.Spec.Bootstrap.DataSecretName == "":
		return status.Readiness{Reason: infrav1.ReasonWaitingForBootstrap, Message: "the bootstrap provider has not made its data yet", Again: lookAgain}
	}
	return status.Readiness{}
}

// content reads the bootstrap data. For the first control plane machine, it also reads the agent's manifest.
func (r *Reconciler) content(ctx context.Context, in *input) (data, manifest []byte, v status.Readiness, err error) {
	data, err = clusterapi.GetBootstrap(ctx, r.Live, in.owner)
	var refusal interface{ Refused() bool }
	switch {
	case errors.As(err, &refusal):
		return nil, nil, status.Readiness{Reason: infrav1.ReasonBootstrapRefused, Message: err.Error(), Again: lookAgain}, nil
	case apierrors.IsNotFound(err):
		return nil, nil, status.Readiness{Reason: infrav1.ReasonWaitingForBootstrap, Message: "the Secret with the bootstrap data does not exist", Again: lookAgain}, nil
	case err != nil:
		return nil, nil, v, err
	}
	if _, controlPlane := in.owner.Labels[clusterapi.LabelControlPlane]; !controlPlane {
		return data, nil, v, nil
	}
	name := types.NamespacedName{Namespace: in.machine.Namespace, Name: in.owner.Spec.ClusterName}
	cluster := &v1.Cluster{}
	if err := r.Client.Get(ctx, name, cluster); apierrors.IsNotFound(err) {
		return nil, nil, status.Readiness{Reason: infrav1.ReasonClusterMissing, Message: fmt.Sprintf("create a Cluster %s of cluster.drover.dev, through which Cluster API reaches the cluster", name.Name), Again: lookAgain}, nil
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
	if err != nil || !registration.Owned(secret, cluster) || len(secret.Data[registration.KeyManifest]) == 0 {
		return nil, nil, status.Readiness{Reason: infrav1.ReasonWaitingForCluster, Message: "the agent's manifest does not exist yet", Again: lookAgain}, nil
	}
	return data, secret.Data[registration.KeyManifest], v, nil
}

// choose returns an available Host for the machine.
func (r *Reconciler) choose(ctx context.Context, in *input) (*v1.Host, status.Readiness, error) {
	all, others := &v1.HostList{}, &infrav1.DroverMachineList{}
	if err := r.Client.List(ctx, all, client.InNamespace(in.machine.Namespace)); err != nil {
		return nil, status.Readiness{}, err
	}
	// The cache might not show yet which Host the previous machine claimed.
	if err := r.Live.List(ctx, others, client.InNamespace(in.machine.Namespace)); err != nil {
		return nil, status.Readiness{}, err
	}
	// Cluster API deletes a machine's Node by name after it has deleted the machine itself. The next machine on the
	// same Host must wait, because its Node would have the same name.
	leaving, err := clusterapi.ProviderIDs(ctx, r.Live, in.machine.Namespace)
	if err != nil {
		return nil, status.Readiness{}, err
	}
	isLeft := func(h v1.Host) bool { m := leaving[ProviderID(&h)]; return m != "" && m != in.owner.Name }
	free := slices.DeleteFunc(slices.Clone(all.Items), isLeft)
	host, why := pick(wanted{in.machine, in.domainLabel, in.owner.Spec.FailureDomain}, free, others.Items)
	if left := len(all.Items) - len(free); left > 0 {
		why = fmt.Sprintf("%s; %d Hosts still belong to Machines and are not considered", why, left)
	}
	if host == nil {
		return nil, status.Readiness{Reason: infrav1.ReasonNoHost, Message: why, Again: lookAgain}, nil
	}
	return host.DeepCopy(), status.Readiness{}, nil
}

// wanted contains a machine's requirements for its Host.
type wanted struct {
	machine *infrav1.DroverMachine
	// domainLabel is the label that contains the failure domain. domain is the failure domain that the Machine
	// requires, or empty if it requires none.
	domainLabel, domain string
}

// pick returns the first available Host, ordered by name, that meets a machine's requirements. If there is none, pick
// returns the reason. pick has no side effects.
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
	return nil, fmt.Sprintf("of %d Hosts, %d are selected and %d of these are free; %d are in another failure domain than the Machine's, and %d are too close to other machines of its group", len(all), selected, free, elsewhere, apart)
}

// group returns an identifier for a group of machines that must run on different hardware. A group is either the
// control plane of a cluster or a MachineDeployment.
func group(machine *infrav1.DroverMachine) string {
	_, controlPlane := machine.Labels[clusterapi.LabelControlPlane]
	return strings.Join([]string{machine.Labels[clusterapi.LabelCluster], machine.Labels[clusterapi.LabelDeployment], fmt.Sprint(controlPlane)}, "/")
}

// setProviderID writes the provider ID of the Host that the machine is about to claim. It fails if the machine has
// changed since it was read.
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

// bootstrap gives the Host its instructions, if it has none yet, and reports their progress.
func (r *Reconciler) bootstrap(ctx context.Context, in *input) (status.Readiness, error) {
	in.machine.Status.HostName = in.host.Name
	v := ofHost(in.machine, in.host)
	if provisioned(in.machine) && v.Reason != infrav1.ReasonHostGone {
		return r.work(ctx, in, v)
	}
	if v.Reason == infrav1.ReasonBootstrapFailed || v.Reason == infrav1.ReasonHostGone {
		return v, nil
	}
	// The instructions never change after they have been created, because the Host refuses changed instructions.
	given, _, err := r.Instructions(ctx, in.host)
	switch {
	case errors.Is(err, hosts.ErrForeignInstructions):
		return foreignInstructions(err), nil
	case err != nil || given != nil:
		return v, err
	}
	if w := waits(in); w.Reason != "" {
		return w, nil
	}
	data, manifest, w, err := r.content(ctx, in)
	if err != nil || w.Reason != "" {
		return w, err
	}
	instructions, err := makeInstructions(bootstrapInput{string(in.machine.UID), in.host, data, in.owner.Spec.Version, manifest})
	if err != nil {
		return status.Readiness{Reason: infrav1.ReasonBootstrapRefused, Message: err.Error(), Again: lookAgain}, nil
	}
	if _, err := r.Give(ctx, in.host, consumer(in.machine), *instructions); err != nil {
		return status.Readiness{}, err
	}
	return status.Readiness{Reason: infrav1.ReasonBootstrapping, Message: fmt.Sprintf("Host %s was given the bootstrap", in.host.Name)}, nil
}

// foreignInstructions returns a machine's readiness if Drover did not create the Secret with the name of the Host's
// instructions. The content of such a Secret is not used.
func foreignInstructions(err error) status.Readiness {
	return status.Readiness{Stalled: true, Reason: infrav1.ReasonSecretConflict, Message: err.Error(), Again: lookAgain}
}
