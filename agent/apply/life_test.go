// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/apply"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

func TestLife(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	t.Run("a set's time is over without the hub, and stays over", func(t *testing.T) { m.expires(t) })
	t.Run("what an earlier agent left is offered, taken over or removed", func(t *testing.T) { m.leftBehind(t) })
	t.Run("a set larger than a Secret is kept and read again", func(t *testing.T) { m.large(t) })
	t.Run("a set takes no longer than two writes", func(t *testing.T) { m.latency(t) })
	t.Run("what another replica or an agent that only reads is asked", func(t *testing.T) { m.refuses(t) })
	t.Run("whatever is put, taken away and cut off, the last sets are there and nothing else", func(t *testing.T) {
		for seed := range uint64(3) {
			m.random(t, rand.New(rand.NewPCG(seed, 11)))
			if t.Failed() {
				t.Fatalf("seed %d", seed)
			}
		}
	})
}

func (m *member) expires(t *testing.T) {
	id := "crtb/guest"
	a := m.lead(t)
	a.applied(t, newSet(t, id, objectsOf(id, binding("drover:guest", "view", "guest")), time.Now().Add(2*time.Second)))
	a.await(t, id, protocol.SetExpired)
	m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:guest"}})
	a.stop()
	b := m.lead(t)
	b.await(t, id, protocol.SetExpired)
	past := newSet(t, "crtb/late", objectsOf("crtb/late", binding("drover:late", "view", "late")), time.Now().Add(-time.Second))
	if state := b.put(t, past); state.Phase != protocol.SetExpired {
		t.Errorf("got %+v", state)
	}
	m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:late"}})
	b.remove(t, id)
	b.remove(t, past.ID)
	b.stop()
}

// leftBehind loses the store of an agent, as when its namespace is deleted.
func (m *member) leftBehind(t *testing.T) {
	long := "crtb/" + strings.Repeat("long-name.", 20) + "end"
	ids := []string{"crtb/owner", "crtb/guest.of.two", "crtb/extra", long}
	a := m.lead(t)
	for _, id := range ids {
		a.applied(t, newSet(t, id, objectsOf(id, binding("drover:"+expansion.SetLabel(id), "view", "x"))))
	}
	a.stop()
	copied := binding("drover:copied", "view", "x")
	m.applyAs(t, "kubectl", objectsOf(ids[0], copied).Objects[0].Object)
	if err := m.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(protocol.AgentNamespace), client.MatchingFields{"type": v1.Group + "/set"}); err != nil {
		t.Fatal(err)
	}
	b := m.lead(t)
	left := func(id string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:" + expansion.SetLabel(id)}}
	}
	for _, id := range ids[:3] {
		b.await(t, id, protocol.SetPending)
	}
	b.await(t, "left/"+expansion.SetLabel(long), protocol.SetPending)
	for _, id := range ids {
		m.there(t, left(id)) // until the hub has said what it wants
	}
	b.applied(t, newSet(t, ids[0], objectsOf(ids[0], binding("drover:"+expansion.SetLabel(ids[0]), "view", "x"))))
	for _, id := range ids[1:3] {
		b.remove(t, id)
		m.gone(t, left(id))
	}
	m.there(t, left(ids[0]))
	m.there(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:copied"}}) // a person's

	b.applied(t, newSet(t, long, objectsOf(long, binding("drover:"+expansion.SetLabel(long), "view", "x"))))
	b.remove(t, "left/"+expansion.SetLabel(long)) // which the hub does not know to be the same
	m.there(t, left(long))
	b.remove(t, long)
	m.gone(t, left(long))
	b.remove(t, ids[0])
	b.stop()
}

func (m *member) large(t *testing.T) {
	noise := make([]byte, 700_000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	id := "secrets/big"
	c := expansion.Content{}
	for i := range 3 {
		more := objectsOf(id, map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{"name": fmt.Sprintf("big-%d", i), "namespace": "default"},
			"data": map[string]any{"x": base64.StdEncoding.EncodeToString(noise)}})
		c.Objects = append(c.Objects, more.Objects...)
	}
	a := m.lead(t)
	a.applied(t, newSet(t, id, c))
	if n := m.stored(t); n < 3 {
		t.Errorf("%d Secrets", n)
	}
	a.stop()
	b := m.lead(t)
	b.await(t, id, protocol.SetApplied)
	b.remove(t, id)
	if n := m.stored(t); n != 0 {
		t.Errorf("%d Secrets are left", n)
	}
	b.stop()
}

// stored counts the Secrets that hold sets.
func (m *member) stored(t *testing.T) int {
	t.Helper()
	list := &corev1.SecretList{}
	if err := m.Client.List(t.Context(), list, client.InNamespace(protocol.AgentNamespace)); err != nil {
		t.Fatal(err)
	}
	return len(slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return s.Type != v1.Group+"/set" }))
}

func (m *member) latency(t *testing.T) {
	a := m.lead(t)
	var took []time.Duration
	before := a.writes.Load()
	const n = 100
	for i := range n {
		id := fmt.Sprintf("crtb/b%d", i)
		set := newSet(t, id, objectsOf(id, binding("drover:"+expansion.SetLabel(id), "view", "x")))
		begun := time.Now()
		a.applied(t, set)
		took = append(took, time.Since(begun))
	}
	if writes := a.writes.Load() - before; writes != 2*n {
		t.Errorf("%d writes for %d sets", writes, n)
	}
	slices.Sort(took)
	t.Logf("put to applied: p50 %s, p99 %s", took[n/2], took[n*99/100])
	for i := range n {
		a.remove(t, fmt.Sprintf("crtb/b%d", i))
	}
	if writes := a.writes.Load() - before; writes != 4*n {
		t.Errorf("%d writes for %d sets made and taken away", writes, n)
	}
	a.stop()
}

func (m *member) refuses(t *testing.T) {
	a := m.lead(t, func(o *apply.Options) { o.ReadOnly = true })
	state := a.put(t, newSet(t, "role/x", objectsOf("role/x", role("drover:x", "get"))))
	if state.Phase != protocol.SetReadOnly || a.writes.Load() != 0 {
		t.Errorf("got %+v, %d writes", state, a.writes.Load())
	}
	for path, want := range map[string]int{protocol.PathSets + "/a/../b": http.StatusUnprocessableEntity, protocol.PathSets + "/A": http.StatusUnprocessableEntity} {
		if got := a.ask(t, http.MethodPut, path, nil); got.Code != want {
			t.Errorf("%s: %d", path, got.Code)
		}
	}
	a.stop()
	if got := a.ask(t, http.MethodPut, protocol.SetPath("role/x"), nil); got.Code != http.StatusMisdirectedRequest {
		t.Errorf("who does not lead answers %d", got.Code)
	}
	b := m.lead(t)
	if got := b.ask(t, http.MethodPut, protocol.SetPath("role/x"), []byte(`{"id":"role/x","digest":"x"}`)); got.Code != http.StatusUnprocessableEntity {
		t.Errorf("a wrong digest: %d", got.Code)
	}
	b.stop()
}

// random does things to sets, with agents that end at any time, and compares what is there in the end.
func (m *member) random(t *testing.T, r *rand.Rand) {
	a := m.lead(t)
	last := map[string]protocol.Set{}
	for range 30 {
		id := fmt.Sprintf("role/r%d", r.IntN(4))
		switch r.IntN(6) {
		case 0:
			a.remove(t, id)
			delete(last, id)
		case 1: // cut off in the middle of a put, which the hub then repeats
			set := m.randomSet(t, r, id)
			begun, body := a, marshal(t, set)
			asked := make(chan struct{})
			go func() {
				defer close(asked)
				begun.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPut, protocol.SetPath(id), bytes.NewReader(body)))
			}()
			if r.IntN(2) == 0 {
				_ = m.Client.Get(t.Context(), client.ObjectKey{Name: "drover:" + expansion.SetLabel(id)}, &rbacv1.ClusterRole{})
			}
			a.stop()
			<-asked
			a = m.lead(t)
			a.applied(t, set)
			last[id] = set
		case 2: // a user deletes
			_ = m.Client.Delete(t.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("drover:%s:%d", expansion.SetLabel(id), r.IntN(3))}})
		default:
			set := m.randomSet(t, r, id)
			a.applied(t, set)
			last[id] = set
		}
	}
	want := map[string]bool{}
	for _, set := range last {
		for _, o := range set.Content.Objects {
			want[o.GetName()] = true
		}
	}
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		list := &rbacv1.ClusterRoleList{}
		if err := m.Client.List(ctx, list); err != nil {
			return err
		}
		got := map[string]bool{}
		for _, o := range list.Items {
			if strings.HasPrefix(o.Name, "drover:role.") {
				got[o.Name] = true
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			return fmt.Errorf("there are %v, and should be %v", got, want)
		}
		return nil
	})
	for id := range last {
		a.remove(t, id)
	}
	if n := m.stored(t); n != 0 {
		t.Errorf("%d Secrets are left", n)
	}
	a.stop()
}

func (m *member) randomSet(t *testing.T, r *rand.Rand, id string) protocol.Set {
	var all []map[string]any
	for i := range 3 {
		if r.IntN(2) == 0 {
			all = append(all, role(fmt.Sprintf("drover:%s:%d", expansion.SetLabel(id), i), fmt.Sprintf("v%d", r.IntN(3))))
		}
	}
	return newSet(t, id, objectsOf(id, all...))
}

func marshal(t *testing.T, set protocol.Set) []byte {
	t.Helper()
	raw, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
