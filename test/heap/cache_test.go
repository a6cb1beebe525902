// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package heap_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/index"
	provision "github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/internal/registration"
)

// tenantCeiling is the maximum memory that one workspace may use in every replica, with the number of objects that the
// quota of docs/operations/limits.md allows.
const tenantCeiling = 64 << 20

// kept are the objects of one kind that a tenant may write and the manager caches.
type kept struct {
	name      string
	number    int // by the quota
	make      func() client.Object
	transform cache.TransformFunc
}

func kinds(t *testing.T) []kept {
	t.Helper()
	cfg, err := config.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ManagerConfig, server: {urls: [\"https://hub.example.com\"]}}"))
	if err != nil {
		t.Fatal(err)
	}
	options, err := cfg.ManagerOptions()
	if err != nil {
		t.Fatal(err)
	}
	trim := options.Cache.DefaultTransform
	provisioner, err := provision.Parse([]byte("{apiVersion: config.drover.dev/v1, kind: ProvisionerConfig}"))
	if err != nil {
		t.Fatal(err)
	}
	if options, err = provisioner.ManagerOptions(); err != nil {
		t.Fatal(err)
	}
	provisioned := options.Cache.DefaultTransform
	secret := func(labels map[string]string) func() client.Object {
		return func() client.Object {
			s := &corev1.Secret{Data: map[string][]byte{}}
			for i, key := range []string{registration.KeyToken, registration.KeyManifest, "public-key", "cluster-uid", "token-hash", "owner-uid", "joined", "former-owner-uid", "x"} {
				s.Data[key] = make([]byte, 1<<10+i)
			}
			s.Labels = labels
			return s
		}
	}
	all := []kept{
		{"Secrets that are labelled for a project", 250, secret(map[string]string{v1.LabelProject: "a"}), index.SecretOutline},
		{"Roles", 500, func() client.Object {
			return &rbacv1.Role{Rules: []rbacv1.PolicyRule{{ResourceNames: slices.Repeat([]string{strings.Repeat("r", 100)}, 5000)}}}
		}, trim},
		{"RoleBindings", 500, func() client.Object {
			return &rbacv1.RoleBinding{Subjects: slices.Repeat([]rbacv1.Subject{{Name: strings.Repeat("s", 1000)}}, 500)}
		}, trim},
		{"Projects", 100, func() client.Object { return &v1.Project{} }, trim},
		{"RoleTemplates", 100, func() client.Object { return &v1.RoleTemplate{} }, trim},
		{"ClusterRoleTemplateBindings", 500, func() client.Object { return &v1.ClusterRoleTemplateBinding{} }, trim},
		{"ProjectRoleTemplateBindings", 500, func() client.Object { return &v1.ProjectRoleTemplateBinding{} }, trim},
		{"Plans", 100, func() client.Object { return &v1.Plan{} }, trim},
		{"Hosts", 250, func() client.Object { return &v1.Host{} }, trim},
		{"DroverMachines", 250, func() client.Object { return &infrav1.DroverMachine{} }, provisioned},
		{"DroverClusters", 50, func() client.Object { return &infrav1.DroverCluster{} }, provisioned},
		{"ClusterInstallations", 50, func() client.Object { return &provisionv1.ClusterInstallation{} }, provisioned},
		{"EtcdSnapshots", 250, func() client.Object { return &provisionv1.EtcdSnapshot{} }, provisioned},
		{"EtcdRestores", 50, func() client.Object { return &provisionv1.EtcdRestore{} }, provisioned},
		{"Clusters of Cluster API", 50, func() client.Object { return &metav1.PartialObjectMetadata{} }, provisioned},
	}
	for _, kind := range registration.CachedKinds() {
		all = append(all, kept{"Secrets of the kind " + kind, 250, secret(map[string]string{v1.LabelSecretKind: kind}), registration.Trim})
	}
	return all
}

// fillMetadata gives an object a megabyte of metadata. Kubernetes limits annotations to 256 KiB, and other metadata
// only by the size of the object.
func fillMetadata(o client.Object) {
	labels, annotations := map[string]string{v1.LabelManagedBy: v1.ManagedBy}, map[string]string{}
	for key, value := range o.GetLabels() {
		labels[key] = value
	}
	for _, name := range []string{"token-hash", "token-created", "token-used", "plan-digest", "plan-note", "restored", "resume", "scheduled-for"} {
		annotations[v1.Group+"/"+name] = strings.Repeat("x", 20<<10)
	}
	annotations["cluster.x-k8s.io/paused"] = strings.Repeat("x", 20<<10)
	var finalizers []string
	var owners []metav1.OwnerReference
	for i := range 500 {
		labels[fmt.Sprintf("%s.example.com/%d", strings.Repeat("l", 230), i)] = strings.Repeat("v", 63)
		finalizers = append(finalizers, fmt.Sprintf("%s.example.com/%d", strings.Repeat("f", 230), i))
		owners = append(owners, metav1.OwnerReference{APIVersion: v1.GroupVersion.String(), Kind: "Cluster", Name: strings.Repeat("n", 900), UID: "u"})
	}
	o.SetNamespace("team")
	o.SetName(strings.Repeat("n", 253))
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	o.SetFinalizers(finalizers)
	o.SetOwnerReferences(owners)
	o.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: strings.Repeat("m", 100), FieldsV1: &metav1.FieldsV1{}}})
}

func TestCachedObjectsOfATenantAreBounded(t *testing.T) {
	const sample = 20
	var sum uint64
	for _, k := range kinds(t) {
		held := heapOf(func() any {
			var all []any
			for range sample {
				object := k.make()
				fillMetadata(object)
				out, err := k.transform(object)
				if err != nil {
					t.Fatal(err)
				}
				all = append(all, out)
			}
			return all
		})
		of := held / sample * uint64(k.number)
		t.Logf("%d %s: %d KiB each, %d KiB", k.number, k.name, held/sample>>10, of>>10)
		if sum += of; held/sample > 32<<10 {
			t.Errorf("%s: %d KiB of one are kept, want 32 at most", k.name, held/sample>>10)
		}
	}
	if sum > tenantCeiling {
		t.Errorf("a workspace has the cache hold %d MiB, want %d at most", sum>>20, tenantCeiling>>20)
	}
}
