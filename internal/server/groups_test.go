// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/test/testkit"
)

// served is a proxy for one user, and the errors that it logs.
type served struct {
	http.Handler
	errors strings.Builder
}

// serveUserIn serves a user in the given number of groups with names of 60 characters.
func serveUserIn(t *testing.T, groups int, fleet *members.Registry) *served {
	t.Helper()
	info := authenticationv1.UserInfo{Username: "alice"}
	for n := range groups {
		info.Groups = append(info.Groups, fmt.Sprintf("group-%054d", n))
	}
	s := &served{}
	handler, err := proxy.New(proxy.Options{
		Authenticate: func(*http.Request) (identity.Identity, error) { return identity.New(info) },
		Authorize:    func(context.Context, identity.Identity, types.NamespacedName) error { return nil },
		Transport:    transports{agents: fleet.Transports, states: fleet.States}.Transport,
		Hub:          &rest.Config{Host: "https://127.0.0.1:1"},
		Log:          funcr.New(func(_, args string) { s.errors.WriteString(args) }, funcr.Options{}),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Handler = handler
	return s
}

func (s *served) whoAmI(t *testing.T, member types.NamespacedName) (code int, groups int, body string) {
	t.Helper()
	path := proxy.PathClusters + member.String() + "/apis/authentication.k8s.io/v1/selfsubjectreviews"
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, path,
		strings.NewReader(`{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	var review authenticationv1.SelfSubjectReview
	if w.Code == http.StatusCreated && json.Unmarshal(w.Body.Bytes(), &review) != nil {
		t.Errorf("got %.200s, want a review", w.Body)
	}
	for _, group := range review.Status.UserInfo.Groups {
		if strings.HasPrefix(group, "hub:group-") {
			groups++
		}
	}
	return w.Code, groups, w.Body.String()
}

func TestUserInThousandsOfGroupsIsServed(t *testing.T) {
	t.Parallel()
	config := rest.CopyConfig(testkit.Shared(t).Config)
	transport, err := forward.Transport(config)
	if err != nil {
		t.Fatal(err)
	}
	base, err := forward.BaseURL(config)
	if err != nil {
		t.Fatal(err)
	}
	opened := testkit.OpenTunnel(t, reporting(forward.New(t.Context(), base, transport, logr.Discard())))
	member := types.NamespacedName{Namespace: "team-a", Name: "groups"}
	all := tracedReplicas(t, newCollector(t))
	cluster := protocol.ClusterRef{Namespace: member.Namespace, Name: member.Name, UID: "uid"}
	all[1].fleet.Add(members.Peer{Cluster: cluster, Key: "key", Instance: "a"}, opened.Session)
	for i, way := range []string{"by another replica", "by the replica with the tunnel"} {
		testkit.Eventually(t, 20*time.Second, func(context.Context) error {
			if !all[i].fleet.State(member).Connected() {
				return fmt.Errorf("replica %d does not know the member", i)
			}
			return nil
		})
		t.Run(way, func(t *testing.T) {
			for _, groups := range []int{0, 600, 2000, 8000} {
				s := serveUserIn(t, groups, all[i].fleet)
				if code, got, body := s.whoAmI(t, member); code != http.StatusCreated || got != groups {
					t.Errorf("a user in %d groups got %d with %d groups, want 201 with all: %.300s",
						groups, code, got, body)
				}
			}
			// This is too much for the agent, which the other replica notices, and for the link to that replica.
			for _, groups := range []int{9300, 20_000} {
				s := serveUserIn(t, groups, all[i].fleet)
				code, _, body := s.whoAmI(t, member)
				named := strings.Contains(body, fmt.Sprint(groups, " groups"))
				if code != http.StatusRequestHeaderFieldsTooLarge || !named {
					t.Errorf("a user in %d groups got %d, want 431 with the number of groups: %.300s", groups, code, body)
				}
				if logged := s.errors.String(); logged != "" {
					t.Errorf("a user in %d groups caused the log line %.300s, want none",
						groups, logged)
				}
			}
		})
	}
}
