// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
)

// installing is held while CRDs are installed, because tests that run at the same time share an API server.
var installing sync.Mutex

// ClusterAPI installs the kinds of config/clusterapi. It also installs Cluster, Machine and KubeadmControlPlane of
// Cluster API, without their schemas and controllers. test/e2e runs the real ones.
func (e *Env) ClusterAPI(t testing.TB) {
	t.Helper()
	options := envtest.CRDInstallOptions{Paths: []string{Path(t, "config/clusterapi/bases")}, ErrorIfPathMissing: true}
	for kind, plural := range map[string]string{"Cluster": "clusters", "Machine": "machines", clusterapi.KubeadmControlPlane: "kubeadmcontrolplanes", clusterapi.KubeadmConfig: "kubeadmconfigs"} {
		anything := true
		group := groupOf(kind)
		options.CRDs = append(options.CRDs, &apiextensionsv1.CustomResourceDefinition{
			ObjectMeta: metav1.ObjectMeta{Name: plural + "." + group},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Group: group, Scope: apiextensionsv1.NamespaceScoped,
				Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, ListKind: kind + "List", Plural: plural, Singular: plural[:len(plural)-1]},
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
					Name: clusterapi.GroupVersion.Version, Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &anything}},
				}},
			},
		})
	}
	installing.Lock()
	defer installing.Unlock()
	if _, err := envtest.InstallCRDs(e.Config, options); err != nil {
		t.Fatal(err)
	}
}

// groupOf returns the API group of a kind of Cluster API.
func groupOf(kind string) string {
	switch kind {
	case clusterapi.KubeadmControlPlane:
		return "controlplane." + clusterapi.GroupVersion.Group
	case clusterapi.KubeadmConfig:
		return clusterapi.GroupKubeadm
	}
	return clusterapi.GroupVersion.Group
}

// Provision installs the kinds of config/provision.
func (e *Env) Provision(t testing.TB) {
	t.Helper()
	installing.Lock()
	defer installing.Unlock()
	if _, err := envtest.InstallCRDs(e.Config, envtest.CRDInstallOptions{Paths: []string{Path(t, "config/provision/bases")}, ErrorIfPathMissing: true}); err != nil {
		t.Fatal(err)
	}
}

// ClusterAPIObject creates a Cluster, Machine or KubeadmControlPlane of Cluster API.
func (e *Env) ClusterAPIObject(t testing.TB, kind, namespace, name string, labels map[string]string, content map[string]any) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{Object: content}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: groupOf(kind), Version: clusterapi.GroupVersion.Version, Kind: kind})
	object.SetNamespace(namespace)
	object.SetName(name)
	object.SetLabels(labels)
	if err := e.Client.Create(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	return object
}

// Bootstrap creates a Secret in the same way as bootstrap providers.
func (e *Env) Bootstrap(t testing.TB, namespace, name, cluster, data string) {
	t.Helper()
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{clusterapi.LabelCluster: cluster}},
		Type:       "cluster.x-k8s.io/secret", Data: map[string][]byte{"value": []byte(data), "format": []byte("cloud-config")},
	}
	if err := e.Client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
}

// InfrastructureRef returns the field with which a Cluster or Machine refers to its object of the infrastructure
// provider.
func InfrastructureRef(kind, name string) map[string]any {
	return map[string]any{"apiGroup": infrav1.Group, "kind": kind, "name": name}
}

// OwnedBy returns the owner reference that Cluster API sets on the dependents of an object.
func OwnedBy(object client.Object) []metav1.OwnerReference {
	kind := object.GetObjectKind().GroupVersionKind()
	return []metav1.OwnerReference{{APIVersion: fmt.Sprintf("%s/%s", kind.Group, kind.Version), Kind: kind.Kind, Name: object.GetName(), UID: object.GetUID()}}
}
