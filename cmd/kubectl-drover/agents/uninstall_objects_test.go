// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/metadata/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// TestUninstallFindsWhatIsDrovers checks that uninstall only removes objects that the agent installed. Objects for
// plans have another field manager than objects of sets.
func TestUninstallFindsWhatIsDrovers(t *testing.T) {
	brought := func(apiVersion, kind, name, manager string) *metav1.PartialObjectMetadata {
		o := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: apiVersion, Kind: kind}}
		o.Name, o.Labels = name, map[string]string{v1.LabelManagedBy: v1.ManagedBy}
		o.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: manager, Operation: metav1.ManagedFieldsOperationApply}}
		return o
	}
	const rbac = "rbac.authorization.k8s.io/v1"
	all := func(manager string) []runtime.Object {
		return []runtime.Object{
			brought(rbac, "ClusterRoleBinding", protocol.PlanAccount, manager),
			brought(rbac, "ClusterRole", protocol.PlanAccount, manager),
			brought("v1", "Namespace", v1.PlansNamespace, manager),
			brought("apiextensions.k8s.io/v1", "CustomResourceDefinition", protocol.PlanSchema, manager),
		}
	}
	delivered := func(kind, name, manager string) *metav1.PartialObjectMetadata {
		o := brought(rbac, kind, name, manager)
		o.Labels[v1.LabelSet] = "crtb.a"
		return o
	}
	agents := func(kind, apiVersion, namespace, name string) *metav1.PartialObjectMetadata {
		o := brought(apiVersion, kind, name, "kubectl")
		o.Namespace, o.Labels[protocol.LabelName] = namespace, protocol.AgentName
		return o
	}
	hub := brought("apiextensions.k8s.io/v1", "CustomResourceDefinition", "clusters."+v1.Group, "kubectl")
	for name, c := range map[string]struct {
		there []runtime.Object
		want  []string
	}{
		"the agent's own namespace goes with all that is in it": {[]runtime.Object{
			agents("Namespace", "v1", "", protocol.AgentNamespace), agents("Secret", "v1", protocol.AgentNamespace, "identity"),
		}, []string{"Namespace " + protocol.AgentNamespace}},
		"a namespace that an operator chose for the agent stays, without what is the agent's": {[]runtime.Object{
			agents("Namespace", "v1", "", "edge"), agents("Secret", "v1", "edge", "identity"), agents("Deployment", "apps/v1", "edge", "drover-agent"),
		}, []string{"Deployment edge/drover-agent", "Secret edge/identity"}},
		"a hub keeps the kind of its Plans": {append(all(protocol.PlanManager), hub), []string{
			"ClusterRoleBinding " + protocol.PlanAccount, "ClusterRole " + protocol.PlanAccount, "Namespace " + v1.PlansNamespace,
		}},
		"what the agent installed goes": {all(protocol.PlanManager), []string{
			"ClusterRoleBinding " + protocol.PlanAccount, "ClusterRole " + protocol.PlanAccount,
			"Namespace " + v1.PlansNamespace, "CustomResourceDefinition " + protocol.PlanSchema,
		}},
		"a copy that a person made stays": {all("kubectl"), nil},
		"what was delivered goes, and a namespace of a project is released": {[]runtime.Object{
			delivered("ClusterRoleBinding", "drover:crtb:a", protocol.FieldManager), brought("v1", "Namespace", "web", protocol.FieldManager),
			delivered("ClusterRoleBinding", "theirs", "kubectl"),
		}, []string{"ClusterRoleBinding drover:crtb:a", "Namespace web"}},
	} {
		t.Run(name, func(t *testing.T) {
			scheme := runtime.NewScheme()
			if err := metav1.AddMetaToScheme(scheme); err != nil {
				t.Fatal(err)
			}
			out := &strings.Builder{}
			u := &uninstaller{objects: fake.NewSimpleMetadataClient(scheme, c.there...), out: out, said: map[string]bool{}}
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
			if onHub := slices.Contains(c.there, runtime.Object(hub)); onHub != strings.Contains(out.String(), "is a hub: only the objects of an agent are removed") {
				t.Errorf("on a hub %v, it says %q", onHub, out)
			}
		})
	}
}
