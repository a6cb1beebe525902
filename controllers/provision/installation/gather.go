// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/provision/hosts"
	"github.com/drover-dev/drover/internal/provision/k3s"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
	"github.com/drover-dev/drover/internal/provision/schedule"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/status"
	"github.com/drover-dev/drover/internal/untrusted"
)

type selector = labels.Selector

// Keys in the Secrets that a ClusterInstallation uses.
const (
	keyState      = "state.json"
	keyRegistries = "registries.yaml"
	keyAccess     = "accessKey"
	keySecret     = "secretKey"
	keyCA         = "ca.crt"
)

// labelInstallation is a label on the Secret of an installation. Its value is the installation's name.
const labelInstallation = provisionv1.Group + "/installation"

// store holds the Secret that stores the decisions that must be made only once.
type store struct {
	secret *corev1.Secret // nil if it does not exist
	stored roster.Stored
}

// gather reads everything that a decision depends on. If an object is missing or invalid, the returned readiness
// describes it. Otherwise, the readiness is nil.
func (r *Reconciler) gather(ctx context.Context, in *input) (*status.Readiness, error) {
	in.wantEtcd()
	spec := &in.installation.Spec
	in.decide.Spec.ClusterInstallationSpec, in.decide.Generation = *spec, in.installation.Generation
	var err error
	if in.decide.Spec.Selectors, err = selectors(spec.Pools); err != nil {
		return invalid(err.Error()), nil
	}
	if spec.Config != nil {
		if in.decide.Spec.Config, err = k3s.CheckConfig(spec.Distribution, "spec.config", spec.Config.Raw); err != nil {
			return invalid(err.Error()), nil
		}
	}
	if spec.ServerConfig != nil {
		if in.decide.Spec.ServerConfig, err = k3s.CheckConfig(spec.Distribution, "spec.serverConfig", spec.ServerConfig.Raw); err != nil {
			return invalid(err.Error()), nil
		}
	}
	for _, read := range []func(context.Context, *input) (*status.Readiness, error){r.gatherStored, r.gatherCluster, r.gatherSecrets} {
		if v, err := read(ctx, in); v != nil || err != nil {
			return v, err
		}
	}
	if err := r.gatherHosts(ctx, in); err != nil {
		return nil, err
	}
	in.decide.Now = in.now.Unix()
	for _, err := range []error{roster.CheckVersion(in.decide), k3s.CheckSpec(in.decide.Spec), checkSchedule(spec)} {
		if err != nil { // a restore may solve the problem
			in.refused, in.decide.Refused = invalid(err.Error()), true
			break
		}
	}
	return nil, nil
}

// checkSchedule rejects a schedule that cannot be parsed. With such a schedule, k3s and RKE2 would take no snapshots,
// and would report this only in their logs.
func checkSchedule(spec *provisionv1.ClusterInstallationSpec) error {
	if spec.Etcd.Schedule == "" {
		return nil
	}
	if _, err := schedule.Parse(spec.Etcd.Schedule); err != nil {
		return fmt.Errorf("no snapshots of etcd would be made: spec.etcd.schedule: %w", err)
	}
	return nil
}

func invalid(message string) *status.Readiness {
	return &status.Readiness{Stalled: true, Reason: provisionv1.ReasonSpecInvalid, Message: message}
}

func (r *Reconciler) getCluster(ctx context.Context, in *input) error {
	cluster := &v1.Cluster{}
	err := r.Client.Get(ctx, in.named(in.installation.Spec.ClusterName), cluster)
	if err == nil {
		in.cluster = cluster
	}
	return client.IgnoreNotFound(err)
}

func (in *input) named(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: in.installation.Namespace, Name: name}
}

// gatherCluster reads the Cluster. If no agent has joined, it also reads the agent's manifest.
func (r *Reconciler) gatherCluster(ctx context.Context, in *input) (*status.Readiness, error) {
	if err := r.getCluster(ctx, in); err != nil {
		return nil, err
	}
	name := in.named(in.installation.Spec.ClusterName)
	if in.cluster == nil {
		return &status.Readiness{Reason: provisionv1.ReasonClusterMissing, Message: "there is no Cluster " + name.Name + ": create it beside the installation"}, nil
	}
	if other, err := r.olderOf(ctx, in); err != nil || other != "" {
		return &status.Readiness{Stalled: true, Reason: provisionv1.ReasonClusterTaken, Message: fmt.Sprintf("ClusterInstallation %s already makes the Cluster %s, and only one can", other, name.Name)}, err
	}
	agent, secret := &corev1.Secret{}, &corev1.Secret{}
	err := r.Live.Get(ctx, registration.AgentSecret(name), agent)
	switch joined := err == nil && registration.Ours(agent, name.Name, v1.SecretKindAgent); {
	case client.IgnoreNotFound(err) != nil:
		return nil, err
	case joined && in.decide.Stored.First == "":
		return &status.Readiness{Stalled: true, Reason: provisionv1.ReasonClusterTaken, Message: fmt.Sprintf(
			"Cluster %s has an agent already, in a cluster that this installation did not make: name a Cluster of its own", name.Name)}, nil
	case joined:
		return nil, nil
	}
	err = r.Live.Get(ctx, registration.RegistrationSecret(name), secret)
	// without this check, the servers could apply a manifest from another user with full rights
	if err == nil && !registration.Ours(secret, name.Name, v1.SecretKindRegistration) {
		return &status.Readiness{Stalled: true, Reason: provisionv1.ReasonSecretConflict, Message: fmt.Sprintf("Secret %s exists and is not Drover's: rename or delete it", secret.Name), Again: soon}, nil
	}
	if apierrors.IsNotFound(err) || err == nil && (!registration.Owned(secret, in.cluster) || len(secret.Data[registration.KeyManifest]) == 0) {
		return &status.Readiness{Reason: provisionv1.ReasonClusterMissing, Message: "waiting for the manifest of the agent of Cluster " + name.Name, Again: soon}, nil
	}
	in.decide.Manifest = secret.Data[registration.KeyManifest]
	return nil, err
}

// olderOf returns the name of an older installation that refers to the same Cluster, or "" if there is none.
func (r *Reconciler) olderOf(ctx context.Context, in *input) (string, error) {
	list := &provisionv1.ClusterInstallationList{}
	if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
		return "", err
	}
	me := in.installation
	for i := range list.Items {
		other := &list.Items[i]
		age := other.CreationTimestamp.Compare(me.CreationTimestamp.Time)
		if other.Spec.ClusterName == me.Spec.ClusterName && (age < 0 || age == 0 && other.Name < me.Name) {
			return other.Name, nil
		}
	}
	return "", nil
}

// gatherSecrets reads the Secrets that the spec refers to.
func (r *Reconciler) gatherSecrets(ctx context.Context, in *input) (*status.Readiness, error) {
	spec := in.installation.Spec
	if spec.RegistriesSecretName != "" {
		data, v, err := r.usable(ctx, in.named(spec.RegistriesSecretName), "spec.registriesSecretName", keyRegistries)
		if v != nil || err != nil {
			return v, err
		}
		in.decide.Registries = data[keyRegistries]
	}
	if s3 := spec.Etcd.S3; s3 != nil && s3.CredentialsSecretName != "" {
		data, v, err := r.usable(ctx, in.named(s3.CredentialsSecretName), "spec.etcd.s3.credentialsSecretName", keyAccess, keySecret)
		if v != nil || err != nil {
			return v, err
		}
		if ca := data[keyCA]; len(ca) > 0 && !x509.NewCertPool().AppendCertsFromPEM(ca) {
			return invalid(fmt.Sprintf("%s of Secret %s has no certificate that can be read: give the CA of the object store as PEM", keyCA, s3.CredentialsSecretName)), nil
		}
		// The values of a Secret that was created from files end with a line feed.
		in.decide.S3 = roster.S3Credentials{AccessKey: strings.TrimSpace(string(data[keyAccess])), SecretKey: strings.TrimSpace(string(data[keySecret])), CA: data[keyCA]}
	}
	return nil, nil
}

// usable reads the Secret that a field refers to. The Secret must contain the keys and must be labeled for
// installations.
func (r *Reconciler) usable(ctx context.Context, name types.NamespacedName, field string, keys ...string) (map[string][]byte, *status.Readiness, error) {
	secret := &corev1.Secret{}
	err := r.Live.Get(ctx, name, secret)
	switch {
	case apierrors.IsNotFound(err):
		return nil, invalid(fmt.Sprintf("there is no Secret %s, which %s names", name.Name, field)), nil
	case err != nil:
		return nil, nil, err
	case secret.Labels[provisionv1.LabelUse] != "true":
		return nil, invalid(fmt.Sprintf("Secret %s does not have the label %s: \"true\", without which an installation does not use it", name.Name, provisionv1.LabelUse)), nil
	}
	for _, key := range keys {
		if len(secret.Data[key]) == 0 {
			return nil, invalid(fmt.Sprintf("Secret %s has no key %s", name.Name, key)), nil
		}
	}
	return secret.Data, nil, nil
}

// gatherStored reads the stored decisions from the API server. If it used an outdated cache, decisions could be made
// again, which would create a second cluster.
func (r *Reconciler) gatherStored(ctx context.Context, in *input) (*status.Readiness, error) {
	secret := &corev1.Secret{}
	name := in.named(in.installation.Name + provisionv1.SecretSuffix)
	err := r.Live.Get(ctx, name, secret)
	if apierrors.IsNotFound(err) {
		in.store = &store{}
		in.decide.Stored = roster.Stored{Token: rand.Text() + rand.Text(), AgentToken: rand.Text() + rand.Text()}
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	in.store = &store{secret: secret}
	if !ofInstallation(in.installation).Has(secret) || untrusted.JSON(secret.Data[keyState], &in.store.stored, untrusted.Large()) != nil || in.store.stored.Token == "" {
		return &status.Readiness{Stalled: true, Reason: provisionv1.ReasonSecretConflict, Message: fmt.Sprintf(
			"Secret %s does not belong to this installation, or cannot be read: it must have the tokens with which hosts join; restore it, or delete the installation", name.Name)}, nil
	}
	in.decide.Stored = in.store.stored
	return nil, nil
}

// ofInstallation returns the labels that identify the Secret with an installation's stored decisions. The
// drover-installation-secret policy protects this kind of Secret. Without the policy, any user could create such a
// Secret. The owner is not compared, because the installation's UID changes if the hub's objects are restored from a
// backup.
func ofInstallation(i *provisionv1.ClusterInstallation) owned.Marks {
	return owned.Marks{Type: corev1.SecretTypeOpaque, Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvision, labelInstallation: i.Name}}
}

// save stores the decisions if they have changed. If two provisioners save decisions at the same time, one of them gets
// an error.
func (r *Reconciler) save(ctx context.Context, in *input, stored roster.Stored) error {
	if in.store.secret != nil && reflect.DeepEqual(stored, in.store.stored) {
		return nil
	}
	raw, err := json.Marshal(stored)
	if err != nil {
		return err
	}
	secret := in.store.secret
	if secret == nil {
		i := in.installation
		ours := ofInstallation(i)
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: i.Namespace, Name: i.Name + provisionv1.SecretSuffix, Labels: ours.Labels,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: provisionv1.GroupVersion.String(), Kind: Kind, Name: i.Name, UID: i.UID}},
			},
			Type: ours.Type, Data: map[string][]byte{keyState: raw},
		}
		err = r.Client.Create(ctx, secret)
	} else {
		secret = secret.DeepCopy()
		secret.Data = map[string][]byte{keyState: raw}
		err = r.Client.Update(ctx, secret)
	}
	if err != nil {
		return fmt.Errorf("store the decisions in Secret %s: %w", client.ObjectKeyFromObject(secret), err)
	}
	return nil
}

// gatherHosts reads the available Hosts in the namespace, and the Hosts that the installation has claimed.
func (r *Reconciler) gatherHosts(ctx context.Context, in *input) error {
	list := &v1.HostList{}
	if err := r.Client.List(ctx, list, client.InNamespace(in.installation.Namespace)); err != nil {
		return err
	}
	for i := range list.Items {
		host := &list.Items[i]
		taken := hosts.TakenBy(host, consumer(in.installation))
		if !taken && hosts.NotFree(host) != "" {
			if takenByName(host, in.installation.Name) {
				in.former = append(in.former, host)
			}
			continue
		}
		in.hosts[host.Name] = host
		known := roster.Host{
			Name: host.Name, UID: string(host.UID), Labels: host.Labels, Taken: taken, Leaving: !host.DeletionTimestamp.IsZero(),
			Connected: connected(host), Host: progress.OfHost(host, ""),
		}
		known.Gone = known.Leaving && !known.Connected && in.now.After(host.DeletionTimestamp.Add(leaveTime))
		known.Lost = host.Status.LastSeen != nil && in.now.After(host.Status.LastSeen.Add(lostTime))
		if m := host.Status.Machine; m != nil {
			known.Address, known.NodeLabels, known.NodeTaints = address(m.Addresses), m.Labels, m.Taints
		}
		if a := host.Spec.InternalAddress; a != "" {
			known.Address = address([]string{a})
			known.NodeIPs = nodeIPs(known.Address, host.Status.Machine)
		}
		if taken {
			if err := r.gatherHeld(ctx, in, host, &known); err != nil {
				return err
			}
		}
		in.decide.Hosts = append(in.decide.Hosts, known)
	}
	return nil
}

// gatherHeld reads the note in a Host's instructions and the Host's progress. If the note cannot be read, the Host is
// left unchanged, but other Hosts are not delayed.
func (r *Reconciler) gatherHeld(ctx context.Context, in *input, host *v1.Host, known *roster.Host) error {
	given, err := r.Given(ctx, host)
	in.given[host.Name] = given
	note, version := given.Note()
	if err != nil || note == "" {
		return err
	}
	held := &roster.Held{}
	if untrusted.JSON([]byte(note), held, untrusted.Large()) != nil {
		known.Held = &roster.Held{Unreadable: true}
		in.unreadable[host.Name] = fmt.Errorf(
			"the annotation of Secret %s%s was changed: restore the Secret, or delete it, which cleans the host", host.Name, v1.HostInstructionsSecretSuffix)
		return nil
	}
	known.Held, known.Host = held, progress.OfHost(host, version)
	return nil
}

// connected reports whether the status of a Host says that its agent is connected.
func connected(host *v1.Host) bool {
	return hosts.Connected(host)
}

// address returns the first address that other machines can use to reach a host, or "" if the host has none. It skips
// invalid addresses, because a machine can report any text.
func address(all []string) string {
	for _, text := range all {
		if a, err := netip.ParseAddr(text); err == nil && a.IsGlobalUnicast() {
			return a.String()
		}
	}
	return ""
}

// nodeIPs returns the given address, followed by the first reported address of the other IP family. It returns nil if
// the given address is not valid.
func nodeIPs(own string, m *v1.HostMachine) []string {
	of, err := netip.ParseAddr(own)
	if err != nil {
		return nil
	}
	if m != nil {
		other := address(slices.DeleteFunc(slices.Clone(m.Addresses), func(text string) bool {
			a, err := netip.ParseAddr(text)
			return err != nil || a.Is4() == of.Is4()
		}))
		if other != "" {
			return []string{own, other}
		}
	}
	return []string{own}
}
