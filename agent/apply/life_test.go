// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/apply"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// racing calls first once, just before the agent's first write.
type racing struct {
	next  http.RoundTripper
	first func()
}

func (r racing) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method == http.MethodPatch {
		r.first()
	}
	return r.next.RoundTrip(req)
}

// raced checks the case that another client creates an object at the moment when the agent applies it.
func (m *fixture) raced(t *testing.T) {
	const id, name = "role/raced", "drover:raced"
	var before *rbacv1.ClusterRole
	racer := m.kube(t, func(next http.RoundTripper) http.RoundTripper {
		return racing{next, sync.OnceFunc(func() { before = m.foreignRole(t, name, "get") })}
	})
	a := m.lead(t, func(o *apply.Options) { o.Objects = racer.Objects() })
	defer a.stop()
	a.put(t, newSet(t, id, objectsOf(id, role(name, "get"))))
	state := a.await(t, id, protocol.SetConflict)
	if len(state.Objects) != 1 || !strings.Contains(state.Objects[0].Message, `made by "admin"`) {
		t.Errorf("got the state %+v, want a conflict with the client that created the object", state)
	}
	a.remove(t, id)
	if after := m.clusterRole(t, name); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("got the object %+v, want it as the other client created it", after)
	}
}

// late delays watch events while the gate is locked.
type late struct {
	next http.RoundTripper
	gate *sync.RWMutex
}

func (l late) RoundTrip(req *http.Request) (*http.Response, error) {
	response, err := l.next.RoundTrip(req)
	if err == nil && req.URL.Query().Get("watch") != "" {
		response.Body = lateBody{response.Body, l.gate}
	}
	return response, err
}

type lateBody struct {
	io.ReadCloser
	gate *sync.RWMutex
}

func (b lateBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.gate.RLock()
	defer b.gate.RUnlock()
	return n, err
}

// behind changes and removes a set whose object a user has replaced, before the watch reports that.
func (m *fixture) behind(t *testing.T) {
	const id, name = "role/behind", "drover:behind"
	var gate sync.RWMutex
	c := m.kube(t, func(next http.RoundTripper) http.RoundTripper { return late{next, &gate} })
	a := m.lead(t, func(o *apply.Options) { o.Client = c.REST })
	defer a.stop()
	a.applied(t, newSet(t, id, objectsOf(id, role(name, "get"))))
	gate.Lock()
	defer gate.Unlock()
	if err := m.Client.Delete(t.Context(), m.clusterRole(t, name)); err != nil {
		t.Fatal(err)
	}
	theirs := m.foreignRole(t, name, "list")
	state := a.put(t, newSet(t, id, objectsOf(id, role(name, "watch"))))
	if state.Phase != protocol.SetConflict || !strings.Contains(fmt.Sprint(state.Objects), `made by "admin"`) {
		t.Errorf("got the state %+v, want a conflict with the client that created the object", state)
	}
	a.remove(t, id)
	if after := m.clusterRole(t, name); after.ResourceVersion != theirs.ResourceVersion {
		t.Errorf("got the object %+v, want it as the other client created it", after)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	t.Run("a set expires without the hub, and stays expired", func(t *testing.T) { m.expires(t) })
	t.Run("the hub's checkpoint is stored, and reported before the sets", func(t *testing.T) { m.checkpoint(t) })
	t.Run("sets of an earlier agent are offered, taken over or removed", func(t *testing.T) { m.leftBehind(t) })
	t.Run("a set larger than a Secret is stored and read again", func(t *testing.T) { m.large(t) })
	t.Run("a set takes two writes and no read", func(t *testing.T) { m.latency(t) })
	t.Run("an object that another client creates just before the agent stays as it is", func(t *testing.T) { m.raced(t) })
	t.Run("an object that another client replaced stays as it is, even if the watch is late",
		func(t *testing.T) { m.behind(t) })
	t.Run("another replica and a read-only agent refuse sets", func(t *testing.T) { m.refuses(t) })
	t.Run("after random changes and restarts, only the last sets are there", func(t *testing.T) {
		for seed := range uint64(3) {
			m.random(t, rand.New(rand.NewPCG(seed, 11)))
			if t.Failed() {
				t.Fatalf("failed with seed %d", seed)
			}
		}
	})
}

func (m *fixture) expires(t *testing.T) {
	id := "crtb/guest"
	a := m.lead(t)
	for span := 2 * time.Second; ; span *= 2 { // longer each time, until the set is applied before it expires
		set := newSet(t, id, objectsOf(id, binding("drover:guest", "view", "guest")), time.Now().Add(span))
		if state := a.put(t, set); state.Phase == protocol.SetApplied {
			break
		} else if state.Phase != protocol.SetExpired || span > patience {
			t.Fatalf("a set that expires in %s: got %+v, want it applied", span, state)
		}
	}
	a.await(t, id, protocol.SetExpired)
	m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:guest"}})
	a.stop()
	b := m.lead(t)
	b.await(t, id, protocol.SetExpired)
	past := newSet(t, "crtb/late", objectsOf("crtb/late", binding("drover:late", "view", "late")),
		time.Now().Add(-time.Second))
	if state := b.put(t, past); state.Phase != protocol.SetExpired {
		t.Errorf("a set that has expired already: got %+v, want SetExpired", state)
	}
	m.gone(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:late"}})
	b.remove(t, id)
	b.remove(t, past.ID)
	b.stop()
}

// reached reads the stream until it has reported everything, and returns the checkpoint in it.
func (a *agent) reached(t *testing.T) (checkpoint string) {
	t.Helper()
	server := httptest.NewServer(a.stream)
	defer server.Close()
	defer server.CloseClientConnections()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+protocol.StreamPath(protocol.SubjectSets), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := json.NewDecoder(resp.Body)
	for {
		var line protocol.Line
		if err := lines.Decode(&line); err != nil {
			t.Fatal(err)
		}
		if line.Set.Synced {
			return checkpoint
		}
		checkpoint = cmp.Or(line.Set.Checkpoint, checkpoint)
	}
}

func (m *fixture) checkpoint(t *testing.T) {
	a := m.lead(t)
	if got := a.reached(t); got != "" {
		t.Errorf("an agent that never got a checkpoint: got %q, want none", got)
	}
	s := newSet(t, "crtb/at", objectsOf("crtb/at", binding("drover:at", "view", "at")))
	a.state(t, a.ask(t, http.MethodPut, protocol.SetPathAt(s.ID, "lease/1/a/10"), s.JSON()))
	a.state(t, a.ask(t, http.MethodPut, protocol.SetPathAt(s.ID, "not valid!"), s.JSON()))
	a.state(t, a.ask(t, http.MethodPut, protocol.SetPath(s.ID), s.JSON()))
	if got := a.reached(t); got != "lease/1/a/10" {
		t.Errorf("got the checkpoint %q, want lease/1/a/10", got)
	}
	a.state(t, a.ask(t, http.MethodDelete, protocol.SetPathAt(s.ID, "lease/1/a/20"), nil))
	stored := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: protocol.AgentNamespace, Name: "hub.checkpoint"}}
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		err := m.Client.Get(ctx, client.ObjectKeyFromObject(stored), stored)
		if got := string(stored.Data["checkpoint"]); err == nil && got != "lease/1/a/20" {
			err = fmt.Errorf("got the stored checkpoint %q, want lease/1/a/20", got)
		}
		return err
	})
	a.stop()
	b := m.lead(t)
	if got := b.reached(t); got != "lease/1/a/20" {
		t.Errorf("the next leader reports %q, want lease/1/a/20", got)
	}
	if remaining, err := b.RemoveAll(t.Context()); err != nil || len(remaining) > 0 {
		t.Errorf("remove everything: got the error %v and remaining %v, want neither", err, remaining)
	}
	if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); !apierrors.IsNotFound(err) {
		t.Errorf("read the checkpoint after everything was removed: got %v, want not found", err)
	}
	b.stop()
}

// leftBehind deletes the Secrets of an agent's sets, as if its namespace had been deleted.
func (m *fixture) leftBehind(t *testing.T) {
	long := "crtb/" + strings.Repeat("long-name.", 20) + "end"
	ids := []string{"crtb/owner", "crtb/guest.of.two", "crtb/extra", long}
	a := m.lead(t)
	for _, id := range ids {
		a.applied(t, newSet(t, id, objectsOf(id, binding("drover:"+set.Label(id), "view", "x"))))
	}
	a.stop()
	copied := binding("drover:copied", "view", "x")
	m.applyAs(t, "kubectl", objectsOf(ids[0], copied).Objects[0].Object)
	if err := m.Client.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(protocol.AgentNamespace),
		client.MatchingFields{"type": v1.Group + "/set"}); err != nil {
		t.Fatal(err)
	}
	b := m.lead(t)
	left := func(id string) *rbacv1.ClusterRoleBinding {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:" + set.Label(id)}}
	}
	for _, id := range ids[:3] {
		b.await(t, id, protocol.SetPending)
	}
	b.await(t, "left/"+set.Label(long), protocol.SetPending)
	for _, id := range ids {
		m.there(t, left(id)) // they are kept until the hub has sent its sets
	}
	b.applied(t, newSet(t, ids[0], objectsOf(ids[0], binding("drover:"+set.Label(ids[0]), "view", "x"))))
	for _, id := range ids[1:3] {
		b.remove(t, id)
		m.gone(t, left(id))
	}
	m.there(t, left(ids[0]))
	m.there(t, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:copied"}}) // a user's

	b.applied(t, newSet(t, long, objectsOf(long, binding("drover:"+set.Label(long), "view", "x"))))
	b.remove(t, "left/"+set.Label(long)) // the hub does not know that it is the same set
	m.there(t, left(long))
	b.remove(t, long)
	m.gone(t, left(long))
	b.remove(t, ids[0])
	b.stop()
}

func (m *fixture) large(t *testing.T) {
	noise := make([]byte, 700_000)
	for i := range noise {
		noise[i] = byte(rand.IntN(256))
	}
	id := "secrets/big"
	c := set.Content{}
	for i := range 3 {
		more := objectsOf(id,
			map[string]any{"apiVersion": "v1", "kind": "Secret",
				"metadata": map[string]any{"name": fmt.Sprintf("big-%d", i), "namespace": "default"},
				"data":     map[string]any{"x": base64.StdEncoding.EncodeToString(noise)}})
		c.Objects = append(c.Objects, more.Objects...)
	}
	a := m.lead(t)
	a.applied(t, newSet(t, id, c))
	if n := m.stored(t); n < 3 {
		t.Errorf("got %d Secrets, want at least 3", n)
	}
	a.stop()
	b := m.lead(t)
	b.await(t, id, protocol.SetApplied)
	b.remove(t, id)
	if n := m.stored(t); n != 0 {
		t.Errorf("got %d Secrets, want none", n)
	}
	b.stop()
}

// stored counts the Secrets that hold sets.
func (m *fixture) stored(t *testing.T) int {
	t.Helper()
	list := &corev1.SecretList{}
	if err := m.Client.List(t.Context(), list, client.InNamespace(protocol.AgentNamespace)); err != nil {
		t.Fatal(err)
	}
	return len(slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return s.Type != v1.Group+"/set" }))
}

func (m *fixture) latency(t *testing.T) {
	a := m.lead(t)
	var took []time.Duration
	before := a.writes.Load()
	const n = 100
	for i := range n {
		id := fmt.Sprintf("crtb/b%d", i)
		set := newSet(t, id, objectsOf(id, binding("drover:"+set.Label(id), "view", "x")))
		begun := time.Now()
		a.applied(t, set)
		took = append(took, time.Since(begun))
	}
	if writes := a.writes.Load() - before; writes != 2*n {
		t.Errorf("got %d writes for %d sets, want two for each", writes, n)
	}
	if looks := a.looks.Load(); looks > 0 {
		t.Errorf("the agent has read %d of %d new objects, want it to create them without a read", looks, n)
	}
	slices.Sort(took)
	t.Logf("put to applied: p50 %s, p99 %s", took[n/2], took[n*99/100])
	for i := range n {
		a.remove(t, fmt.Sprintf("crtb/b%d", i))
	}
	if writes := a.writes.Load() - before; writes != 4*n {
		t.Errorf("got %d writes for %d sets that were applied and removed, want four for each", writes, n)
	}
	a.stop()
}

func (m *fixture) refuses(t *testing.T) {
	a := m.lead(t, func(o *apply.Options) { o.ReadOnly = true })
	state := a.put(t, newSet(t, "role/x", objectsOf("role/x", role("drover:x", "get"))))
	if state.Phase != protocol.SetReadOnly || a.writes.Load() != 0 {
		t.Errorf("got %+v and %d writes, want SetReadOnly and none", state, a.writes.Load())
	}
	for path, want := range map[string]int{protocol.PathSets + "/a/../b": http.StatusUnprocessableEntity,
		protocol.PathSets + "/A": http.StatusUnprocessableEntity} {
		if got := a.ask(t, http.MethodPut, path, nil); got.Code != want {
			t.Errorf("%s: got the code %d, want %d", path, got.Code, want)
		}
	}
	a.stop()
	if got := a.ask(t, http.MethodPut, protocol.SetPath("role/x"), nil); got.Code != http.StatusMisdirectedRequest {
		t.Errorf("a replica that does not lead: got the code %d, want 421", got.Code)
	}
	b := m.lead(t)
	if got := b.ask(t, http.MethodPut, protocol.SetPath("role/x"),
		[]byte(`{"id":"role/x","digest":"x"}`)); got.Code != http.StatusUnprocessableEntity {
		t.Errorf("a wrong digest: got the code %d, want 422", got.Code)
	}
	b.stop()
}

// random changes sets at random, with agents that end at any time, and compares the objects that exist in the end with
// the expected ones.
func (m *fixture) random(t *testing.T, r *rand.Rand) {
	a := m.lead(t)
	last := map[string]*set.Set{}
	for range 30 {
		id := fmt.Sprintf("role/r%d", r.IntN(4))
		switch r.IntN(6) {
		case 0:
			a.remove(t, id)
			delete(last, id)
		case 1: // an agent that ends during a put, which the hub then repeats
			sent := m.randomSet(t, r, id)
			begun, body := a, sent.JSON()
			asked := make(chan struct{})
			go func() {
				defer close(asked)
				begun.ServeHTTP(httptest.NewRecorder(),
					httptest.NewRequestWithContext(t.Context(), http.MethodPut, protocol.SetPath(id), bytes.NewReader(body)))
			}()
			if r.IntN(2) == 0 {
				_ = m.Client.Get(t.Context(), client.ObjectKey{Name: "drover:" + set.Label(id)}, &rbacv1.ClusterRole{})
			}
			a.stop()
			<-asked
			a = m.lead(t)
			a.applied(t, sent)
			last[id] = sent
		case 2: // a user deletes an object
			_ = m.Client.Delete(t.Context(),
				&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("drover:%s:%d", set.Label(id), r.IntN(3))}})
		default:
			sent := m.randomSet(t, r, id)
			a.applied(t, sent)
			last[id] = sent
		}
	}
	want := map[string]bool{}
	for _, one := range last {
		_, content, err := set.Parse(one.JSON())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range content.Objects {
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
			return fmt.Errorf("got the objects %v, want %v", got, want)
		}
		return nil
	})
	for id := range last {
		a.remove(t, id)
	}
	if n := m.stored(t); n != 0 {
		t.Errorf("got %d Secrets, want none", n)
	}
	a.stop()
}

func (m *fixture) randomSet(t *testing.T, r *rand.Rand, id string) *set.Set {
	var all []map[string]any
	for i := range 3 {
		if r.IntN(2) == 0 {
			all = append(all, role(fmt.Sprintf("drover:%s:%d", set.Label(id), i), fmt.Sprintf("v%d", r.IntN(3))))
		}
	}
	return newSet(t, id, objectsOf(id, all...))
}
