// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// writeFaults can make writes fail or hang.
type writeFaults struct {
	next   http.RoundTripper
	refuse atomic.Bool // writes get an error
	hang   atomic.Bool // writes get no response
}

func (f *writeFaults) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet {
		return f.next.RoundTrip(r)
	}
	if f.hang.Load() {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if f.refuse.Load() {
		return nil, errors.New("the disk is full")
	}
	return f.next.RoundTrip(r)
}

// send sends a set and does not wait for the response.
func (a *agent) send(t *testing.T, set *set.Set) {
	t.Helper()
	var sending sync.WaitGroup
	t.Cleanup(sending.Wait)
	sending.Go(func() {
		a.ServeHTTP(httptest.NewRecorder(),
			httptest.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPut, protocol.SetPath(set.ID),
				bytes.NewReader(set.JSON())))
	})
}

func TestSetIsStoredWhileItIsApplied(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	stored := &writeFaults{}
	secrets := m.kube(t, func(next http.RoundTripper) http.RoundTripper {
		stored.next = next
		return stored
	}).Secrets(protocol.AgentNamespace)
	lead := func() *agent { return m.lead(t, func(o *apply.Options) { o.Secrets = secrets }) }
	verb := func(name string) string { return m.clusterRole(t, name).Rules[0].Verbs[0] }
	a := lead()

	t.Run("a set that cannot be stored is applied, but counts as failed until it is stored", func(t *testing.T) {
		set := newSet(t, "role/full", objectsOf("role/full", role("drover:full", "get")))
		stored.refuse.Store(true)
		state := a.put(t, set)
		if state.Phase != protocol.SetFailed || len(state.Objects) != 1 ||
			!strings.Contains(state.Objects[0].Message, "the disk is full") {
			t.Errorf("got the state %+v, want Failed because the disk is full", state)
		}
		m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:full"}})
		ends := newSet(t, "role/ends", objectsOf("role/ends", role("drover:ends", "get")), time.Now().Add(time.Hour))
		a.put(t, ends)
		// Otherwise no agent would remove the role after a restart.
		m.gone(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:ends"}})
		stored.refuse.Store(false)
		a.await(t, ends.ID, protocol.SetApplied)
		a.await(t, set.ID, protocol.SetApplied)
		if n := m.stored(t); n != 2 {
			t.Errorf("got %d Secrets that hold sets, want 2", n)
		}
	})
	t.Run("the next agent applies the stored set until the hub sends the newer one again", func(t *testing.T) {
		const id = "role/cut"
		a.applied(t, newSet(t, id, objectsOf(id, role("drover:cut", "get"))))
		changed, fresh := newSet(t, id, objectsOf(id, role("drover:cut", "list"))),
			newSet(t, "role/fresh", objectsOf("role/fresh", role("drover:fresh", "get")))
		stored.hang.Store(true)
		a.send(t, changed)
		a.send(t, fresh)
		testkit.Eventually(t, patience, func(ctx context.Context) error {
			o := &rbacv1.ClusterRole{}
			if err := m.Client.Get(ctx, client.ObjectKey{Name: "drover:fresh"}, o); err != nil {
				return err
			}
			if got := verb("drover:cut"); got != "list" {
				return errors.New(got)
			}
			return nil
		})
		a.stop()
		stored.hang.Store(false)

		a = lead()
		a.await(t, id, protocol.SetApplied)
		if got := verb("drover:cut"); got != "get" {
			t.Errorf("got the verb %s, want get, as it was stored", got)
		}
		m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:fresh"}})
		a.applied(t, changed)
		a.applied(t, fresh)
		if got := verb("drover:cut"); got != "list" {
			t.Errorf("got the verb %s, want list, as it was sent again", got)
		}
	})
}
