// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package clusterapi reads the fields of Cluster API objects that the contract with infrastructure providers
// guarantees.
package clusterapi

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/untrusted"
)

// GroupVersion is the API version of the Cluster API objects that are read.
var GroupVersion = schema.GroupVersion{Group: "cluster.x-k8s.io", Version: "v1beta2"}

// GroupKubeadm is the API group of the kubeadm bootstrap provider. KubeadmConfig is the kind of its configurations.
const (
	GroupKubeadm  = "bootstrap.cluster.x-k8s.io"
	KubeadmConfig = "KubeadmConfig"
)

// Labels and annotations from Cluster API's contract, and the type of the Secrets that it creates.
const (
	LabelCluster      = "cluster.x-k8s.io/cluster-name"
	LabelControlPlane = "cluster.x-k8s.io/control-plane"
	LabelDeployment   = "cluster.x-k8s.io/deployment-name"

	annotationPaused = "cluster.x-k8s.io/paused"
	// Cluster API calls these two annotations internal, but sends them to extensions.
	annotationUpdate       = "in-place-updates.internal.cluster.x-k8s.io/update-in-progress"
	annotationPendingHooks = "runtime.cluster.x-k8s.io/pending-hooks"

	secretType corev1.SecretType = "cluster.x-k8s.io/secret"
)

// Cluster is a Cluster API Cluster.
type Cluster struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Paused               bool      `json:"paused"`
		ControlPlaneEndpoint Endpoint  `json:"controlPlaneEndpoint"`
		InfrastructureRef    Reference `json:"infrastructureRef"`
		ControlPlaneRef      struct {
			Kind string `json:"kind"`
			Name string `json:"name"`
		} `json:"controlPlaneRef"`
	} `json:"spec"`
	Status struct {
		Initialization struct {
			InfrastructureProvisioned bool `json:"infrastructureProvisioned"`
		} `json:"initialization"`
	} `json:"status"`
}

// Endpoint is the endpoint of a control plane.
type Endpoint struct {
	Host string `json:"host"`
	Port int32  `json:"port"`
}

// Reference refers to an object of a provider in the same namespace.
type Reference struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	Name     string `json:"name"`
}

// Machine is a Cluster API Machine.
type Machine struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ClusterName   string `json:"clusterName"`
		FailureDomain string `json:"failureDomain"`
		Version       string `json:"version"`
		Bootstrap     struct {
			ConfigRef      Reference `json:"configRef"`
			DataSecretName string    `json:"dataSecretName"`
		} `json:"bootstrap"`
		InfrastructureRef Reference `json:"infrastructureRef"`
	} `json:"spec"`
	Status struct {
		NodeInfo struct {
			KubeletVersion string `json:"kubeletVersion"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

// ByKubeadm reports whether kubeadm sets up the node of a Machine.
func (m *Machine) ByKubeadm() bool {
	ref := m.Spec.Bootstrap.ConfigRef
	return ref.APIGroup == GroupKubeadm && ref.Kind == KubeadmConfig
}

// Kubeadm contains settings from a Machine's KubeadmConfig. They apply to every run of kubeadm on the machine, not only
// to the first one.
type Kubeadm struct {
	// Patches is a directory with patches on the machine, or "" if there is none.
	Patches               string
	IgnorePreflightErrors []string
}

// GetKubeadm reads the KubeadmConfig of a Machine. The node of the Machine must be set up by kubeadm.
func GetKubeadm(ctx context.Context, reader client.Reader, machine *Machine) (Kubeadm, error) {
	type configuration struct {
		NodeRegistration struct {
			IgnorePreflightErrors []string `json:"ignorePreflightErrors"`
		} `json:"nodeRegistration"`
		Patches struct {
			Directory string `json:"directory"`
		} `json:"patches"`
	}
	var config struct {
		Spec struct {
			InitConfiguration *configuration `json:"initConfiguration"`
			JoinConfiguration *configuration `json:"joinConfiguration"`
		} `json:"spec"`
	}
	name := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.ConfigRef.Name}
	if err := read(ctx, reader, name, schema.GroupVersionKind{Group: GroupKubeadm, Version: GroupVersion.Version, Kind: KubeadmConfig}, &config); err != nil {
		return Kubeadm{}, err
	}
	of := config.Spec.JoinConfiguration
	if of == nil {
		of = config.Spec.InitConfiguration
	}
	if of == nil {
		return Kubeadm{}, nil
	}
	return Kubeadm{Patches: of.Patches.Directory, IgnorePreflightErrors: of.NodeRegistration.IgnorePreflightErrors}, nil
}

// UpdatesInPlace reports whether Cluster API has started to update a Machine in place and is waiting for the extension.
func (m *Machine) UpdatesInPlace() bool {
	return InPlaceUpdate(m) && slices.Contains(strings.Split(m.Annotations[annotationPendingHooks], ","), "UpdateMachine")
}

// InPlaceUpdate reports whether Cluster API has marked an object for the in-place update of its machine.
func InPlaceUpdate(object metav1.Object) bool {
	_, marked := object.GetAnnotations()[annotationUpdate]
	return marked
}

// owner returns the owner reference from a provider's object to its Cluster or Machine. It returns nil if Cluster API
// has not written the reference yet.
func owner(object metav1.Object, kind string) *metav1.OwnerReference {
	for _, ref := range object.GetOwnerReferences() {
		group, err := schema.ParseGroupVersion(ref.APIVersion)
		if err == nil && group.Group == GroupVersion.Group && ref.Kind == kind {
			return &ref
		}
	}
	return nil
}

// ClusterOf reads the Cluster that a DroverCluster belongs to. If the DroverCluster belongs to no Cluster, problem
// explains why. An owner reference alone is not proof, because anyone who can create a DroverCluster can set an owner
// reference to any Cluster. Therefore, the UID of the Cluster must match the reference, and the Cluster's
// infrastructure reference must name the DroverCluster.
func ClusterOf(ctx context.Context, reader client.Reader, object *infrav1.DroverCluster) (found *Cluster, problem string, err error) {
	ref := owner(object, "Cluster")
	if ref == nil {
		return nil, "the DroverCluster belongs to no Cluster of Cluster API yet", nil
	}
	found, err = GetCluster(ctx, reader, types.NamespacedName{Namespace: object.Namespace, Name: ref.Name})
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Sprintf("there is no Cluster %s of Cluster API", ref.Name), nil
	case err != nil:
		return nil, "", err
	case found.UID != ref.UID:
		return nil, fmt.Sprintf("the Cluster %s of Cluster API is not the one that owns the DroverCluster", ref.Name), nil
	case found.Spec.InfrastructureRef != Reference{infrav1.Group, "DroverCluster", object.Name}:
		return nil, fmt.Sprintf("spec.infrastructureRef of the Cluster %s of Cluster API does not name the DroverCluster %s",
			ref.Name, object.Name), nil
	}
	return found, "", nil
}

// MachineOf reads the Machine that a DroverMachine belongs to. It returns nil if the DroverMachine belongs to no
// Machine. The UID of the Machine must match the owner reference, and the Machine's infrastructure reference must name
// the DroverMachine. See ClusterOf for the reason.
func MachineOf(ctx context.Context, reader client.Reader, object *infrav1.DroverMachine) (*Machine, error) {
	ref := owner(object, "Machine")
	if ref == nil {
		return nil, nil
	}
	found, err := GetMachine(ctx, reader, types.NamespacedName{Namespace: object.Namespace, Name: ref.Name})
	if apierrors.IsNotFound(err) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if found.UID != ref.UID || found.Spec.InfrastructureRef != (Reference{infrav1.Group, "DroverMachine", object.Name}) {
		return nil, nil
	}
	return found, nil
}

// Metadata returns the metadata to keep for the provider's own objects.
func Metadata() untrusted.Metadata {
	const presence = 64 // only the presence of the annotation matters
	return untrusted.Metadata{
		Annotations: map[string]int{annotationPaused: presence, annotationUpdate: presence},
		Labels:      []string{LabelCluster, LabelControlPlane, LabelDeployment},
		Finalizers:  true, Owners: []string{GroupVersion.Group},
	}
}

// IsPaused reports whether Cluster API considers an object paused.
func IsPaused(cluster *Cluster, object metav1.Object) bool {
	_, annotated := object.GetAnnotations()[annotationPaused]
	return annotated || cluster != nil && cluster.Spec.Paused
}

// GetCluster reads a Cluster.
func GetCluster(ctx context.Context, reader client.Reader, name types.NamespacedName) (*Cluster, error) {
	out := &Cluster{}
	return out, get(ctx, reader, name, "Cluster", out)
}

// GetMachine reads a Machine.
func GetMachine(ctx context.Context, reader client.Reader, name types.NamespacedName) (*Machine, error) {
	out := &Machine{}
	return out, get(ctx, reader, name, "Machine", out)
}

// ProviderIDs returns the names of the Machines in a namespace, by provider ID. A Machine that is being deleted keeps
// its provider ID until the Node has been removed, in the last step of the deletion.
func ProviderIDs(ctx context.Context, reader client.Reader, namespace string) (map[string]string, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(GroupVersion.WithKind("MachineList"))
	if err := reader.List(ctx, list, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list Machines of Cluster API in %s: %w", namespace, err)
	}
	ids := map[string]string{}
	for _, m := range list.Items {
		if id, found, err := unstructured.NestedString(m.Object, "spec", "providerID"); err == nil && found {
			ids[id] = m.GetName()
		}
	}
	return ids, nil
}

func get(ctx context.Context, reader client.Reader, name types.NamespacedName, kind string, into any) error {
	return read(ctx, reader, name, GroupVersion.WithKind(kind), into)
}

func read(ctx context.Context, reader client.Reader, name types.NamespacedName, kind schema.GroupVersionKind, into any) error {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(kind)
	if err := reader.Get(ctx, name, object); err != nil {
		return fmt.Errorf("read %s %s of Cluster API: %w", kind.Kind, name, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into); err != nil {
		return fmt.Errorf("read %s %s of Cluster API: %w", kind.Kind, name, err)
	}
	return nil
}

// GetBootstrap reads the data that the bootstrap provider created for a Machine. It refuses Secrets that have a
// different type or belong to another cluster. Without this check, a user who can write Machines could read all Secrets
// in a workspace through a Host.
func GetBootstrap(ctx context.Context, reader client.Reader, machine *Machine) ([]byte, error) {
	name := types.NamespacedName{Namespace: machine.Namespace, Name: machine.Spec.Bootstrap.DataSecretName}
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, name, secret); err != nil {
		return nil, fmt.Errorf("read bootstrap data: %w", err)
	}
	format := string(secret.Data["format"])
	switch {
	case secret.Type != secretType || secret.Labels[LabelCluster] != machine.Spec.ClusterName:
		return nil, refusal(fmt.Sprintf("Secret %s is not of type %s with the label %s: %s", name.Name, secretType, LabelCluster, machine.Spec.ClusterName))
	case format != "" && format != "cloud-config":
		return nil, refusal(fmt.Sprintf("the bootstrap data has the format %.32q: use cloud-config", format))
	}
	return secret.Data["value"], nil
}

// KubeconfigSecret returns the name of the Secret with a cluster's kubeconfig.
func KubeconfigSecret(cluster types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: cluster.Namespace, Name: cluster.Name + infrav1.KubeconfigSecretSuffix}
}

// GetKubeconfig reads the kubeconfig of a cluster. It returns nil if there is no kubeconfig yet. It ignores Secrets
// that have a different type or belong to another cluster.
func GetKubeconfig(ctx context.Context, reader client.Reader, cluster types.NamespacedName) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, KubeconfigSecret(cluster), secret); client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Secret %s: %w", KubeconfigSecret(cluster), err)
	}
	if secret.Type != secretType || secret.Labels[LabelCluster] != cluster.Name || len(secret.Data["value"]) == 0 {
		return nil, nil
	}
	return secret.Data["value"], nil
}

// refusal is an error that requires action by a user.
type refusal string

func (r refusal) Error() string { return string(r) }

// Refused returns true, because this error requires action by a user.
func (r refusal) Refused() bool { return true }
