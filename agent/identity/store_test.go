// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

const path = "/api/v1/namespaces/drover-agent/secrets/" + protocol.IdentitySecret

func storeOf(t *testing.T) (*store, *agenttest.APIServer) {
	t.Helper()
	api := agenttest.NewAPIServer(t)
	client, err := kube.New(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &store{client.Secrets("drover-agent")}, api
}

func TestStore(t *testing.T) {
	t.Parallel()
	t.Run("of replicas that start at once, one makes the key and all have it", func(t *testing.T) {
		t.Parallel()
		store, api := storeOf(t)
		ids := make([]*identity, 8)
		var running sync.WaitGroup
		for i := range ids {
			running.Go(func() {
				id, err := store.ensure(t.Context())
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
		store, _ := storeOf(t)
		id, err := store.ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		id.Cluster = protocol.ClusterRef{Namespace: "a", Name: "b", UID: "c"}
		id.Audience, id.JoinedWith, id.After = "hub", tokenDigest("token"), "fingerprint"
		id.Settings = &protocol.Settings{Servers: []string{"https://a"}, CABundle: "pem"}
		if err := store.joined(t.Context(), id); err != nil {
			t.Fatal(err)
		}
		got, err := store.ensure(t.Context())
		if err != nil || !got.Joined() || !reflect.DeepEqual(got, id) {
			t.Errorf("got %+v, %v", got, err)
		}
		next := protocol.Settings{Servers: []string{"https://b"}}
		if err := store.setSettings(t.Context(), next, "other"); err != nil {
			t.Fatal(err)
		}
		got, err = store.ensure(t.Context())
		if err != nil || !reflect.DeepEqual(*got.Settings, next) || got.After != "other" || !got.Key.Equal(id.Key) ||
			got.Audience != "hub" {
			t.Errorf("got %+v, %v", got, err)
		}
	})

	t.Run("concurrent updates all succeed", func(t *testing.T) {
		t.Parallel()
		store, _ := storeOf(t)
		if _, err := store.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		var running sync.WaitGroup
		for range 4 {
			running.Go(func() {
				if err := store.setSettings(t.Context(), protocol.Settings{Servers: []string{"https://a"}}, "x"); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
	})

	t.Run("joining with a key that was replaced is an error", func(t *testing.T) {
		t.Parallel()
		store, api := storeOf(t)
		old, err := store.ensure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		api.Delete(path)
		if _, err := store.ensure(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := store.joined(t.Context(), old); !errors.Is(err, errReplaced) {
			t.Errorf("got %v", err)
		}
	})

	t.Run("a Secret without a usable key says what to do and nothing of what it holds", func(t *testing.T) {
		t.Parallel()
		store, api := storeOf(t)
		api.Put(t, path, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: protocol.IdentitySecret, Namespace: "drover-agent"},
			Data:       map[string][]byte{"key.pem": []byte("hunter2")},
		})
		_, err := store.ensure(t.Context())
		if err == nil || !strings.Contains(err.Error(), "delete the Secret") || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v", err)
		}
	})
}
