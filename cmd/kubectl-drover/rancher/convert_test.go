// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "update the golden files of the export")

// server returns the objects of testdata/server.yaml. Each object is one second older than the next.
func server(t *testing.T) Objects {
	t.Helper()
	text, err := os.ReadFile("testdata/server.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var o Objects
	for i, document := range bytes.Split(text, []byte("\n---\n")) {
		u := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict(document, &u.Object); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		u.SetCreationTimestamp(metav1.Unix(int64(i), 0))
		sort(t, &o, u)
	}
	return o
}

func sort(t *testing.T, o *Objects, u *unstructured.Unstructured) {
	t.Helper()
	switch key := u.GroupVersionKind().Group + "/" + u.GetKind(); key {
	case "management.cattle.io/Cluster":
		into(t, &o.Clusters, u)
	case "management.cattle.io/Project":
		into(t, &o.Projects, u)
	case "management.cattle.io/RoleTemplate":
		into(t, &o.RoleTemplates, u)
	case "management.cattle.io/User":
		into(t, &o.Users, u)
	case "management.cattle.io/UserAttribute":
		into(t, &o.UserAttributes, u)
	case "management.cattle.io/ClusterRoleTemplateBinding":
		into(t, &o.ClusterBindings, u)
	case "management.cattle.io/ProjectRoleTemplateBinding":
		into(t, &o.ProjectBindings, u)
	case "management.cattle.io/GlobalRole":
		into(t, &o.GlobalRoles, u)
	case "management.cattle.io/GlobalRoleBinding":
		into(t, &o.GlobalBindings, u)
	case "provisioning.cattle.io/Cluster":
		into(t, &o.Provisioned, u)
	case "upgrade.cattle.io/Plan":
		into(t, &o.Plans, u)
	case "/Secret":
		delete(u.Object, "data")
		delete(u.Object, "type")
		into(t, &o.Secrets, u)
	default:
		t.Fatalf("%s is of no use to the export", key)
	}
}

func into[T any](t *testing.T, all *[]T, u *unstructured.Unstructured) {
	t.Helper()
	var one T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &one); err != nil {
		t.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	*all = append(*all, one)
}

// TestTheExportOfAServer compares with testdata/golden, which "go test ./cmd/kubectl-drover/rancher -update" writes.
func TestTheExportOfAServer(t *testing.T) {
	files, err := Convert(server(t), Options{Workspace: "team-a"}).Files()
	if err != nil {
		t.Fatal(err)
	}
	golden := "testdata/golden"
	if *update {
		if err := os.RemoveAll(golden); err != nil {
			t.Fatal(err)
		}
		for name, content := range files {
			file := filepath.Join(golden, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	want := map[string][]byte{}
	tree := os.DirFS(golden)
	err = walk(tree, func(name string, content []byte) { want[name] = content })
	if err != nil {
		t.Fatal(err)
	}
	if got, wanted := slices.Sorted(maps.Keys(files)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, wanted) {
		t.Errorf("files:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
	for name, content := range want {
		if !bytes.Equal(files[name], content) {
			t.Errorf("%s:\n%s\nwant:\n%s", name, files[name], content)
		}
	}
}

// TestAnExportIsTheSameInAnyOrder shuffles the objects, because lists are in the order of the server and maps have no
// order.
func TestAnExportIsTheSameInAnyOrder(t *testing.T) {
	in := server(t)
	first, err := Convert(in, Options{Workspace: "team-a"}).Files()
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		slices.Reverse(in.Clusters)
		slices.Reverse(in.Projects)
		slices.Reverse(in.RoleTemplates)
		slices.Reverse(in.ClusterBindings)
		slices.Reverse(in.ProjectBindings)
		slices.Reverse(in.GlobalBindings)
		slices.Reverse(in.Users)
		slices.Reverse(in.UserAttributes)
		again, err := Convert(in, Options{Workspace: "team-a"}).Files()
		if err != nil {
			t.Fatal(err)
		}
		for name := range first {
			if !bytes.Equal(first[name], again[name]) {
				t.Fatalf("%s:\n%s\nand then:\n%s", name, first[name], again[name])
			}
		}
		if len(first) != len(again) {
			t.Fatalf("%d files, and then %d", len(first), len(again))
		}
	}
}

func TestQuotasOfProjects(t *testing.T) {
	tests := map[string]struct {
		whole, share QuotaLimit
		want         string // whole; share
		reported     string
	}{
		"all keys are Kubernetes' own": {
			QuotaLimit{LimitsCPU: "4", RequestsStorage: "1Ti", ServicesNodePorts: "0"}, QuotaLimit{LimitsCPU: "1", RequestsStorage: "1Gi", ServicesNodePorts: "0"},
			"limits.cpu=4 requests.storage=1Ti services.nodeports=0; limits.cpu=1 requests.storage=1Gi services.nodeports=0", ""},
		"an exponent is written out":     {QuotaLimit{Pods: "1e3"}, QuotaLimit{Pods: "1e2"}, "pods=1k; pods=100", ""},
		"a share alone stays":            {QuotaLimit{}, QuotaLimit{Pods: "5"}, "; pods=5", ""},
		"a quota without a share is not": {QuotaLimit{Pods: "5"}, QuotaLimit{}, "; ", "pods 5"},
		"a share that exceeds it is not": {QuotaLimit{Pods: "5"}, QuotaLimit{Pods: "6"}, "; ", "pods 5"},
		"no number is not":               {QuotaLimit{Pods: "many"}, QuotaLimit{Pods: "6"}, "; pods=6", "pods: many"},
		"less than nothing is not":       {QuotaLimit{Pods: "-1"}, QuotaLimit{Pods: "-1"}, "; ", "pods: -1"},
		"what others define":             {QuotaLimit{Extended: map[string]string{"requests.nvidia.com/gpu": "4"}}, QuotaLimit{Extended: map[string]string{"requests.nvidia.com/gpu": "1"}}, "requests.nvidia.com/gpu=4; requests.nvidia.com/gpu=1", ""},
		"what no one defines is not":     {QuotaLimit{Extended: map[string]string{"x\ny": "4"}}, QuotaLimit{Extended: map[string]string{"x\ny": "4"}}, "; ", "x\ny: 4"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := newConversion(Objects{}, Options{Workspace: "team-a"})
			p := project{name: "web"}
			p.Spec.ResourceQuota, p.Spec.NamespaceDefaultResourceQuota = &Quota{Limit: tt.whole}, &Quota{Limit: tt.share}
			out := c.convertProject(p, "Project x")
			if got := amounts(out.Spec.ResourceQuota) + "; " + amounts(out.Spec.NamespaceDefaultResourceQuota); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			c.report.order()
			reported := ""
			if len(c.report.Findings) > 0 {
				reported = c.report.Findings[0].Detail
			}
			if reported != tt.reported {
				t.Errorf("reported %q, want %q", reported, tt.reported)
			}
		})
	}
}

func amounts(list corev1.ResourceList) string {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(list)) {
		quantity := list[key]
		all = append(all, fmt.Sprintf("%s=%s", key, quantity.String()))
	}
	return strings.Join(all, " ")
}

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 70)
	for text, want := range map[string]string{
		"prod-eu": "prod-eu", "Prod EU": "prod-eu", "../../etc/passwd": "etc-passwd", "..": "", "": "", "--x--": "x", "Ünï": "n", "a.b_c": "a-b-c", "日本": "",
		"x\n---\nkind: y": "x-kind-y", long: strings.Repeat("a", 54) + "-" + label(long)[55:],
	} {
		if got := label(text); got != want || len(got) > nameLimit {
			t.Errorf("label(%q) = %q, want %q", text, got, want)
		}
	}
	n := names{}
	for i, want := range []string{"web", "web-p-1", "web-x6b86b273ff34fce1"} {
		if got := n.take("web", []string{"p-0", "p-1", "1"}[i]); i < 2 && got != want {
			t.Errorf("take %d = %q, want %q", i, got, want)
		}
	}
	if label(long) == label(long+"b") {
		t.Error("two long names became one")
	}
}

// A cluster that is created later must not change the names of earlier clusters. Otherwise GitOps would delete and
// recreate them.
func TestALaterClusterChangesNoName(t *testing.T) {
	in := server(t)
	before := Convert(in, Options{Workspace: "team-a"})
	in.Clusters = append(in.Clusters, Cluster{ObjectMeta: metav1.ObjectMeta{Name: "c-00000", CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0))}})
	in.Clusters[len(in.Clusters)-1].Spec.DisplayName = "prod-eu"
	after := Convert(in, Options{Workspace: "team-a"})
	if len(after.Objects) != len(before.Objects)+1 {
		t.Fatalf("%d objects, then %d", len(before.Objects), len(after.Objects))
	}
	for _, o := range before.Objects {
		if !slices.ContainsFunc(after.Objects, func(p Output) bool { return p.Path == o.Path && p.Origin == o.Origin }) {
			t.Errorf("%s of %s has gone", o.Path, o.Origin)
		}
	}
}

// CVE-2022-31247: a user who may write bindings or projects in the namespace of one cluster or project must not affect
// another.
func TestABindingSaysNothingOfAnotherClusterOrProject(t *testing.T) {
	for _, o := range Convert(server(t), Options{Workspace: "team-a"}).Objects {
		if strings.Contains(o.Origin, "thief") {
			t.Errorf("%s is exported as %s", o.Origin, o.Path)
		}
	}
}
