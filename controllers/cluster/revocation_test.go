// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"crypto/ed25519"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/cluster"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// follower is a replica that does not lead, with a tunnel of the world's member.
type follower struct {
	*world
	registry *members.Registry
	revoker  *cluster.Revoker
}

func newFollower(w *world, key ed25519.PublicKey) *follower {
	w.t.Helper()
	f := &follower{world: w, registry: members.New(logr.Discard(), w.clock.Now)}
	w.t.Cleanup(f.registry.Close)
	f.revoker = &cluster.Revoker{Client: w.Client, Live: w.Client, Tunnels: f.registry.Tunnels}
	f.registry.Add(members.Peer{
		Cluster: protocol.ClusterRef{Namespace: w.name.Namespace, Name: w.name.Name, UID: string(w.cluster().UID)}, Key: registration.KeyID(key),
	}, testkit.ConnectAgent(w.t, testkit.HealthyReport()).Session)
	return f
}

// revoke reconciles the Cluster, and checks whether the tunnel still exists afterward.
func (f *follower) revoke(want bool) {
	f.t.Helper()
	if _, err := f.revoker.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: f.name}); err != nil {
		f.t.Fatal(err)
	}
	if want {
		if len(f.registry.Local(f.name)) != 1 {
			f.t.Error("the tunnel was ended")
		}
		return
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(testkit.Patience * 10 * time.Second)
	for len(f.registry.Local(f.name)) > 0 {
		select {
		case <-tick.C:
		case <-deadline:
			f.t.Fatal("the tunnel is still there")
		}
	}
}

// behind is a cache that has not received an object yet.
type behind struct{ client.Reader }

func (behind) Get(_ context.Context, name client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: "any"}, name.Name)
}

// behindSecrets is a cache that has received the Cluster and no Secret.
type behindSecrets struct{ client.Reader }

func (b behindSecrets) Get(ctx context.Context, name client.ObjectKey, object client.Object, options ...client.GetOption) error {
	if _, secret := object.(*corev1.Secret); secret {
		return behind(b).Get(ctx, name, object, options...)
	}
	return b.Reader.Get(ctx, name, object, options...)
}

func TestRevokerOnAFollower(t *testing.T) {
	env := testkit.Shared(t)
	for title, test := range map[string]func(*world, *follower){
		"a rightful tunnel stays": func(_ *world, f *follower) { f.revoke(true) },
		"a tunnel ends when the agent's Secret is deleted": func(w *world, f *follower) {
			w.drop(w.secret(registration.AgentSecret(w.name)))
			f.revoke(false)
		},
		"a tunnel ends when the agent's Secret is no longer Drover's": func(w *world, f *follower) {
			secret := w.secret(registration.AgentSecret(w.name))
			secret.Labels = nil
			if err := w.Client.Update(w.t.Context(), secret); err != nil {
				w.t.Fatal(err)
			}
			f.revoke(false)
		},
		"a tunnel ends when another agent has joined in its place": func(w *world, f *follower) {
			w.drop(w.secret(registration.AgentSecret(w.name)))
			w.join()
			f.revoke(false)
		},
		"a tunnel ends when the Cluster is gone": func(w *world, f *follower) {
			w.drop(w.cluster())
			w.finalize()
			f.revoke(false)
			if state := f.registry.State(w.name); !state.LastSeen.IsZero() {
				w.t.Errorf("remembered: %+v", state)
			}
		},
		"a cache without the Cluster ends nothing": func(w *world, f *follower) {
			f.revoker.Client = behind{w.Client}
			f.revoke(true)
		},
		"a cache without the agent's Secret ends nothing": func(w *world, f *follower) {
			f.revoker.Client = behindSecrets{w.Client}
			f.revoke(true)
		},
		"a workspace that is being deleted keeps the tunnel for the uninstallation": func(w *world, f *follower) {
			w.drop(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name.Namespace}})
			w.drop(w.secret(registration.AgentSecret(w.name)))
			f.revoke(true)
		},
	} {
		t.Run(title, func(t *testing.T) {
			w := newWorld(t, env)
			_, key := w.joined()
			test(w, newFollower(w, key))
		})
	}
}

func (w *world) drop(object client.Object) {
	w.t.Helper()
	if err := w.Client.Delete(w.t.Context(), object); err != nil {
		w.t.Fatal(err)
	}
}

// finalize removes the finalizer of a deleted Cluster.
func (w *world) finalize() {
	w.t.Helper()
	c := w.cluster()
	c.Finalizers = nil
	if err := w.Client.Update(w.t.Context(), c); err != nil {
		w.t.Fatal(err)
	}
}

func testReplicasNotHeardYet(w *world) {
	agent, _ := w.joined()
	agent.Kill()
	w.until(func(s members.State) bool { return !s.Connected() })
	heard := false
	w.r.Synced = func() bool { return heard }
	w.r.Started = w.clock.Now() // in the first half minute, too
	if result := w.reconcile(); result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
		w.t.Errorf("looks again after %s", result.RequeueAfter)
	}
	w.ready(metav1.ConditionTrue, v1.ReasonConnected)
	heard = true
	w.reconcile()
	w.ready(metav1.ConditionFalse, v1.ReasonTunnelLost)
	heard = false
	w.delete()
	w.clock.Advance(time.Hour) // no replica has led in the meantime
	w.reconcile()
	if c := w.cluster(); len(c.Finalizers) == 0 {
		w.t.Error("let go although its agent may be connected to another replica")
	}
	heard = true
	w.reconcile()
	w.gone()
}
