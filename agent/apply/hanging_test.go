// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// hangLabel marks the namespaces for which the webhook does not respond.
const hangLabel = "hangs"

// webhook is an admission webhook that does not respond to requests about RoleBindings until it is released.
type webhook struct {
	mu       sync.Mutex // guards the fields below
	waiting  int
	most     int // the most requests that waited at the same time
	released chan struct{}
}

func (w *webhook) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest)
		return
	}
	w.wait(1)
	defer w.wait(-1)
	select {
	case <-w.released:
	case <-r.Context().Done():
		return
	}
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	_ = json.NewEncoder(rw).Encode(review)
}

func (w *webhook) wait(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting += n
	w.most = max(w.most, w.waiting)
}

// hang registers a webhook for RoleBindings in namespaces with hangLabel. It uses the default timeout of API servers.
func (m *fixture) hang(t *testing.T) *webhook {
	t.Helper()
	w := &webhook{released: make(chan struct{})}
	server := httptest.NewTLSServer(w)
	t.Cleanup(server.Close)
	fail, none := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone
	m.Apply(t, &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hangs"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hangs.example.com", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{hangLabel: "true"}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
				Rule: admissionregistrationv1.Rule{
					APIGroups: []string{rbacv1.GroupName}, APIVersions: []string{"v1"}, Resources: []string{"rolebindings"},
				},
			}},
		}},
	})
	return w
}

// awaitHanging waits until the API server calls the webhook for a RoleBinding in a namespace.
func (m *fixture) awaitHanging(t *testing.T, w *webhook, namespace string) {
	t.Helper()
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		probe := &rbacv1.RoleBinding{ObjectMeta: namespaced(namespace, "probe"),
			RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"}}
		_ = m.Client.Create(ctx, probe, client.DryRunAll)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.most == 0 {
			return fmt.Errorf("the webhook has not been called yet")
		}
		return nil
	})
}

// bindingIn returns the content of a set that binds a user in each namespace of a project.
func bindingIn(project, name string) set.Content {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": name},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"},
		"subjects": []any{map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}},
	}}
	return set.Content{PerNamespace: &set.PerNamespace{Project: project, Templates: []set.Template{{Object: o}}}}
}

// within fails the test if an operation took longer than a set may be delayed by a webhook that hangs for another set.
// It returns the time that it took.
func within(t *testing.T, what string, began time.Time) time.Duration {
	t.Helper()
	took := time.Since(began)
	if took > 2*time.Second {
		t.Errorf("%s took %s, want at most 2 s", what, took.Round(time.Millisecond))
	}
	return took
}

// emptyAndAwaitRepair removes the rules of a ClusterRole and waits until the agent has restored them.
func (m *fixture) emptyAndAwaitRepair(t *testing.T, name string) {
	t.Helper()
	testkit.Update(t, m.Client, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}},
		func(o *rbacv1.ClusterRole) {
			o.Rules = nil
		})
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		o := &rbacv1.ClusterRole{}
		if err := m.Client.Get(ctx, client.ObjectKey{Name: name}, o); err != nil || len(o.Rules) == 0 {
			return fmt.Errorf("%s has %d rules: %w", name, len(o.Rules), err)
		}
		return nil
	})
}

func TestLong_HangingAdmissionDelaysNoOtherSet(t *testing.T) {
	t.Parallel()
	const sets, namespaces = 150, 10
	m := newMember(t)
	labels := func(project string, hangs bool) map[string]string {
		return map[string]string{v1.LabelProject: project, hangLabel: fmt.Sprint(hangs)}
	}
	for i := range namespaces {
		m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("hangs-%02d", i),
			Labels: labels("hung", true)}})
	}
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "works", Labels: labels("hung", false)}})
	m.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", Labels: labels("other", false)}})
	a := m.lead(t)
	const kept = "role/kept"
	a.applied(t, newSet(t, kept, objectsOf(kept, role("drover:kept", "get"))))
	hook := m.hang(t)
	m.awaitHanging(t, hook, "hangs-00")

	var putting sync.WaitGroup
	defer putting.Wait()
	id := func(i int) string { return fmt.Sprintf("prtb/hung-%03d", i) }
	for i := range sets {
		s := newSet(t, id(i), bindingIn("hung", "drover:"+set.Label(id(i))))
		putting.Go(func() { a.ask(t, http.MethodPut, protocol.SetPath(s.ID), s.JSON()) })
	}
	var longest, repair time.Duration
	for i := range 20 { // some sets while the first writes hang, and some once the agent knows that they hang
		began := time.Now()
		if one := fmt.Sprintf("crtb/free-%d", i); i%2 == 0 {
			a.applied(t, newSet(t, one, objectsOf(one, binding("drover:"+set.Label(one), "view", "alice"))))
		} else {
			a.applied(t, newSet(t, one, bindingIn("other", "drover:"+set.Label(one))))
		}
		longest = max(longest, within(t, "a set that has nothing to do with what hangs", began))
		if i%5 == 0 { // more repairs in a minute would count as a fight
			began = time.Now()
			m.emptyAndAwaitRepair(t, "drover:kept")
			repair = max(repair, within(t, "a repair", began))
		}
	}
	hook.mu.Lock()
	t.Logf("%d sets hang in %d namespaces each: another set takes at most %s, a repair %s; the webhook had %d requests "+
		"at once",
		sets, namespaces, longest.Round(time.Millisecond), repair.Round(time.Millisecond), hook.most)
	hook.mu.Unlock()

	for i := range sets {
		state := a.await(t, id(i), protocol.SetFailed)
		if state.Namespaces != namespaces+1 || !strings.Contains(state.Objects[0].Object, "hangs-") {
			t.Fatalf("the state of a hanging set: got %+v, want %d namespaces and the objects that hang", state, namespaces+1)
		}
	}
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		bindings := &rbacv1.RoleBindingList{}
		if err := m.Client.List(ctx, bindings, client.InNamespace("works")); err != nil || len(bindings.Items) != sets {
			return fmt.Errorf("got %d bindings in namespaces where nothing hangs, want %d: %w", len(bindings.Items), sets, err)
		}
		return nil
	})
	close(hook.released)
	testkit.Eventually(t, 2*time.Minute, func(ctx context.Context) error {
		all := &rbacv1.RoleBindingList{}
		if err := m.Client.List(ctx, all, client.MatchingLabels{v1.LabelManagedBy: v1.ManagedBy}); err != nil ||
			len(all.Items) < sets*(namespaces+1) {
			return fmt.Errorf("after the webhook answers again: got %d bindings, want %d: %w", len(all.Items),
				sets*(namespaces+1), err)
		}
		return nil
	})
	for i := range sets {
		a.await(t, id(i), protocol.SetApplied)
	}
}
