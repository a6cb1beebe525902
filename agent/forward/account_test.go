// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/protocol"
)

// reviewing is an API server that handles reviews, and records the users of all other requests.
type reviewing struct {
	answer http.HandlerFunc

	mu       sync.Mutex // guards the fields below
	reviewed []http.Header
	served   []http.Header
}

func (a *reviewing) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := r.Header.Clone()
	maps.DeleteFunc(h, func(name string, _ []string) bool { return !isImpersonation(name) })
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.URL.Path != protocol.PathAccessReview {
		a.served = append(a.served, h)
		return
	}
	a.reviewed = append(a.reviewed, h)
	a.answer(w, r)
}

// grants allows impersonating web/deployer, and denies all other reviews.
func grants(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review.Status.Allowed = reflect.DeepEqual(review.Spec.ResourceAttributes, &authorizationv1.ResourceAttributes{
		Verb: "impersonate", Resource: "serviceaccounts", Namespace: "web", Name: "deployer",
	})
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(&review)
}

func TestUserActsAsAServiceAccountOnlyIfTheMemberAllowsIt(t *testing.T) {
	t.Parallel()
	const deployer, no = "system:serviceaccount:web:deployer", http.StatusForbidden
	for name, tt := range map[string]struct {
		accounts []string
		answer   http.HandlerFunc
		reads    bool
		want     int
		asked    bool
	}{
		"granted":                            {[]string{deployer}, grants, false, http.StatusOK, true},
		"another account of the namespace":   {[]string{"system:serviceaccount:web:other"}, grants, false, no, true},
		"the account of that name elsewhere": {[]string{"system:serviceaccount:db:deployer"}, grants, false, no, true},
		"two accounts":                       {[]string{deployer, deployer}, grants, false, no, false},
		"a system user":                      {[]string{"system:admin"}, grants, false, no, false},
		"a name with a slash":                {[]string{"system:serviceaccount:web:a/b"}, grants, false, no, false},
		"the agent's account": {[]string{"system:serviceaccount:drover-agent:drover-agent"}, grants, false, no,
			false},
		"an account of the manager's namespace": {[]string{"system:serviceaccount:drover-system:drover-manager"}, grants,
			false, no, false},
		"an account of the agent's namespace by another name": {[]string{"system:serviceaccount:fleet:x"}, grants, false, no,
			false},
		"an agent that only reads": {[]string{deployer}, grants, true, no, false},
		"the review fails": {[]string{deployer}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
		}, false, http.StatusServiceUnavailable, true},
		"the review is not answered": {[]string{deployer}, func(http.ResponseWriter, *http.Request) {
			panic(http.ErrAbortHandler)
		}, false, http.StatusServiceUnavailable, true},
		"the review is answered with something else": {[]string{deployer}, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, `{"kind":"Pod","status":{"allowed":true}}`)
		}, false, http.StatusServiceUnavailable, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := &reviewing{answer: tt.answer}
			backend := httptest.NewServer(api)
			t.Cleanup(backend.Close)
			front := serveBy(t, &rest.Config{Host: backend.URL, BearerToken: "agents-own"},
				func(ctx context.Context, base *url.URL, transport http.RoundTripper, log logr.Logger) *Handler {
					h := New(ctx, base, transport, log)
					h.Namespace, h.reads = "fleet", tt.reads
					return h
				})
			user := http.Header{
				"Impersonate-User": {"hub:alice"}, "Impersonate-Group": {"hub:ops"}, "Impersonate-Uid": {"7"},
				"Impersonate-Extra-Scopes": {"a"},
			}
			header := user.Clone()
			header[protocol.HeaderServiceAccount] = tt.accounts
			if got, _ := send(t, front, "/v1/k8s/api/v1/pods", header); got.StatusCode != tt.want {
				t.Errorf("got %s, want %d", got.Status, tt.want)
			}
			other := func(h http.Header) bool { return !reflect.DeepEqual(h, user) }
			if len(api.reviewed) > 0 != tt.asked || slices.ContainsFunc(api.reviewed, other) {
				t.Errorf("got a review as %v, want one as the user: %t", api.reviewed, tt.asked)
			}
			if tt.want != http.StatusOK {
				if len(api.served) > 0 {
					t.Errorf("got a request as %v, want it refused", api.served)
				}
				return
			}
			as := http.Header{"Impersonate-User": {deployer}, protocol.HeaderImpersonator: {"hub:alice"}}
			if len(api.served) != 1 || !reflect.DeepEqual(api.served[0], as) {
				t.Errorf("got a request as %v, want %v: the API server adds the groups", api.served, as)
			}
		})
	}
	if !strings.EqualFold(protocol.HeaderImpersonator, "Impersonate-Extra-cluster.drover.dev%2Fimpersonator") {
		t.Error("the extra has another name than at the hub, want the same")
	}
}
