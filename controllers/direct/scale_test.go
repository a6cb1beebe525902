// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	workspace, hubNamespace = "team", "drover-system"
	later                   = 20 * time.Millisecond
)

// fleet is a hub with Clusters and sessions that counts reads and the Clusters that are woken.
type fleet struct {
	*Reconciler
	t        *testing.T
	hub      client.WithWatch
	given    *deliveries
	handler  handler.EventHandler
	queue    workqueue.TypedRateLimitingInterface[reconcile.Request]
	sessions atomic.Int64 // lists of sessions
	clusters atomic.Int64 // lists of Clusters
	now      time.Time
}

func newFleet(t *testing.T, clusters, sessions int) *fleet {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	f := &fleet{t: t, now: time.Date(2026, 11, 1, 12, 1, 0, 0, time.UTC), given: &deliveries{}}
	key, err := keys.New(f.now)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := keys.Encode(keys.Set{key})
	if err != nil {
		t.Fatal(err)
	}
	provider := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "corp", UID: "p"}}
	objects := []client.Object{provider, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: signin.KeysSecret}, Data: map[string][]byte{signin.KeyOfKeys: raw}}}
	for i := range clusters {
		endpoint := v1.AuthorizedEndpoint{Server: "https://prod.example.com:6443"}
		if i%2 == 1 {
			endpoint.Mode = v1.AuthorizedEndpointAPIServer
		}
		objects = append(objects, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: fmt.Sprintf("c%d", i)}, Spec: v1.ClusterSpec{AuthorizedEndpoint: endpoint}})
	}
	objects = append(objects, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "without"}})
	for i := range sessions {
		objects = append(objects, f.session(i))
	}
	f.hub = interceptor.NewClient(fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			switch list.(type) {
			case *corev1.SecretList:
				f.sessions.Add(1)
			case *v1.ClusterList:
				f.clusters.Add(1)
			}
			return c.List(ctx, list, opts...)
		},
	})
	clock := func() time.Time { return f.now }
	issuer := signin.New(signin.Options{Issuer: "https://hub.example.com", Client: f.hub, Live: f.hub, Namespace: hubNamespace, Now: clock, Log: logr.Discard(), Direct: signin.Direct{Path: "/k8s/clusters/"},
		Disabled: func(context.Context, string) (bool, error) { return false, nil }})
	f.Reconciler = &Reconciler{Client: f.hub, Deliveries: f.given, Issuer: issuer, Now: clock}
	f.handler = f.Handler(later)
	f.queue = workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	t.Cleanup(f.queue.ShutDown)
	return f
}

// session returns a user's session at a provider, with a token for direct access.
func (f *fleet) session(i int) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: hubNamespace, Name: fmt.Sprintf("drover-session-%d", i), Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindSession}},
		Data: map[string][]byte{
			"principal": []byte(fmt.Sprintf("corp:u%d", i)), "provider": []byte("corp"), "providerUID": []byte("p"), "direct": []byte(f.now.Add(time.Hour).Format(time.RFC3339)),
		},
	}
}

// change stores a changed session, and passes the event to the handler.
func (f *fleet) change(i int, with func(*corev1.Secret)) {
	f.t.Helper()
	before := &corev1.Secret{}
	if err := f.hub.Get(f.t.Context(), types.NamespacedName{Namespace: hubNamespace, Name: fmt.Sprintf("drover-session-%d", i)}, before); err != nil {
		f.t.Fatal(err)
	}
	after := before.DeepCopy()
	with(after)
	if err := f.hub.Update(f.t.Context(), after); err != nil {
		f.t.Fatal(err)
	}
	f.handler.Update(f.t.Context(), event.UpdateEvent{ObjectOld: before, ObjectNew: after}, f.queue)
}

func revoke(s *corev1.Secret) { s.Data["revoked"] = []byte("true") }

// reconcileAll waits until the given number of Clusters have been woken, and reconciles them.
func (f *fleet) reconcileAll(want int) {
	f.t.Helper()
	testkit.Eventually(f.t, time.Minute, func(context.Context) error {
		if n := f.queue.Len(); n != want || f.denials.waking.Load() {
			return fmt.Errorf("%d Clusters are woken, want %d", n, want)
		}
		return nil
	})
	for range want {
		req, _ := f.queue.Get()
		if _, err := f.Reconcile(f.t.Context(), req); err != nil {
			f.t.Fatal(err)
		}
		f.queue.Done(req)
	}
}

// told returns the sessions that the member of a Cluster must deny.
func (f *fleet) told(cluster string) []string {
	f.t.Helper()
	name := types.NamespacedName{Namespace: workspace, Name: cluster}
	if _, err := f.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: name}); err != nil {
		f.t.Fatal(err)
	}
	access, _ := f.given.access(f.t, name)
	if access == nil {
		f.t.Fatalf("cluster %s is given nothing", cluster)
	}
	return access.Denied
}

// Users get tokens all day. This causes no work for Clusters. When sessions end, they are read only once rather than
// once for each Cluster.
func TestCostDoesNotGrowWithClustersTimesSessions(t *testing.T) {
	const clusters, sessions = 60, 300
	f := newFleet(t, clusters, sessions)
	for i := range sessions { // as at a manager's start
		f.handler.Create(t.Context(), event.CreateEvent{Object: f.session(i)}, f.queue)
	}
	for i := range sessions { // each user has another token
		f.change(i, func(s *corev1.Secret) { s.Data["direct"] = []byte(f.now.Add(2 * time.Hour).Format(time.RFC3339)) })
	}
	if f.reconcileAll(0); f.clusters.Load() != 0 {
		t.Errorf("the Clusters are listed %d times since users have tokens", f.clusters.Load())
	}
	for i := range clusters {
		if denied := f.told(fmt.Sprintf("c%d", i)); len(denied) > 0 {
			t.Fatalf("%v are denied", denied)
		}
	}
	if n := f.sessions.Load(); n != 1 {
		t.Errorf("all sessions are read %d times for %d Clusters", n, clusters)
	}
	began := time.Now()
	for i := range 100 { // as when an administrator ends the sessions of a group
		f.change(i, revoke)
	}
	f.reconcileAll(clusters)
	if lists, most := f.clusters.Load(), 1+time.Since(began).Milliseconds()/later.Milliseconds(); lists > most {
		t.Errorf("100 sessions are ended: all Clusters are listed %d times, want at most %d", lists, most)
	}
	if n := f.sessions.Load(); n != 2 {
		t.Errorf("all sessions are read %d times for %d Clusters, want once before and once after", n, clusters)
	}
	reads := f.sessions.Load()
	for i := range clusters {
		if denied := f.told(fmt.Sprintf("c%d", i)); len(denied) != 100 || !slices.IsSorted(denied) {
			t.Fatalf("cluster %d denies %d sessions, want 100", i, len(denied))
		}
	}
	if n := f.sessions.Load(); n != reads {
		t.Errorf("nothing has changed, and all sessions are read %d times", n-reads)
	}
}

func TestEventsThatMayEndASessionWakeAllClusters(t *testing.T) {
	f := newFleet(t, 3, 4)
	noted := func(s *corev1.Secret) { s.Data["direct"] = []byte(f.now.Add(2 * time.Hour).Format(time.RFC3339)) }
	f.change(0, revoke)
	f.reconcileAll(3)
	f.change(0, noted) // of a session in the list, which now stays in it for longer
	f.reconcileAll(3)
	f.change(0, func(s *corev1.Secret) { delete(s.Data, "revoked") })
	f.reconcileAll(3)
	if denied := f.told("c1"); len(denied) > 0 {
		t.Errorf("%v are denied", denied)
	}
	provider := &v1.AuthProvider{}
	if err := f.hub.Get(t.Context(), types.NamespacedName{Name: "corp"}, provider); err != nil {
		t.Fatal(err)
	}
	provider.Spec.Disabled = true
	if err := f.hub.Update(t.Context(), provider); err != nil {
		t.Fatal(err)
	}
	f.change(1, noted) // recorded in a session whose provider has just been disabled, before the event for that
	f.reconcileAll(3)
	f.handler.Update(t.Context(), event.UpdateEvent{ObjectOld: provider, ObjectNew: provider}, f.queue)
	f.reconcileAll(3)
	if denied := f.told("c2"); len(denied) != 4 {
		t.Errorf("%v are denied, want all of the provider", denied)
	}
	f.handler.Delete(t.Context(), event.DeleteEvent{Object: f.session(2)}, f.queue)
	f.reconcileAll(3)
	f.now = f.now.Add(3 * time.Hour)
	if denied := f.told("c0"); len(denied) > 0 {
		t.Errorf("%v are denied although their tokens have ended, without an event", denied)
	}
	f.handler.Delete(t.Context(), event.DeleteEvent{Object: f.session(-1)}, f.queue)
	f.reconcileAll(3) // the session still has an hour left
	ended := f.session(3)
	ended.Data["direct"] = []byte(f.now.Format(time.RFC3339))
	f.handler.Delete(t.Context(), event.DeleteEvent{Object: ended}, f.queue)
	f.reconcileAll(0)
}

func TestMembersReceiveTheDataThatServesUsers(t *testing.T) {
	f := newFleet(t, 2, 0)
	f.told("c0")
	byAgent, _ := f.given.access(t, types.NamespacedName{Namespace: workspace, Name: "c0"})
	f.told("c1")
	byAPIServer, _ := f.given.access(t, types.NamespacedName{Namespace: workspace, Name: "c1"})
	if byAgent.Mode != "" || byAPIServer.Mode != "APIServer" {
		t.Errorf("the modes are %q and %q: an agent that does not know the field must go on", byAgent.Mode, byAPIServer.Mode)
	}
	if _, err := f.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: workspace, Name: "without"}}); err != nil || f.given.wanted != nil {
		t.Errorf("a Cluster without is given %v (%v)", f.given.wanted, err)
	}
}
