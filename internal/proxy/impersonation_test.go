// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestParseImpersonation(t *testing.T) {
	for name, test := range map[string]struct {
		header http.Header
		want   *impersonation
		fails  func(error) bool
	}{
		"without headers there is no impersonation": {header: http.Header{"Accept": {"x"}}},
		"an empty header asks for no user":          {header: http.Header{"Impersonate-User": {""}}},
		"a user, groups, a uid and extras are parsed": {
			header: http.Header{
				"Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "b"}, "Impersonate-Uid": {"7"},
				"Impersonate-Extra-Example.org%2fteam": {"x", "y"},
			},
			want: &impersonation{
				user: "bob", uid: "7", groups: []string{"a", "b"}, extra: map[string][]string{"example.org/team": {"x", "y"}},
			},
		},
		"system:authenticated may be impersonated": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"system:authenticated"}},
			want:   &impersonation{user: "bob", groups: []string{"system:authenticated"}, extra: map[string][]string{}},
		},
		"a group without a user is 400": {header: http.Header{"Impersonate-Group": {"a"}}, fails: apierrors.IsBadRequest},
		"a uid without a user is 400":   {header: http.Header{"Impersonate-Uid": {"a"}}, fails: apierrors.IsBadRequest},
		"an extra without a user is 400": {
			header: http.Header{"Impersonate-Extra-A": {"a"}}, fails: apierrors.IsBadRequest,
		},
		"a group with an empty user is 400": {
			header: http.Header{"Impersonate-User": {""}, "Impersonate-Group": {"a"}}, fails: apierrors.IsBadRequest,
		},
		"two users are 400": {
			header: http.Header{"Impersonate-User": {"bob", "eve"}}, fails: apierrors.IsBadRequest,
		},
		"two uids are 400": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Uid": {"1", "2"}}, fails: apierrors.IsBadRequest,
		},
		"an empty group is 400": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"a", ""}}, fails: apierrors.IsBadRequest,
		},
		"an unknown header is 400": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Everybody": {"1"}}, fails: apierrors.IsBadRequest,
		},
		"a line break in a group is 400": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"a\nb"}}, fails: apierrors.IsBadRequest,
		},
		"33 groups are 400": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": slices.Repeat([]string{"a"}, 33)},
			fails:  apierrors.IsBadRequest,
		},
		"system:masters as a group is 403": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"system:masters"}},
			fails:  apierrors.IsForbidden,
		},
		"system:nodes as a group is 403": {
			header: http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"a", "system:nodes"}},
			fails:  apierrors.IsForbidden,
		},
		"a system user is 403": {
			header: http.Header{"Impersonate-User": {"system:admin"}}, fails: apierrors.IsForbidden,
		},
		"a ServiceAccount of the member may be impersonated": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:web:deployer"}},
			want: &impersonation{
				user: "system:serviceaccount:web:deployer", extra: map[string][]string{},
				account: &protocol.ServiceAccount{Namespace: "web", Name: "deployer"},
			},
		},
		"a ServiceAccount in another group is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:web:deployer"}, "Impersonate-Group": {"a"}},
			fails:  apierrors.IsForbidden,
		},
		"a ServiceAccount with a uid is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:web:deployer"}, "Impersonate-Uid": {"1"}},
			fails:  apierrors.IsForbidden,
		},
		"a ServiceAccount with an extra is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:web:deployer"}, "Impersonate-Extra-A": {"b"}},
			fails:  apierrors.IsForbidden,
		},
		"an invalid name of a ServiceAccount is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:web:deployer:x"}}, fails: apierrors.IsForbidden,
		},
		"a ServiceAccount without a namespace is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount::x"}}, fails: apierrors.IsForbidden,
		},
		"an account that runs Plans is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:drover-plans:drover-plan"}},
			fails:  apierrors.IsForbidden,
		},
		"the header to the agent is 400": {
			header: http.Header{"Impersonate-User": {"bob"},
				protocol.HeaderServiceAccount: {"system:serviceaccount:web:deployer"}}, fails: apierrors.IsBadRequest,
		},
		"the agent itself is 403": {
			header: http.Header{"Impersonate-User": {"system:serviceaccount:drover-agent:drover-agent"}},
			fails:  apierrors.IsForbidden,
		},
		"the hub's extra is 403": {
			header: http.Header{"Impersonate-User": {"bob"},
				"Impersonate-Extra-Cluster.drover.dev%2fimpersonator": {"eve"}}, fails: apierrors.IsForbidden,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseImpersonation(test.header)
			if test.fails != nil {
				if !test.fails(err) {
					t.Errorf("got %+v, %v, want a refusal", got, err)
				}
				return
			}
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

// reviews answers access reviews like a member's API server, and everything else with 200.
type reviews struct {
	allow func(authorizationv1.ResourceAttributes) bool

	mu    sync.Mutex // guards asked
	asked []authorizationv1.ResourceAttributes
}

func (a *reviews) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != pathAccessReview {
		return
	}
	var review authorizationv1.SelfSubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || r.Method != http.MethodPost {
		http.Error(w, "bad review", http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, *review.Spec.ResourceAttributes)
	a.mu.Unlock()
	review.TypeMeta = metav1.TypeMeta{Kind: "SelfSubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
	review.Status.Allowed = a.allow(*review.Spec.ResourceAttributes)
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(&review)
}

func (a *reviews) all() []authorizationv1.ResourceAttributes {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked
}

func denyReviews(w http.ResponseWriter, r *http.Request) {
	(&reviews{allow: func(authorizationv1.ResourceAttributes) bool { return false }}).ServeHTTP(w, r)
}

func TestImpersonationRequestedByTheCaller(t *testing.T) {
	wanted := http.Header{
		"Impersonate-User": {"bob"}, "Impersonate-Group": {"ops", "dev"}, "Impersonate-Uid": {"7"},
		"Impersonate-Extra-Example.org%2fteam": {"x"},
	}
	const group = "authentication.k8s.io"
	asked := []authorizationv1.ResourceAttributes{
		{Verb: "impersonate", Resource: "users", Name: "bob"},
		{Verb: "impersonate", Resource: "groups", Name: "ops"},
		{Verb: "impersonate", Resource: "groups", Name: "dev"},
		{Verb: "impersonate", Group: group, Version: "v1", Resource: "uids", Name: "7"},
		{Verb: "impersonate", Group: group, Version: "v1", Resource: "userextras",
			Subresource: "example.org/team", Name: "x"},
	}
	t.Run("--as works if the member allows each part of it, and the member learns who acts", func(t *testing.T) {
		h := newHubSide(t)
		member := &reviews{allow: func(authorizationv1.ResourceAttributes) bool { return true }}
		h.agent.answerWith(member.ServeHTTP)
		if response, body := h.get(t, wanted); response.StatusCode != http.StatusOK {
			t.Fatalf("got %d %s, want 200", response.StatusCode, body)
		}
		if !reflect.DeepEqual(member.all(), asked) {
			t.Errorf("the member was asked for %+v, want %+v", member.all(), asked)
		}
		all := h.agent.all()
		for _, r := range all[:len(all)-1] {
			if !reflect.DeepEqual(withPrefix(r.Header, "Impersonate-"), asAlice) || r.Header.Get("Authorization") != "" {
				t.Errorf("a review came with the header %v, want alice's identity and no token", r.Header)
			}
		}
		want := wanted.Clone()
		want["Impersonate-Extra-Cluster.drover.dev%2fimpersonator"] = []string{"hub:alice"}
		if got := withPrefix(all[len(all)-1].Header, "Impersonate-"); !reflect.DeepEqual(got, want) {
			t.Errorf("the request came with %v, want %v", got, want)
		}
	})
	t.Run("--as a ServiceAccount needs the right to impersonate it, and the agent gets both names", func(t *testing.T) {
		h := newHubSide(t)
		member := &reviews{allow: func(authorizationv1.ResourceAttributes) bool { return true }}
		h.agent.answerWith(member.ServeHTTP)
		const account = "system:serviceaccount:web:deployer"
		if response, body := h.get(t, http.Header{"Impersonate-User": {account}}); response.StatusCode != http.StatusOK {
			t.Fatalf("got %d %s, want 200", response.StatusCode, body)
		}
		want := []authorizationv1.ResourceAttributes{{
			Verb: "impersonate", Resource: "serviceaccounts", Namespace: "web", Name: "deployer",
		}}
		if !reflect.DeepEqual(member.all(), want) {
			t.Errorf("the member was asked for %+v, want %+v", member.all(), want)
		}
		all, told := h.agent.all(), asAlice.Clone()
		told[protocol.HeaderServiceAccount] = []string{account}
		if got := withPrefix(all[len(all)-1].Header, "Impersonate-"); !reflect.DeepEqual(got, told) {
			t.Errorf("the agent got %v, want %v", got, told)
		}
	})
	for n, denied := range asked {
		t.Run("--as without the right to "+denied.Resource+" "+denied.Name+" is 403", func(t *testing.T) {
			h := newHubSide(t)
			member := &reviews{allow: func(a authorizationv1.ResourceAttributes) bool { return a != asked[n] }}
			h.agent.answerWith(member.ServeHTTP)
			response, body := h.get(t, wanted)
			wantStatus(t, response, body, http.StatusForbidden, "Forbidden", "hub:alice", "bob", "team-a/prod")
			for _, r := range h.agent.all() {
				if r.URL.Path != pathAccessReview {
					t.Errorf("the member got %s, want only access reviews", r.URL)
				}
			}
		})
	}
	t.Run("GHSA-c7xh-gjv4-4jgv: --as a system user is 403, and no API server is asked", func(t *testing.T) {
		h := newHubSide(t)
		response, body := h.get(t, http.Header{"Impersonate-User": {"system:kube-controller-manager"}})
		wantStatus(t, response, body, http.StatusForbidden, "Forbidden", "system:kube-controller-manager")
		if h.members.calls()+len(h.agent.all()) > 0 {
			t.Error("an API server was asked, want no request")
		}
	})
	t.Run("--as needs the right to reach the cluster first", func(t *testing.T) {
		h := newHubSide(t)
		r := h.request(t, http.MethodGet, podsPath, nil,
			http.Header{"Impersonate-User": {"alice"}, "Authorization": {"Bearer t-bob"}})
		response, body := h.do(t, r)
		wantStatus(t, response, body, http.StatusForbidden, "Forbidden")
		if h.members.calls()+len(h.agent.all()) > 0 {
			t.Error("an API server was asked, want no request")
		}
	})
	for name, answer := range map[string]http.HandlerFunc{
		"does not answer the review": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"answers the review with 200": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"kind":"SelfSubjectAccessReview","status":{"allowed":true}}`))
		},
		"answers with something else": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"kind":"Pod","status":{"allowed":true}}`))
		},
		"does not answer with JSON": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) },
		"refuses the review":        func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
	} {
		t.Run("--as fails closed when the member "+name, func(t *testing.T) {
			h := newHubSide(t)
			h.agent.answerWith(answer)
			response, body := h.get(t, http.Header{"Impersonate-User": {"bob"}})
			wantStatus(t, response, body, http.StatusBadGateway, "BadGateway")
		})
	}
	t.Run("a member that disconnects in between is 503", func(t *testing.T) {
		h := newHubSide(t)
		h.members.transport = roundTripperFunc(func(*http.Request) (*http.Response, error) {
			return nil,
				&NotConnectedError{}
		})
		response, body := h.get(t, http.Header{"Impersonate-User": {"bob"}})
		wantStatus(t, response, body, http.StatusServiceUnavailable, "ServiceUnavailable")
	})
}

func TestRightsToImpersonateAreCached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		allowed, asked := true, 0
		transport := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
			asked++
			w := &answerRecorder{header: http.Header{}}
			(&reviews{allow: func(authorizationv1.ResourceAttributes) bool { return allowed }}).ServeHTTP(w, r)
			return w.response(r), nil
		})
		handler, err := New(testOptions((&fakeMembers{transport: transport}).Transport, (&logLines{}).logger()))
		if err != nil {
			t.Fatal(err)
		}
		alice := mustIdentity(t)
		may := func(user string, want bool, wantAsked int) {
			t.Helper()
			c := &call{identity: alice, target: target{cluster: prod}, transport: transport, header: impersonate(alice)}
			err := handler.mayImpersonate(t.Context(), c, &impersonation{user: user})
			if (err == nil) != want || asked != wantAsked {
				t.Errorf("got %[2]v after %[3]d questions as %[1]s, want %[4]v after %[5]d", user, err, asked, want, wantAsked)
			}
		}
		may("bob", true, 1)
		may("bob", true, 1)
		may("eve", true, 2)
		allowed = false
		time.Sleep(4 * time.Second) // the clock of synctest, not a real wait
		may("bob", true, 2)
		time.Sleep(2 * time.Second)
		may("bob", false, 3)
		allowed = true
		may("bob", false, 3)
	})
}

func TestRefusalsOfReviewsContainNoSecret(t *testing.T) {
	h := newHubSide(t)
	h.members.transport = roundTripperFunc(func(*http.Request) (*http.Response, error) {
		return nil,
			errors.New("stream reset")
	})
	_, body := h.get(t, http.Header{"Impersonate-User": {"bob"}})
	if strings.Contains(body+h.log.text(), "t-alice") {
		t.Errorf("got response %q and log %q, want no token in them", body, h.log.text())
	}
	if !strings.Contains(h.log.text(), "stream reset") || strings.Contains(body, "stream reset") {
		t.Errorf("got log %q and response %q, want the cause only in the log", h.log.text(), body)
	}
}
