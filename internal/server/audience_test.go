// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"encoding/base64"
	"net/http"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/internal/portal/subscribe"
	"github.com/drover-dev/drover/test/testkit"
)

// Tokens in the form in which Flux requests them (kubeConfig.configMapRef with the generic provider), created and
// reviewed by a real API server.
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
	w.user("gitops", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
		Verbs: []string{"get"}})
	member := func(name string) string { return "/k8s/clusters/" + w.namespace + "/" + name }
	paths := []string{member("one") + "/version", member("two") + "/version", "/k8s/local/version", catalog.PathWhoAmI,
		"/version", "/api/v1/namespaces", subscribe.Path}
	const good, forbidden, unknown = http.StatusOK, http.StatusForbidden, http.StatusUnauthorized
	const nothing, upgrade = http.StatusNotFound, http.StatusUpgradeRequired
	for name, tt := range map[string]struct {
		audiences []string
		want      [7]int
	}{
		"made for the API server": {nil, [7]int{good, good, good, good, nothing, nothing, upgrade}},
		"made for one member": {
			[]string{hub + member("one")}, [7]int{good, forbidden, forbidden, forbidden, good, good, forbidden},
		},
		"made for the hub": {[]string{hub}, [7]int{good, good, forbidden, good, nothing, nothing, forbidden}},
		"made for something else": {
			[]string{"https://vault.example.com"}, [7]int{unknown, unknown, unknown, unknown, nothing, nothing, unknown},
		},
		"made for an unknown member": {
			[]string{hub + member("absent")}, [7]int{forbidden, forbidden, forbidden, forbidden, nothing, nothing, forbidden},
		},
		"made for another hub": {
			[]string{"https://other.example.com" + member("one")},
			[7]int{unknown, unknown, unknown, unknown, nothing, nothing, unknown},
		},
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
	request := &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{hub + member("one")}},
	}
	wide := &authenticationv1.TokenRequest{}
	for _, r := range []*authenticationv1.TokenRequest{request, wide} {
		if err := w.Client.SubResource("token").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "gitops"}}, r); err != nil {
			t.Fatal(err)
		}
	}
	testSmuggling(t, w, w.secret(request.Status.Token), w.secret(wide.Status.Token))
}

// testSmuggling: a token for the member "one" must not reach the member "two" or the hub, whatever the form of the path
// or of the header with the token.
func testSmuggling(t *testing.T, w *world, one, wide string) {
	to := "/k8s/clusters/" + w.namespace + "/"
	bearer := "Authorization: Bearer " + one + "\r\n"
	webSocket := func(token string) string {
		return "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " +
			"AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io." +
			base64.RawURLEncoding.EncodeToString([]byte(token)) + "\r\n"
	}
	for name, tt := range map[string]struct {
		path string
		with []string
		want int
	}{
		"its member, for comparison":                    {to + "one/version", []string{bearer}, http.StatusOK},
		"the path alone, for comparison":                {"/version?timeout=32s", []string{bearer}, http.StatusOK},
		"another member":                                {to + "two/version", []string{bearer}, http.StatusForbidden},
		"a member whose name begins with the same text": {to + "one2/version", []string{bearer}, http.StatusForbidden},
		"dots":              {to + "one/../two/version", []string{bearer}, http.StatusBadRequest},
		"escaped dots":      {to + "one/%2e%2e/two/version", []string{bearer}, http.StatusBadRequest},
		"escaped slashes":   {to + "one%2f..%2ftwo/version", []string{bearer}, http.StatusBadRequest},
		"an escaped letter": {to + "%74wo/version", []string{bearer}, http.StatusBadRequest},
		"capitals":          {to + "TWO/version", []string{bearer}, http.StatusBadRequest},
		"a backslash":       {to + "one\\..\\two/version", []string{bearer}, http.StatusBadRequest},
		// to a path that is refused
		"two slashes first": {"/" + to + "two/version", []string{bearer}, http.StatusTemporaryRedirect},
		"two slashes in the middle": {
			"/k8s/clusters//" + w.namespace + "/two/version", []string{bearer}, http.StatusBadRequest,
		},
		"dots after a path that is sent to the member": {"/api/../../two/version", []string{bearer}, http.StatusBadRequest},
		"escaped dots after such a path": {
			"/apis/%2e%2e/%2e%2e/two/version", []string{bearer}, http.StatusBadRequest,
		},
		"escaped slashes in such a path": {
			"/version%2f..%2f..%2ftwo", []string{bearer}, http.StatusBadRequest,
		},
		// a path in its own member
		"such a path that names another member": {"/api" + to + "two/version", []string{bearer}, http.StatusOK},
		"a complete URL": {
			"https://hub" + to + "two/version", []string{bearer}, http.StatusBadRequest,
		},
		"a complete URL with such a path":  {"https://hub/version", []string{bearer}, http.StatusBadRequest},
		"the hub's own API":                {"/k8s/local/version", []string{bearer}, http.StatusForbidden},
		"the hub's own API without a path": {"/k8s/local", []string{bearer}, http.StatusForbidden},
		"the hub's list of members":        {catalog.PathClusters, []string{bearer}, http.StatusForbidden},
		"two headers with tokens": {
			to + "two/version", []string{bearer, "Authorization: Bearer " + wide + "\r\n"}, http.StatusUnauthorized,
		},
		"two tokens in one header": {
			to + "two/version", []string{"Authorization: Bearer " + one + ", Bearer " + wide + "\r\n"}, http.StatusUnauthorized,
		},
		"a good token as a subprotocol, and a header": {
			to + "two/version", []string{bearer, webSocket(wide)}, http.StatusForbidden,
		},
		"as a subprotocol": {to + "two/version", []string{webSocket(one)}, http.StatusForbidden},
		"as a subprotocol to the hub's own API": {
			"/k8s/local/version", []string{webSocket(one)}, http.StatusForbidden,
		},
		"a good token in the query": {
			to + "two/version?access_token=" + wide, []string{bearer}, http.StatusForbidden,
		},
		"as another user": {
			to + "two/version", []string{bearer, "Impersonate-User: admin\r\n"}, http.StatusForbidden,
		},
		"a header that tells a proxy to drop the token": {
			to + "one/version", []string{bearer, "Connection: Authorization\r\n"}, http.StatusBadRequest,
		},
		"a path in the headers of a proxy": {
			to + "two/version",
			[]string{bearer, "X-Original-Url: " + to + "one/version\r\n", "X-Forwarded-Prefix: " + to + "one\r\n"},
			http.StatusForbidden,
		},
	} {
		t.Run("smuggling by "+name, func(t *testing.T) {
			got := w.raw("GET "+tt.path, tt.with...)
			if got.code != tt.want {
				t.Errorf("%d %s, want %d", got.code, got.body, tt.want)
			}
		})
	}
}
