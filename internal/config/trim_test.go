// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestTheCacheKeepsNoAnnotationsOfOthers(t *testing.T) {
	const last, claim = "kubectl.kubernetes.io/last-applied-configuration", "plan.cluster.drover.dev/k3s"
	for name, tt := range map[string]struct {
		object client.Object
		given  map[string]string
		want   []string
	}{
		"what others say of a Cluster goes":            {&v1.Cluster{}, map[string]string{last: "{}", "a.b/c": strings.Repeat("x", 200_000)}, []string{trimmed}},
		"what plans have claimed of it stays":          {&v1.Cluster{}, map[string]string{last: "{}", claim: "{}"}, []string{trimmed, claim}},
		"an unknown one in our name goes":              {&v1.Cluster{}, map[string]string{"cluster.drover.dev/x": "y"}, []string{trimmed}},
		"a plan that may go on may go on":              {&v1.Plan{}, map[string]string{v1.AnnotationResume: "abc"}, []string{v1.AnnotationResume}},
		"what a restored hub changes may be confirmed": {&v1.Cluster{}, map[string]string{v1.AnnotationRestored: "lease/1/a/2"}, []string{v1.AnnotationRestored}},
		"what is too long to be a revision goes":       {&v1.Plan{}, map[string]string{v1.AnnotationResume: strings.Repeat("x", 2000)}, []string{trimmed}},
		"an object without any is as it was":           {&v1.Project{}, nil, nil},
		"what a binding was applied with goes":         {&v1.ClusterRoleTemplateBinding{}, map[string]string{last: "{}"}, []string{trimmed}},
		"another's object keeps what it has":           {&metav1.PartialObjectMetadata{}, map[string]string{last: "{}"}, []string{last}},
		"what is trimmed already is as it was":         {&v1.Cluster{}, map[string]string{trimmed: "", claim: "{}"}, []string{trimmed, claim}},
		"a role template that was applied is trimmed":  {&v1.RoleTemplate{}, map[string]string{last: "{}"}, []string{trimmed}},
	} {
		t.Run(name, func(t *testing.T) {
			tt.object.SetAnnotations(tt.given)
			tt.object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
			got, err := trim(tt.object)
			if err != nil {
				t.Fatal(err)
			}
			o := got.(client.Object)
			if keys := slices.Sorted(maps.Keys(o.GetAnnotations())); !slices.Equal(keys, tt.want) || len(o.GetManagedFields()) > 0 {
				t.Errorf("kept %v, want %v, and managed fields %v", keys, tt.want, o.GetManagedFields())
			}
		})
	}
	t.Run("of other metadata only what the manager reads of a Cluster is kept", func(t *testing.T) {
		for _, o := range []client.Object{
			&v1.Cluster{}, &v1.Plan{}, &v1.Project{}, &v1.RoleTemplate{}, &v1.ClusterRoleTemplateBinding{}, &v1.ProjectRoleTemplateBinding{}, &metav1.PartialObjectMetadata{},
		} {
			o.SetLabels(map[string]string{"env": "prod"})
			o.SetFinalizers([]string{v1.FinalizerUninstall})
			o.SetOwnerReferences([]metav1.OwnerReference{{Name: "a"}})
			if _, err := trim(o); err != nil {
				t.Fatal(err)
			}
			_, isCluster := o.(*v1.Cluster)
			_, isOther := o.(*metav1.PartialObjectMetadata)
			got := []bool{len(o.GetLabels()) > 0, len(o.GetFinalizers()) > 0, len(o.GetOwnerReferences()) > 0}
			if want := []bool{isCluster || isOther, isCluster || isOther, isOther}; !slices.Equal(got, want) {
				t.Errorf("%T keeps labels, finalizers, owner references %v, want %v", o, got, want)
			}
		}
	})
	t.Run("Clusters that say the same share the text", func(t *testing.T) {
		var messages []*byte
		for range 2 {
			c := &v1.Cluster{Status: v1.ClusterStatus{Conditions: []metav1.Condition{{Message: strings.Repeat("ready", 2)}}}}
			if _, err := trim(c); err != nil || c.Status.Conditions[0].Message != "readyready" {
				t.Fatalf("the condition is %+v (%v)", c.Status.Conditions[0], err)
			}
			messages = append(messages, unsafe.StringData(c.Status.Conditions[0].Message))
		}
		if messages[0] != messages[1] {
			t.Error("each has a copy of its own")
		}
	})
	t.Run("a patch of what was trimmed takes nothing of others away", func(t *testing.T) {
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{last: "{}", claim: "{}"}}}
		if _, err := trim(cluster); err != nil {
			t.Fatal(err)
		}
		next := cluster.DeepCopy()
		delete(next.Annotations, claim)
		patch, err := client.MergeFrom(cluster).Data(next)
		if want := `{"metadata":{"annotations":{"` + claim + `":null}}}`; err != nil || string(patch) != want {
			t.Errorf("%s, %v; want %s", patch, err, want)
		}
	})
}
