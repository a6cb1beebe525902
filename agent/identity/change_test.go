// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// registrations records the registration requests of a hub, by token.
type registrations struct {
	mu    sync.Mutex
	asked map[string][]protocol.RegisterRequest
}

func (r *registrations) of(token string) []protocol.RegisterRequest {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[token]
}

// following returns an agent that has joined with token-1 and runs Follow, and a hub that responds to other tokens with
// a status.
func following(t *testing.T, status int, refusal protocol.Refusal) (*world, *registrations) {
	t.Helper()
	w, r := newWorld(t), &registrations{asked: map[string][]protocol.RegisterRequest{}}
	w.hub.OnRegister(func(token string, request protocol.RegisterRequest) (int, any) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.asked[token] = append(r.asked[token], request)
		if token != "token-1" && status != http.StatusOK {
			return status, refusal
		}
		return http.StatusOK, w.hub.Accepted()
	})
	w.give(t, "token-1")
	w.target(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { w.Follow(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return w, r
}

// stored waits until the identity satisfies is.
func (w *world) stored(t *testing.T, is func(*identity) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			var secret *corev1.Secret
			secret, err := w.options.Secrets.Get(ctx, protocol.IdentitySecret)
			if err != nil {
				return false, nil
			}
			id, err := decode(secret.Data)
			return err == nil && is(id), nil
		})
	if err != nil {
		t.Fatal("the identity is not as it should be")
	}
}

func TestRunningAgentGetsANewKeyWithANewToken(t *testing.T) {
	t.Parallel()
	w, asked := following(t, http.StatusOK, protocol.Refusal{})
	w.give(t, "token-2")
	w.stored(t, func(id *identity) bool { return id.JoinedWith == tokenDigest("token-2") })
	first, second := asked.of("token-1")[0], asked.of("token-2")[0]
	if ed25519.PublicKey(first.PublicKey).Equal(ed25519.PublicKey(second.PublicKey)) {
		t.Error("it joined with the key that it had")
	}
	if first.Current != nil || second.Current == nil || second.Current.Cluster != w.hub.Accepted().Cluster ||
		!ed25519.Verify(first.PublicKey, protocol.ProofPayload("token-2", second.ClusterUID), second.Current.Proof) {
		t.Errorf("it does not prove which Cluster it is: %+v", second.Current)
	}
	w.target(t, nil)
	if n := len(asked.of("token-2")); n != 1 {
		t.Errorf("joined %d times", n)
	}
}

func TestRefusedNodeAgentWaitsForANewToken(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.give(t, "token-1")
	w.target(t, nil)
	options := w.options
	options.NodeAgent = true
	node := New(options)
	for _, token := range []string{"token-1", "token-2"} {
		w.give(t, token)
		registration, err := w.options.Secrets.Get(t.Context(), protocol.RegistrationSecret)
		if err != nil {
			t.Fatal(err)
		}
		if !node.freshToken(watch.Modified, registration) {
			t.Errorf("%s is no reason for an attempt, want one", token)
		}
		if _, err = node.Target(t.Context(), gone()); err != nil {
			t.Fatal(err)
		}
		if node.freshToken(watch.Added, registration) {
			t.Errorf("%s is a reason for attempts without end, want one attempt", token)
		}
	}
}

func TestRunningAgentKeepsItsKeyUntilANewOneIsRegistered(t *testing.T) {
	t.Parallel()
	old := func(id *identity) bool { return id.JoinedWith == tokenDigest("token-1") }
	t.Run("where the new token is refused", func(t *testing.T) {
		t.Parallel()
		w, asked := following(t, http.StatusGone, protocol.Refusal{Reason: v1.ReasonTokenExpired})
		w.give(t, "token-2")
		err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true,
			func(context.Context) (bool, error) {
				return !w.untried("token-2"), nil
			})
		if err != nil || len(asked.of("token-2")) != 1 {
			t.Errorf("%v: asked %d times", err, len(asked.of("token-2")))
		}
		w.stored(t, old)
	})
	t.Run("where it is another Cluster already, and that may change", func(t *testing.T) {
		t.Parallel()
		w, _ := following(t, http.StatusForbidden, protocol.Refusal{Reason: v1.ReasonAlreadyImported})
		w.give(t, "token-2")
		if err := w.rejoin(t.Context()); !isElsewhere(err) || !w.untried("token-2") {
			t.Errorf("got %v", err)
		}
		registration, err := w.options.Secrets.Get(t.Context(), protocol.RegistrationSecret)
		if err != nil || w.freshToken(watch.Modified, registration) {
			t.Errorf("%v: a link that is refused tries it again and again", err)
		}
		w.stored(t, old)
	})
	t.Run("where a user deletes its identity", func(t *testing.T) {
		t.Parallel()
		w, asked := following(t, http.StatusOK, protocol.Refusal{})
		w.api.Delete(identityPath)
		if err := w.restore(t.Context()); err != nil { // Follow does this when the watch reports the deletion
			t.Fatal(err)
		}
		w.stored(t, old)
		w.target(t, nil)
		if n := len(asked.of("token-1")); n != 1 {
			t.Errorf("joined %d times", n)
		}
	})
	t.Run("but not while it is uninstalled", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.give(t, "token-1")
		w.target(t, nil)
		w.Leave()
		w.api.Delete(identityPath)
		if _, err := w.options.Secrets.Get(t.Context(), protocol.IdentitySecret); err == nil ||
			errors.Is(err, context.Canceled) {
			t.Errorf("it is back: %v", err)
		}
	})
}
