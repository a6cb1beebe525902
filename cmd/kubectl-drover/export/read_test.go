// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package export

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// bigServer responds like a Rancher server with many bindings, page by page. It does not serve other kinds.
type bigServer struct {
	bindings int
	expire   bool // once, after the third page
	lock     sync.Mutex
	pages    int
	whole    int
	written  []string // requests other than get and list
}

func (b *bigServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.lock.Lock()
	defer b.lock.Unlock()
	if r.Method != http.MethodGet {
		b.written = append(b.written, r.Method+" "+r.URL.Path)
	}
	const group = "/apis/management.cattle.io"
	w.Header().Set("Content-Type", "application/json")
	version := metav1.GroupVersionForDiscovery{GroupVersion: "management.cattle.io/v3", Version: "v3"}
	served := metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: "management.cattle.io", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	switch r.URL.Path {
	case "/api":
		answer(w, metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions", APIVersion: "v1"}, Versions: []string{"v1"}})
	case "/api/v1":
		answer(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "secrets", SingularName: "secret", Kind: "Secret", Namespaced: true, Verbs: metav1.Verbs{"list"}}}})
	case "/api/v1/secrets":
		w.WriteHeader(http.StatusForbidden)
		answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden})
	case "/apis":
		answer(w, metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{served}})
	case group:
		answer(w, served)
	case group + "/v3":
		var resources []metav1.APIResource
		for _, kind := range []string{"Cluster", "ClusterRoleTemplateBinding", "RoleTemplate"} {
			resources = append(resources, metav1.APIResource{Name: strings.ToLower(kind) + "s", SingularName: strings.ToLower(kind), Kind: kind, Namespaced: kind == "ClusterRoleTemplateBinding", Verbs: metav1.Verbs{"list"}})
		}
		answer(w, metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "management.cattle.io/v3", APIResources: resources})
	case group + "/v3/clusters":
		answerList(w, "Cluster", "", `{"apiVersion":"management.cattle.io/v3","kind":"Cluster","metadata":{"name":"c-1"},"spec":{"displayName":"edge"}}`)
	case group + "/v3/roletemplates":
		answerList(w, "RoleTemplate", "", `{"apiVersion":"management.cattle.io/v3","kind":"RoleTemplate","metadata":{"name":"cluster-owner"},"builtin":true,"context":"cluster"}`)
	case group + "/v3/clusterroletemplatebindings":
		b.page(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
		answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound})
	}
}

func (b *bigServer) page(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	b.pages++
	if limit == 0 {
		b.whole++
		limit = b.bindings
	}
	if b.expire && b.pages == 4 {
		w.WriteHeader(http.StatusGone)
		answer(w, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
		return
	}
	until := min(from+limit, b.bindings)
	var items []string
	for i := from; i < until; i++ {
		items = append(items, fmt.Sprintf(`{"apiVersion":"management.cattle.io/v3","kind":"ClusterRoleTemplateBinding","metadata":{"namespace":"c-1","name":"crtb-%05d"},
			"clusterName":"c-1","roleTemplateName":"cluster-owner","groupPrincipalName":"genericoidc_group://g%d"}`, i, i))
	}
	next := ""
	if until < b.bindings {
		next = strconv.Itoa(until)
	}
	answerList(w, "ClusterRoleTemplateBinding", next, items...)
}

func answerList(w http.ResponseWriter, kind, next string, items ...string) {
	fmt.Fprintf(w, `{"apiVersion":"management.cattle.io/v3","kind":"%sList","metadata":{"resourceVersion":"1","continue":%q},"items":[%s]}`, kind, next, strings.Join(items, ","))
}

func answer(w http.ResponseWriter, object any) {
	_ = json.NewEncoder(w).Encode(object) // the client reports the missing kind
}

func TestABigServerIsReadPageByPage(t *testing.T) {
	for name, tt := range map[string]struct {
		server *bigServer
		pages  int
		whole  int
	}{
		"2,600 bindings": {&bigServer{bindings: 2600}, 6, 0},
		"a list that expires meanwhile is read whole": {&bigServer{bindings: 2600, expire: true}, 5, 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(tt.server)
			defer server.Close()
			kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
			config := clientcmdapi.NewConfig()
			config.Clusters["rancher"] = &clientcmdapi.Cluster{Server: server.URL}
			config.Contexts["rancher"] = &clientcmdapi.Context{Cluster: "rancher"}
			config.CurrentContext = "rancher"
			if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "fleet")
			var out, progress strings.Builder
			if code := run(t.Context(), []string{"--kubeconfig", kubeconfig, "rancher", "export", dir, "-w", "team-a"}, &out, &progress); code != 0 {
				t.Fatalf("exit code %d: %s%s", code, out.String(), progress.String())
			}
			if tt.server.pages != tt.pages || tt.server.whole != tt.whole {
				t.Errorf("%d pages, %d whole lists, want %d and %d", tt.server.pages, tt.server.whole, tt.pages, tt.whole)
			}
			if len(tt.server.written) > 0 {
				t.Errorf("the export sent %v", tt.server.written)
			}
			if !strings.Contains(out.String(), "2600 ClusterRoleTemplateBinding\n") || !strings.Contains(progress.String(), "Read 2600 clusterroletemplatebindings.management.cattle.io\n") || strings.Count(progress.String(), "\n") > 10 || strings.Contains(progress.String(), "4100") {
				t.Errorf("printed %q and %q", out.String(), progress.String())
			}
			found := files(t, dir)
			if report := found["REPORT.md"]; !strings.Contains(report, `for cluster in clusters/*/; do kubectl apply -k "$cluster"; done`) || strings.Contains(report, "kubectl apply -k .\n") {
				t.Errorf("the report does not say how to apply so many:\n%s", report)
			}
			if count := len(slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(name string) bool { return !strings.HasPrefix(name, "clusters/edge/bindings/edge-crtb-") })); count != 2600 {
				t.Errorf("%d files of bindings", count)
			}
		})
	}
}
