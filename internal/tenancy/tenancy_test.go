// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy_test

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/tenancy"
	"github.com/drover-dev/drover/test/testkit"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

// full returns a project with all fields set.
func full() *v1.Project {
	return &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "web"}, Spec: v1.ProjectSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: "prod"}, Namespaces: []string{"web", "web-staging"},
		ResourceQuota:                 list("limits.cpu", "40", "requests.memory", "64Gi"),
		NamespaceDefaultResourceQuota: list("limits.cpu", "30", "requests.memory", "16Gi"),
		ContainerDefaults:             &v1.ContainerDefaults{Requests: list("cpu", "50m"), Limits: list("memory", "256Mi")},
		NetworkIsolation:              v1.IsolationProject, PodSecurity: v1.PodSecurityBaseline,
	}}
}

func content(t *testing.T, p *v1.Project, taken map[string]string) set.Content {
	t.Helper()
	c, err := tenancy.Content(p, taken)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func names(objects []*unstructured.Unstructured) []string {
	var out []string
	for _, o := range objects {
		out = append(out, strings.TrimLeft(o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName(), " "))
	}
	return out
}

func TestContent(t *testing.T) {
	t.Run("an empty project only sets the label that Headlamp reads", func(t *testing.T) {
		c := content(t, &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, nil)
		got, err := c.Expand([]set.Namespace{{Name: "a"}}, nil)
		if err != nil || len(got.Objects) != 1 ||
			!reflect.DeepEqual(got.Objects[0].GetLabels(), map[string]string{"headlamp.dev/project-id": "web"}) {
			t.Errorf("got %v, %v, want the namespace with one label", got.Objects, err)
		}
	})
	t.Run("listed namespaces have labels for project, set and pod security, and are not marked as managed by Drover",
		func(t *testing.T) {
			c := content(t, full(), nil)
			if want := []string{"Namespace /web", "Namespace /web-staging"}; !reflect.DeepEqual(names(c.Objects), want) {
				t.Fatalf("got %v, want both namespaces", names(c.Objects))
			}
			want := map[string]string{"cluster.drover.dev/project": "web", "cluster.drover.dev/set": "project.web",
				"headlamp.dev/project-id": "web"}
			for _, mode := range []string{"enforce", "warn", "audit"} {
				want["pod-security.kubernetes.io/"+mode] = "baseline"
				want["pod-security.kubernetes.io/"+mode+"-version"] = "latest"
			}
			if got := c.Objects[0].GetLabels(); !reflect.DeepEqual(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	t.Run("a namespace of another project is left out", func(t *testing.T) {
		c := content(t, full(), map[string]string{"web": "older"})
		if want := []string{"Namespace /web-staging"}; !reflect.DeepEqual(names(c.Objects), want) {
			t.Errorf("got %v, want only the namespace without another project", names(c.Objects))
		}
	})
	t.Run("a reserved namespace is left out even if the schema accepted it", func(t *testing.T) {
		p := &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec: v1.ProjectSpec{Namespaces: []string{"default", "kube-system", "drover-agent"}}}
		if c := content(t, p, nil); len(c.Objects) != 0 {
			t.Errorf("got %v, want no objects", names(c.Objects))
		}
	})
	t.Run("the same project always gives the same bytes", func(t *testing.T) {
		first, _ := json.Marshal(content(t, full(), nil))
		for range 20 {
			if again, _ := json.Marshal(content(t, full(), nil)); string(again) != string(first) {
				t.Fatalf("%s\n%s", first, again)
			}
		}
	})
	t.Run("only Namespaces name a namespace", func(t *testing.T) {
		for _, template := range content(t, full(), nil).PerNamespace.Templates {
			if template.Object.GetNamespace() != "" {
				t.Errorf("the template is %v, want it without a namespace", template.Object)
			}
		}
	})
	t.Run("isolation limits incoming connections only", func(t *testing.T) {
		policy := content(t, full(), nil).PerNamespace.Templates[1].Object
		types, _, _ := unstructured.NestedStringSlice(policy.Object, "spec", "policyTypes")
		if policy.GetKind() != "NetworkPolicy" || !reflect.DeepEqual(types, []string{"Ingress"}) {
			t.Errorf("got %v, want a NetworkPolicy for Ingress only", policy)
		}
		text, _ := json.Marshal(policy.Object["spec"])
		for _, want := range []string{`"cluster.drover.dev/project":"web"`, `"kubernetes.io/metadata.name":"kube-system"`,
			`"cluster.drover.dev/ingress":"true"`} {
			if !strings.Contains(string(text), want) {
				t.Errorf("want %s in %s", want, text)
			}
		}
	})
}

// A real API server accepts the objects of a project, and applying them again changes nothing.
func TestMemberAcceptsTheObjectsOfAProject(t *testing.T) {
	env := testkit.Shared(t)
	secrets, _, err := tenancy.Secrets(full(), []corev1.Secret{*source("registry")})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(objects []*unstructured.Unstructured) (versions []string) {
		t.Helper()
		for _, o := range objects {
			o = o.DeepCopy()
			if err := env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o),
				client.FieldOwner("drover")); err != nil {
				t.Fatalf("%s %s/%s: %v", o.GetKind(), o.GetNamespace(), o.GetName(), err)
			}
			versions = append(versions, o.GetResourceVersion())
		}
		return versions
	}
	c := content(t, full(), nil)
	apply(c.Objects)
	namespaces := []set.Namespace{{Name: "web", Created: metav1.Unix(1, 0)},
		{Name: "web-staging", Created: metav1.Unix(2, 0)}}
	got, err := c.Expand(namespaces, set.Labels(set.ID(set.Project, "web")))
	if err != nil {
		t.Fatal(err)
	}
	copies, err := secrets.Expand(namespaces, set.Labels(set.ID(set.Secrets, "web")))
	if err != nil {
		t.Fatal(err)
	}
	all := append(got.Objects, copies.Objects...)
	want := []string{"Namespace /web", "Namespace /web-staging",
		"ResourceQuota web/drover-project", "LimitRange web/drover-project", "NetworkPolicy web/drover-project",
		"ResourceQuota web-staging/drover-project", "LimitRange web-staging/drover-project",
		"NetworkPolicy web-staging/drover-project",
		"Secret web/registry", "Secret web-staging/registry"}
	if !reflect.DeepEqual(names(all), want) {
		t.Fatalf("got %v, want %v", names(all), want)
	}
	first := apply(all)
	if again := apply(all); !reflect.DeepEqual(first, again) {
		t.Errorf("applying again changed %v to %v, want no change", first, again)
	}
	t.Run("the newest namespace gets the rest of the quota", func(t *testing.T) {
		quota := &corev1.ResourceQuota{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "web-staging", Name: "drover-project"},
			quota); err != nil {
			t.Fatal(err)
		}
		cpu, memory := quota.Spec.Hard["limits.cpu"], quota.Spec.Hard["requests.memory"]
		if cpu.String() != "10" || memory.String() != "16Gi" || !reflect.DeepEqual(got.Short, []string{"web-staging"}) {
			t.Errorf("the default quota is %v, %v, %v, want 10, 16Gi and web-staging short", cpu.String(), memory.String(),
				got.Short)
		}
	})
	t.Run("labels for a deleted namespace do not create it again", func(t *testing.T) {
		unlisted := full()
		unlisted.Spec.Namespaces = nil
		got, err := content(t, unlisted,
			nil).Expand([]set.Namespace{{Name: "gone", UID: "8f3b5c0e-0000-4000-8000-000000000000"}}, nil)
		if err != nil || got.Objects[0].GetKind() != "Namespace" {
			t.Fatalf("got %v, %v, want the namespace", names(got.Objects), err)
		}
		err = env.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(got.Objects[0]),
			client.FieldOwner("drover"))
		if !apierrors.IsConflict(err) {
			t.Errorf("got %v, want a conflict", err)
		}
	})
	t.Run("the copy has the source's data", func(t *testing.T) {
		secret := &corev1.Secret{}
		if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: "web", Name: "registry"}, secret); err != nil {
			t.Fatal(err)
		}
		if string(secret.Data["password"]) != "hunter2" || secret.Type != "example.com/registry" {
			t.Errorf("the copy is %v, want the source's data and type", secret)
		}
	})
}

func source(name string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, UID: "1", ResourceVersion: "1",
			Labels: map[string]string{"cluster.drover.dev/project": "web", "app": "web", "app.kubernetes.io/managed-by": "Helm",
				"app.kubernetes.io/instance": "argo", "argocd.argoproj.io/instance": "x", "kustomize.toolkit.fluxcd.io/name": "y"},
			Annotations: map[string]string{"kubectl.kubernetes.io/last-applied-configuration": `{"data":{"password":"aHVudGVyMg=="}}`}},
		Type: "example.com/registry", Data: map[string][]byte{"password": []byte("hunter2")}, Immutable: new(true),
	}
}

func TestSecrets(t *testing.T) {
	change := func(how func(*corev1.Secret)) corev1.Secret {
		s := source("other")
		how(s)
		return *s
	}
	t.Run("CVE-2025-47284: a copy has name, type, data and labels, and no marks of ownership", func(t *testing.T) {
		c, refused, err := tenancy.Secrets(full(), []corev1.Secret{*source("registry")})
		if err != nil || len(refused) > 0 || len(c.PerNamespace.Templates) != 1 {
			t.Fatalf("got %v, %v, %v, want one template and nothing refused", c, refused, err)
		}
		want := map[string]any{"apiVersion": "v1", "kind": "Secret", "type": "example.com/registry",
			"data": map[string]any{"password": "aHVudGVyMg=="},
			"metadata": map[string]any{"name": "registry",
				"labels": map[string]any{"app": "web", "app.kubernetes.io/managed-by": "drover",
					"cluster.drover.dev/set": "secrets.web"}}}
		if got := c.PerNamespace.Templates[0].Object.Object; !reflect.DeepEqual(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("CVE-2024-22031, CVE-2026-44935: only the project's own Secrets, from its own workspace, are copied",
		func(t *testing.T) {
			c, refused, err := tenancy.Secrets(full(), []corev1.Secret{
				change(func(s *corev1.Secret) { s.Namespace = "team-b" }),
				change(func(s *corev1.Secret) { s.Labels["cluster.drover.dev/project"] = "db" }),
				change(func(s *corev1.Secret) { s.Labels = nil }),
				change(func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }),
			})
			if err != nil || len(refused) > 0 || len(c.PerNamespace.Templates) > 0 {
				t.Errorf("got %v, %v, %v, want no template and nothing refused", c.PerNamespace.Templates, refused, err)
			}
		})
	t.Run("credentials of a cluster are refused without revealing them", func(t *testing.T) {
		for name, s := range map[string]corev1.Secret{
			"Drover's own":             change(func(s *corev1.Secret) { s.Labels["cluster.drover.dev/secret"] = "registration" }),
			"a ServiceAccount's token": change(func(s *corev1.Secret) { s.Type = corev1.SecretTypeServiceAccountToken }),
			"a bootstrap token":        change(func(s *corev1.Secret) { s.Type = corev1.SecretTypeBootstrapToken }),
			"Helm's release":           change(func(s *corev1.Secret) { s.Type = "helm.sh/release.v1" }),
			"a set":                    change(func(s *corev1.Secret) { s.Type = "cluster.drover.dev/set" }),
		} {
			c, refused, err := tenancy.Secrets(full(), []corev1.Secret{s})
			if err != nil || len(c.PerNamespace.Templates) > 0 || len(refused) != 1 || refused[0].Name != "other" ||
				strings.Contains(refused[0].Message, "hunter2") {
				t.Errorf("%s: %v %v %v, want the Secret refused without its content", name, c.PerNamespace.Templates, refused, err)
			}
		}
	})
	t.Run("excluded namespaces get no copy", func(t *testing.T) {
		s := change(func(s *corev1.Secret) { s.Annotations["cluster.drover.dev/except-namespaces"] = " b, a,,a " })
		c, _, err := tenancy.Secrets(full(), []corev1.Secret{s})
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.Expand([]set.Namespace{{Name: "a"}, {Name: "b"}, {Name: "c"}}, nil)
		if err != nil || !reflect.DeepEqual(names(got.Objects), []string{"Secret c/other"}) {
			t.Errorf("got %v, %v, want Secret c/other only", names(got.Objects), err)
		}
	})
}

func TestClaims(t *testing.T) {
	project := func(name string, age int64, namespaces ...string) *v1.Project {
		return &v1.Project{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(age, 0)},
			Spec: v1.ProjectSpec{Namespaces: namespaces}}
	}
	tests := map[string]struct {
		projects []*v1.Project
		want     map[string]map[string]string
	}{
		"projects with different namespaces do not compete": {[]*v1.Project{project("a", 1, "x"), project("b", 2, "y")},
			map[string]map[string]string{}},
		"the older project keeps a namespace that both list": {[]*v1.Project{project("a", 2, "x", "y"), project("b", 1, "x")},
			map[string]map[string]string{"a": {"x": "b"}}},
		"names decide between projects of the same age": {[]*v1.Project{project("b", 1, "x"), project("a", 1, "x"),
			project("c", 1, "x")}, map[string]map[string]string{"b": {"x": "a"}, "c": {"x": "a"}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := tenancy.Claims(tt.projects); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
