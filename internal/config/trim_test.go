// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"unsafe"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestCacheDropsForeignAnnotations(t *testing.T) {
	const last, claim = "kubectl.kubernetes.io/last-applied-configuration", "plan.cluster.drover.dev/k3s"
	for name, tt := range map[string]struct {
		object client.Object
		given  map[string]string
		want   []string
	}{
		"other annotations of a Cluster are dropped": {
			&v1.Cluster{}, map[string]string{last: "{}", "a.b/c": strings.Repeat("x", 200_000)}, []string{trimmed},
		},
		"claims of plans are kept": {
			&v1.Cluster{}, map[string]string{last: "{}", claim: "{}"}, []string{trimmed, claim},
		},
		"an unknown annotation of our group is dropped": {
			&v1.Cluster{}, map[string]string{"cluster.drover.dev/x": "y"}, []string{trimmed},
		},
		"the resume annotation of a plan is kept": {
			&v1.Plan{}, map[string]string{v1.AnnotationResume: "abc"}, []string{v1.AnnotationResume},
		},
		"the restore confirmation of a Cluster is kept": {
			&v1.Cluster{}, map[string]string{v1.AnnotationRestored: "lease/1/a/2"}, []string{v1.AnnotationRestored},
		},
		"a value too long for a revision is dropped": {
			&v1.Plan{}, map[string]string{v1.AnnotationResume: strings.Repeat("x", 2000)}, []string{trimmed},
		},
		"an object without annotations is unchanged": {&v1.Project{}, nil, nil},
		"the last applied configuration of a binding is dropped": {
			&v1.ClusterRoleTemplateBinding{}, map[string]string{last: "{}"}, []string{trimmed},
		},
		"the restore confirmation of a Host is kept": {
			&v1.Host{}, map[string]string{last: "{}", v1.AnnotationRestored: "lease/1/a/2"}, []string{v1.AnnotationRestored},
		},
		"annotations of a Role are dropped": {&rbacv1.Role{}, map[string]string{last: "{}"}, nil},
		"a trimmed object is unchanged": {
			&v1.Cluster{}, map[string]string{trimmed: "", claim: "{}"}, []string{trimmed, claim},
		},
		"the last applied configuration of a role template is dropped": {
			&v1.RoleTemplate{}, map[string]string{last: "{}"}, []string{trimmed},
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.object.SetAnnotations(tt.given)
			tt.object.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: "kubectl"}})
			got, err := trim(tt.object)
			if err != nil {
				t.Fatal(err)
			}
			o := got.(client.Object)
			if keys := slices.Sorted(maps.Keys(o.GetAnnotations())); !slices.Equal(keys, tt.want) ||
				len(o.GetManagedFields()) > 0 {
				t.Errorf("kept %v, want %v, and managed fields %v", keys, tt.want, o.GetManagedFields())
			}
		})
	}
	t.Run("other metadata is kept only as far as the manager reads it of a Cluster", func(t *testing.T) {
		for _, o := range []client.Object{
			&v1.Cluster{}, &v1.Plan{}, &v1.Project{}, &v1.RoleTemplate{}, &v1.ClusterRoleTemplateBinding{},
			&v1.ProjectRoleTemplateBinding{}, &v1.Host{}, &rbacv1.Role{}, &rbacv1.RoleBinding{},
		} {
			o.SetLabels(map[string]string{"env": "prod"})
			o.SetFinalizers([]string{v1.FinalizerUninstall})
			o.SetOwnerReferences([]metav1.OwnerReference{{Name: "a"}})
			if _, err := trim(o); err != nil {
				t.Fatal(err)
			}
			_, isCluster := o.(*v1.Cluster)
			_, isHost := o.(*v1.Host)
			got := []bool{len(o.GetLabels()) > 0, len(o.GetFinalizers()) > 0, len(o.GetOwnerReferences()) > 0}
			if want := []bool{isCluster || isHost, isCluster || isHost, false}; !slices.Equal(got, want) {
				t.Errorf("%T keeps labels, finalizers, owner references %v, want %v", o, got, want)
			}
		}
	})
	t.Run("Clusters with equal texts share the memory", func(t *testing.T) {
		var messages []*byte
		for range 2 {
			c := &v1.Cluster{Status: v1.ClusterStatus{Conditions: []metav1.Condition{{Message: strings.Repeat("ready", 2)}}}}
			if _, err := trim(c); err != nil || c.Status.Conditions[0].Message != "readyready" {
				t.Fatalf("the condition is %+v (%v)", c.Status.Conditions[0], err)
			}
			messages = append(messages, unsafe.StringData(c.Status.Conditions[0].Message))
		}
		if messages[0] != messages[1] {
			t.Error("each Cluster has its own copy, want a shared text")
		}
	})
	t.Run("a patch of a trimmed object removes no other annotations", func(t *testing.T) {
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "a",
			Annotations: map[string]string{last: "{}", claim: "{}"}}}
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

// full gives an object more metadata than is kept of any kind. Labels, finalizers and owners have no limit of their
// own.
func full(o client.Object) client.Object {
	annotations, labels := map[string]string{}, map[string]string{v1.LabelManagedBy: v1.ManagedBy}
	for _, key := range []string{v1.AnnotationRestored, v1.AnnotationResume, v1.AnnotationPlanNote, "x"} {
		annotations[key] = strings.Repeat("x", 40<<10)
	}
	var finalizers []string
	var owners []metav1.OwnerReference
	for i := range 2000 {
		labels[fmt.Sprintf("%s.example.com/%d", strings.Repeat("l", 230), i)] = strings.Repeat("v", 63)
		finalizers = append(finalizers, fmt.Sprintf("%s.example.com/%d", strings.Repeat("f", 230), i))
		for _, group := range []string{v1.Group, "cluster.x-k8s.io"} {
			owners = append(owners, metav1.OwnerReference{APIVersion: group + "/v1", Kind: "Cluster",
				Name: strings.Repeat("n", 200), UID: "u"})
		}
	}
	o.SetAnnotations(annotations)
	o.SetLabels(labels)
	o.SetFinalizers(finalizers)
	o.SetOwnerReferences(append(owners,
		metav1.OwnerReference{APIVersion: v1.Group + "/v1", Kind: "Cluster", Name: strings.Repeat("n", 1<<20), UID: "u"}))
	return o
}

func TestCacheKeepsLittleOfAnyMetadata(t *testing.T) {
	const most = 32 << 10
	rules := []rbacv1.PolicyRule{{ResourceNames: slices.Repeat([]string{strings.Repeat("r", 100)}, 10_000)}}
	for _, o := range []client.Object{
		&v1.Plan{}, &v1.Project{}, &v1.RoleTemplate{}, &v1.ClusterRoleTemplateBinding{}, &v1.ProjectRoleTemplateBinding{}, &v1.User{}, &v1.AuthProvider{}, &v1.Host{},
		&rbacv1.Role{Rules: rules},
		&rbacv1.RoleBinding{Subjects: slices.Repeat([]rbacv1.Subject{{Name: strings.Repeat("s", 2000)}}, 500)},
	} {
		for range 2 { // an informer may transform an object twice
			if _, err := trim(full(o)); err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(o)
			if err != nil || len(raw) > most {
				t.Errorf("%T: %d bytes are kept, want at most %d (%v)", o, len(raw), most, err)
			}
		}
	}
}
