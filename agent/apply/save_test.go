// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/agent/apply"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// secrets can keep Secrets from being written.
type secrets struct {
	apply.Secrets
	refuse atomic.Bool // answers with an error
	hang   atomic.Bool // answers never
}

func (s *secrets) hinder(ctx context.Context) error {
	if s.hang.Load() {
		<-ctx.Done()
		return ctx.Err()
	}
	if s.refuse.Load() {
		return errors.New("the disk is full")
	}
	return nil
}

func (s *secrets) Create(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	if err := s.hinder(ctx); err != nil {
		return nil, err
	}
	return s.Secrets.Create(ctx, secret)
}

func (s *secrets) Update(ctx context.Context, secret *corev1.Secret) (*corev1.Secret, error) {
	if err := s.hinder(ctx); err != nil {
		return nil, err
	}
	return s.Secrets.Update(ctx, secret)
}

// send hands a set over and does not wait for the answer.
func (a *agent) send(t *testing.T, set protocol.Set) {
	t.Helper()
	body, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	var sending sync.WaitGroup
	t.Cleanup(sending.Wait)
	sending.Go(func() {
		a.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodPut, protocol.SetPath(set.ID), bytes.NewReader(body)))
	})
}

func TestASetIsStoredWhileItIsApplied(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	stored := &secrets{}
	lead := func() *agent {
		return m.lead(t, func(o *apply.Options) { stored.Secrets, o.Secrets = o.Secrets, stored })
	}
	verb := func(name string) string { return m.clusterRole(t, name).Rules[0].Verbs[0] }
	a := lead()

	t.Run("one that cannot be stored is applied and said to have failed, until it is stored", func(t *testing.T) {
		set := newSet(t, "role/full", objectsOf("role/full", role("drover:full", "get")))
		stored.refuse.Store(true)
		state := a.put(t, set)
		if state.Phase != protocol.SetFailed || len(state.Objects) != 1 || !strings.Contains(state.Objects[0].Message, "the disk is full") {
			t.Errorf("got %+v", state)
		}
		m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:full"}})
		ends := newSet(t, "role/ends", objectsOf("role/ends", role("drover:ends", "get")), time.Now().Add(time.Hour))
		a.put(t, ends)
		m.gone(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:ends"}}) // otherwise no agent would remove it after a restart
		stored.refuse.Store(false)
		a.await(t, ends.ID, protocol.SetApplied)
		a.await(t, set.ID, protocol.SetApplied)
		if n := m.stored(t); n != 2 {
			t.Errorf("%d Secrets", n)
		}
	})
	t.Run("an agent that ends before it is stored goes back to what was, and has it sent again", func(t *testing.T) {
		const id = "role/cut"
		a.applied(t, newSet(t, id, objectsOf(id, role("drover:cut", "get"))))
		changed, fresh := newSet(t, id, objectsOf(id, role("drover:cut", "list"))), newSet(t, "role/fresh", objectsOf("role/fresh", role("drover:fresh", "get")))
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
			t.Errorf("it is %s", got)
		}
		m.there(t, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:fresh"}})
		a.applied(t, changed)
		a.applied(t, fresh)
		if got := verb("drover:cut"); got != "list" {
			t.Errorf("it is %s", got)
		}
	})
}
