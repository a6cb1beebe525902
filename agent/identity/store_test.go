// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity_test

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/agenttest"
	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
)

const path = "/api/v1/namespaces/drover-agent/secrets/" + protocol.IdentitySecret

func newStore(t *testing.T) (*identity.Store, *agenttest.APIServer) {
	t.Helper()
	api := agenttest.NewAPIServer(t)
	client, err := kube.New(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	return identity.NewStore(client.Secrets("drover-agent")), api
}

func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("of replicas that start at once, one makes the key and all have it", func(t *testing.T) {
		t.Parallel()
		store, api := newStore(t)
		ids := make([]*identity.Identity, 8)
		var running sync.WaitGroup
		for i := range ids {
			running.Go(func() {
				id, err := store.Ensure(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				ids[i] = id
			})
		}
		running.Wait()
		for _, id := range ids {
			if id == nil || !id.Key.Equal(ids[0].Key) || id.Joined() {
				t.Fatalf("got %+v", id)
			}
		}
		labels, _ := api.Get(path)["metadata"].(map[string]any)["labels"].(map[string]any)
		if labels["app.kubernetes.io/managed-by"] != "drover" {
			t.Errorf("labels %v", labels)
		}
	})

	t.Run("what is stored comes back", func(t *testing.T) {
		t.Parallel()
		store, _ := newStore(t)
		id, err := store.Ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id.Cluster = protocol.ClusterRef{Namespace: "a", Name: "b", UID: "c"}
		id.Audience, id.JoinedWith, id.After = "hub", identity.TokenDigest("token"), "fingerprint"
		id.Settings = &protocol.Settings{Servers: []string{"https://a"}, CABundle: "pem"}
		if err := store.Joined(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		got, err := store.Ensure(t.Context())
		if err != nil || !got.Joined() || !reflect.DeepEqual(got, id) {
			t.Errorf("got %+v, %v", got, err)
		}
		next := protocol.Settings{Servers: []string{"https://b"}}
		if err := store.SetSettings(t.Context(), next, "other"); err != nil {
			t.Fatal(err)
		}
		got, err = store.Ensure(t.Context())
		if err != nil || !reflect.DeepEqual(*got.Settings, next) || got.After != "other" || !got.Key.Equal(id.Key) || got.Audience != "hub" {
			t.Errorf("got %+v, %v", got, err)
		}
	})

	t.Run("concurrent updates all succeed", func(t *testing.T) {
		t.Parallel()
		store, _ := newStore(t)
		if _, err := store.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				if err := store.SetSettings(t.Context(), protocol.Settings{Servers: []string{"https://a"}}, "x"); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
	})

	t.Run("joining with a key that was replaced is an error", func(t *testing.T) {
		t.Parallel()
		store, api := newStore(t)
		old, err := store.Ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		api.Delete(path)
		if _, err := store.Ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := store.Joined(t.Context(), old); !errors.Is(err, identity.ErrReplaced) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a Secret without a usable key says what to do and nothing of what it holds", func(t *testing.T) {
		t.Parallel()
		store, api := newStore(t)
		api.Put(t, path, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: protocol.IdentitySecret, Namespace: "drover-agent"},
			Data:       map[string][]byte{"key.pem": []byte("hunter2")},
		})
		_, err := store.Ensure(t.Context())
		if err == nil || !strings.Contains(err.Error(), "delete the Secret") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	})
}
