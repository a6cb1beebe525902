// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/testkit"
)

// connect opens a tunnel that serves nothing.
func (w *world) connect(token string) error {
	w.t.Helper()
	dialer := tunnel.Dialer{TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: w.roots()}}
	conn, err := dialer.Dial(w.t.Context(), "wss://"+w.base+protocol.PathConnect,
		http.Header{"Authorization": {"Bearer " + token}})
	if err != nil {
		return err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = conn.Serve(context.Background(), http.NotFoundHandler())
	}()
	w.t.Cleanup(func() {
		_ = conn.Close()
		<-served
	})
	return nil
}

func TestTwoReplicas(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	key, name := testkit.Key(t), types.NamespacedName{Namespace: p.first.namespace, Name: "member"}
	joined, code := p.first.register(p.first.cluster(name.Name), key, "member-uid")
	if code != http.StatusOK {
		t.Fatalf("join: %d, want 200", code)
	}
	known := func(w *world, tunnels int) {
		t.Helper()
		testkit.Eventually(t, 10*time.Second, func(context.Context) error {
			if got := len(w.server.Members.State(name).Peers); got != tunnels {
				return fmt.Errorf("the other replica knows %d tunnels", got)
			}
			return nil
		})
	}
	t.Run("a connect token that opened a tunnel at one replica is refused by the other", func(t *testing.T) {
		token := p.first.connectToken(key, joined)
		if err := p.first.connect(token); err != nil {
			t.Fatal(err)
		}
		known(p.second, 1)
		var refused *tunnel.HandshakeError
		if err := p.second.connect(token); !errors.As(err, &refused) || refused.StatusCode != http.StatusUnauthorized {
			t.Errorf("the second use of the token got %v, want a refusal", err)
		}
		if err := p.second.connect(p.second.connectToken(key, joined)); err != nil {
			t.Errorf("another token got %v, want it accepted", err)
		}
		known(p.first, 2)
	})
	t.Run("a user reaches a member through either replica", func(t *testing.T) {
		p.first.agent(key, joined)
		known(p.second, 3)
		rule := rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"},
			Verbs: []string{"get"}}
		user := p.first.user("replicas-user", rule)
		for i, w := range []*world{p.first, p.second} {
			path := "/k8s/clusters/" + name.Namespace + "/" + name.Name + "/version"
			if got := w.send(w.client(true), http.MethodGet, path, user); got.code != http.StatusOK ||
				got.body != "the member's answer to "+protocol.PathKubernetes+"/version" {
				t.Errorf("through replica %d: %d %s, want the member's response", i, got.code, got.body)
			}
		}
	})
}

func TestTokenOfAnotherReplicaIsRememberedForAtMostTwoMinutes(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	for name, tt := range map[string]struct{ accepted, want time.Duration }{
		"now":                          {0, 2 * time.Minute},
		"a minute ago":                 {-time.Minute, time.Minute},
		"by a clock that is far ahead": {24 * time.Hour, 2 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			if got := tokenExpires(members.Peer{Epoch: now.Add(tt.accepted).UnixNano()}, now).Sub(now); got != tt.want {
				t.Errorf("the token is remembered for %s, want %s", got, tt.want)
			}
		})
	}
}
