// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/catalog"
	"github.com/drover-dev/drover/test/testkit"
)

// Tokens as Flux asks for them (kubeConfig.configMapRef with provider generic), made and reviewed by a real API server.
func testAudiences(t *testing.T, w *world) {
	const hub = "https://127.0.0.1" // server.urls
	c := w.client(true)
	for _, name := range []string{"one", "two"} {
		key := testkit.Key(t)
		joined, code := w.register(w.cluster(name), key, "member-uid")
		if code != http.StatusOK {
			t.Fatalf("join: %d, want 200", code)
		}
		w.agent(key, joined)
	}
	w.user("gitops", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}})
	member := func(name string) string { return "/k8s/clusters/" + w.namespace + "/" + name }
	paths := []string{member("one") + "/version", member("two") + "/version", "/k8s/local/version", catalog.PathWhoAmI, "/version", "/api/v1/namespaces"}
	const good, forbidden, unknown, nothing = http.StatusOK, http.StatusForbidden, http.StatusUnauthorized, http.StatusNotFound
	for name, tt := range map[string]struct {
		audiences []string
		want      [6]int
	}{
		"made for the API server":    {nil, [6]int{good, good, good, good, nothing, nothing}},
		"made for one member":        {[]string{hub + member("one")}, [6]int{good, forbidden, forbidden, forbidden, good, good}},
		"made for the hub":           {[]string{hub}, [6]int{good, good, forbidden, good, nothing, nothing}},
		"made for something else":    {[]string{"https://vault.example.com"}, [6]int{unknown, unknown, unknown, unknown, nothing, nothing}},
		"made for an unknown member": {[]string{hub + member("absent")}, [6]int{forbidden, forbidden, forbidden, forbidden, nothing, nothing}},
		"made for another hub":       {[]string{"https://other.example.com" + member("one")}, [6]int{unknown, unknown, unknown, unknown, nothing, nothing}},
	} {
		t.Run("a token "+name, func(t *testing.T) {
			request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: tt.audiences}}
			account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "gitops"}}
			if err := w.Client.SubResource("token").Create(t.Context(), account, request); err != nil {
				t.Fatal(err)
			}
			token := w.secret(request.Status.Token)
			for i, path := range paths {
				if got := w.send(c, http.MethodGet, path, token); got.code != tt.want[i] {
					t.Errorf("%s: %d %s, want %d", path, got.code, got.body, tt.want[i])
				}
			}
		})
	}
}
