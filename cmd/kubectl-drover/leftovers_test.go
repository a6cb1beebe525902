// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/footprint"
)

// TestUninstallFindsWhatPlansNeed keeps uninstall to the field manager as whom the agent installs for plans, which is not that of sets.
func TestUninstallFindsWhatPlansNeed(t *testing.T) {
	brought := func(apiVersion, kind, name, manager string) *metav1.PartialObjectMetadata {
		o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
		o.Name, o.Labels = name, map[string]string{v1.LabelManagedBy: v1.ManagedBy}
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationApply}}
		return o
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	all := func(manager string) []runtime.Object {
		return []runtime.Object{
			brought(rbac, "ClusterRoleBinding", footprint.PlanAccount, manager),
			brought(rbac, "ClusterRole", footprint.PlanAccount, manager),
			brought("v1", "Namespace", v1.PlansNamespace, manager),
			brought("apiextensions.k8s.io/v1", "CustomResourceDefinition", footprint.PlanSchema, manager),
		}
	}
	for name, c := range map[string]struct {
		there []runtime.Object
		want  []string
	}{
		"what the agent installed goes": {all(footprint.PlanManager), []string{
			"ClusterRoleBinding " + footprint.PlanAccount, "ClusterRole " + footprint.PlanAccount,
			"Namespace " + v1.PlansNamespace, "CustomResourceDefinition " + footprint.PlanSchema,
		}},
		"a copy that a person made stays": {all("kubectl"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			u := &uninstaller{objects: fake.NewSimpleMetadataClient(scheme, c.there...), out: io.Discard, said: map[string]bool{}}
			found, err := u.gather(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, r := range found {
				got = append(got, r.String())
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("uninstall finds %q, want %q", got, c.want)
			}
		})
	}
}
