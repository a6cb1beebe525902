// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/link"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/agenttest"
)

const (
	secrets      = "/api/v1/namespaces/drover-agent/secrets/"
	identityPath = secrets + protocol.IdentitySecret
)

// world is a hub, a member's API server, and a Keeper.
type world struct {
	*Keeper
	hub *agenttest.Hub
	api *agenttest.APIServer
	ca  *agenttest.Authority
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ca := agenttest.NewAuthority(t, "hub CA")
	w := &world{hub: agenttest.NewHub(t, ca), api: agenttest.NewAPIServer(t), ca: ca}
	w.keeper(t, Manifest{Mode: v1.TrustPinned, Servers: []string{w.hub.URL}, Checksums: []string{ca.Checksum()}})
	return w
}

// keeper starts a new Keeper, as after a restart with this manifest.
func (w *world) keeper(t *testing.T, m Manifest) {
	t.Helper()
	client, err := kube.New(w.api.Config())
	if err != nil {
		t.Fatal(err)
	}
	w.Keeper = New(Options{
		Secrets: client.Secrets("drover-agent"), Namespace: "drover-agent", Manifest: m, ClusterUID: "member-uid",
		Log: logr.Discard(),
	})
}

func (w *world) give(t *testing.T, token string) {
	t.Helper()
	w.api.Put(t, secrets+protocol.RegistrationSecret, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: protocol.RegistrationSecret, Namespace: "drover-agent"},
		Data:       map[string][]byte{protocol.KeyToken: []byte(token + "\n")},
	})
}

// joins returns the keys that were registered, by token.
func (w *world) joins() map[string][]byte {
	keys := map[string][]byte{}
	w.hub.OnRegister(func(token string, r protocol.RegisterRequest) (int, any) {
		keys[token] = r.PublicKey
		return http.StatusOK, w.hub.Accepted()
	})
	return keys
}

func gone() error { return &tunnel.HandshakeError{StatusCode: http.StatusGone} }

func (w *world) target(t *testing.T, last error) *link.Target {
	t.Helper()
	target, err := w.Target(t.Context(), last)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

func TestTarget(t *testing.T) {
	t.Parallel()
	t.Run("without a token it says what to do and counts as refused", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		_, err := w.Target(t.Context(), nil)
		if !link.IsRejection(err) || !strings.Contains(err.Error(), "apply the manifest") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("it joins once, without a bundle too, and signs with the key that joined", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		keys := w.joins()
		w.target(t, nil)
		keys["token-1 again"] = nil
		target := w.target(t, nil)
		token, err := target.Token()
		if err != nil {
			t.Fatal(err)
		}
		claims, err := protocol.VerifyConnectToken(token, ed25519.PublicKey(keys["token-1"]), "hub-1", time.Now())
		if err != nil || claims.Cluster.String() != "team-a/member" || claims.ClusterUID != "member-uid" {
			t.Errorf("the token's claims are %+v, %v, want those of team-a/member with the UID member-uid", claims, err)
		}
		other, err := target.Token()
		if err != nil || other == token {
			t.Error("two attempts have the same token")
		}
		if w.Digest() == "" {
			t.Error("the settings of the answer are not in force")
		}
	})

	t.Run("a hub that no longer knows it gets the same key with a new token only", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		keys := w.joins()
		w.target(t, nil)
		w.target(t, gone())
		w.give(t, "token-2")
		w.target(t, errors.New("connection refused"))
		if len(keys) != 1 {
			t.Fatalf("joined with %d tokens before there was a reason", len(keys))
		}
		w.target(t, gone())
		if len(keys) != 2 || !reflect.DeepEqual(keys["token-1"], keys["token-2"]) {
			t.Errorf("got %v", keys)
		}
	})

	t.Run("after a restart it knows which token it joined with", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		w.keeper(t, w.options.Manifest)
		keys := w.joins()
		w.target(t, gone())
		if len(keys) > 0 {
			t.Errorf("joined again with %v", keys)
		}
	})

	t.Run("when the identity Secret was deleted it joins with a new key", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		keys := w.joins()
		w.target(t, nil)
		w.api.Delete(identityPath)
		w.give(t, "token-2")
		w.keeper(t, w.options.Manifest) // a running agent restores its identity
		w.target(t, nil)
		if len(keys) != 2 || reflect.DeepEqual(keys["token-1"], keys["token-2"]) {
			t.Errorf("got %v", keys)
		}
	})

	t.Run("a refused new token leaves the old identity in place", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		w.give(t, "token-2")
		w.hub.OnRegister(func(string, protocol.RegisterRequest) (int, any) {
			return http.StatusForbidden, protocol.Refusal{Reason: v1.ReasonTokenExpired, Message: "expired"}
		})
		_, err := w.Target(t.Context(), gone())
		if refused := (*refusedError)(nil); !errors.As(err, &refused) || refused.Refusal.Reason != v1.ReasonTokenExpired {
			t.Fatalf("got %v", err)
		}
		w.target(t, err)
	})

	t.Run("announced settings apply to the next connection until another manifest comes", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		s := protocol.Settings{Servers: []string{"https://new.example"}, CABundle: w.ca.Bundle(),
			Registry: "registry.example"}
		if err := w.announce(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if got := w.target(t, nil).Servers; !reflect.DeepEqual(got, []string{"https://new.example", w.hub.URL}) ||
			w.Digest() != s.Digest() {
			t.Errorf("servers %v, digest %q", got, w.Digest())
		}
		if w.Registry() != "registry.example" {
			t.Errorf("registry %q", w.Registry())
		}
		next := agenttest.NewAuthority(t, "next")
		w.keeper(t,
			Manifest{Mode: v1.TrustPinned, Servers: []string{w.hub.URL}, Checksums: []string{w.ca.Checksum(), next.Checksum()}})
		if got := w.target(t, nil).Servers; !reflect.DeepEqual(got, []string{w.hub.URL}) || w.Digest() != "" ||
			w.Registry() != "" {
			t.Errorf("servers %v, digest %q under another manifest", got, w.Digest())
		}
	})
}

func TestChanged(t *testing.T) {
	t.Parallel()
	returned := func(ctx context.Context, w *world) <-chan struct{} {
		done := make(chan struct{})
		go func() { defer close(done); w.Changed(ctx) }()
		return done
	}
	t.Run("a new token ends the wait, the old one and other Secrets don't", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		done := returned(t.Context(), w)
		w.give(t, "token-1")
		if err := w.announce(t.Context(), w.hub.Accepted().Settings); err != nil {
			t.Fatal(err)
		}
		select {
		case <-done:
			t.Fatal("returned for the token that it joined with")
		default:
		}
		w.give(t, "token-2")
		<-done
	})
	t.Run("a token that was there and not tried yet ends it at once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		<-returned(t.Context(), w)
	})
	t.Run("it ends with its context", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		done := returned(ctx, w)
		cancel()
		<-done
	})
}

func TestDial(t *testing.T) {
	t.Parallel()
	dial := func(t *testing.T, w *world) error {
		t.Helper()
		target := w.target(t, nil)
		_, err := target.Dial(t.Context(), "wss"+strings.TrimPrefix(w.hub.URL, "https")+protocol.PathConnect, http.Header{})
		return err
	}
	t.Run("CVE-2024-22030: a certificate of another CA is refused, also after joining", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		w.hub.Serve(agenttest.NewAuthority(t, "another").Serving(t))
		before := len(w.hub.Seen())
		if err := dial(t, w); err == nil || !strings.Contains(err.Error(), "certificate") {
			t.Errorf("got %v", err)
		}
		if len(w.hub.Seen()) != before {
			t.Error("a request was sent")
		}
	})
	t.Run("a refusal is recognized as one", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.hub.OnConnect(func(string) (int, protocol.Refusal) {
			return http.StatusUnauthorized, protocol.Refusal{Reason: "X", Message: "y"}
		})
		err := dial(t, w)
		if refused := (*tunnel.HandshakeError)(nil); !errors.As(err, &refused) ||
			!strings.Contains(refused.Body, `"reason":"X"`) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDescribeSkew(t *testing.T) {
	t.Parallel()
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		hub  time.Duration
		says string
	}{
		"a little is fine":  {20 * time.Second, ""},
		"behind":            {2 * time.Minute, "2m0s behind the hub's"},
		"ahead":             {-time.Hour, "1h0m0s ahead of the hub's"},
		"the limit is fine": {-protocol.ClockSkew, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, _ := describeSkew(now, now.Add(tc.hub)); !strings.Contains(got, tc.says) || (tc.says == "") != (got == "") {
				t.Errorf("got %q", got)
			}
		})
	}
}

func TestTokenDigest(t *testing.T) {
	t.Parallel()
	if tokenDigest("") != "" || tokenDigest("a") == tokenDigest("b") || strings.Contains(tokenDigest("abc"), "abc") {
		t.Error("digests of two tokens must differ and hide the tokens")
	}
}
