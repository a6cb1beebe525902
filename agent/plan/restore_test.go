// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/nodesim"
)

func testPutBack(t *testing.T, s *env) {
	running := s.run(t, options{})
	s.completes(t, "before")
	t.Run("the account of plans' pods, before the next Job", func(t *testing.T) {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1.PlansNamespace, Name: "drover-plan"}}
		if err := s.client.Delete(t.Context(), account); err != nil {
			t.Fatal(err)
		}
		s.completes(t, "account")
	})
	t.Run("the kind, and the nodes of the deleted Plans are released", func(t *testing.T) {
		s.nodes(t, "went", "went-a")
		s.script("went-a", nodesim.Script{Hangs: true})
		p := newPlan("went", 0)
		p.Spec.Cordon = true
		s.create(t, p)
		s.begun(t, "went", "went-a")
		kind := &unstructured.Unstructured{}
		kind.SetName("plans." + v1.Group)
		kind.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
			Kind: "CustomResourceDefinition"})
		s.replaced(t, kind)
		s.completes(t, "kind")
		s.expectNode(t, "went-a", "went", "", false)
	})
	t.Run("the namespace", func(t *testing.T) {
		s.replaced(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1.PlansNamespace}})
		s.completes(t, "space")
	})
	t.Run("the schema, only if it has changed", func(t *testing.T) {
		running.stop()
		kind := &unstructured.Unstructured{}
		kind.SetName("plans." + v1.Group)
		kind.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1",
			Kind: "CustomResourceDefinition"})
		shortNames := []string{"spec", "names", "shortNames"}
		s.change(t, kind, func() { unstructured.RemoveNestedField(kind.Object, shortNames...) })
		var applies atomic.Int32
		count := func(next http.RoundTripper) http.RoundTripper {
			return roundTrip(func(r *http.Request) (*http.Response, error) {
				if strings.HasSuffix(r.URL.Path, "/"+kind.GetName()) &&
					r.Header.Get("Content-Type") == string(types.ApplyPatchType) {
					applies.Add(1)
				}
				return next.RoundTrip(r)
			})
		}
		first := s.run(t, options{wrap: count})
		s.completes(t, "schema-changed")
		first.stop()
		if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(kind), kind); err != nil {
			t.Fatal(err)
		}
		if names, _, _ := unstructured.NestedStringSlice(kind.Object, shortNames...); len(names) == 0 || applies.Load() != 1 {
			t.Errorf("short names %q after %d applies, want those of the schema after one", names, applies.Load())
		}
		s.run(t, options{wrap: count})
		s.completes(t, "schema-same")
		if applies.Load() != 1 {
			t.Errorf("applied %d times, want no more where nothing has changed", applies.Load()-1)
		}
	})
}

// roundTrip is an http.RoundTripper.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// completes runs a plan on a node to its end.
func (s *env) completes(t *testing.T, name string) {
	t.Helper()
	s.nodes(t, name, name+"-a")
	s.create(t, newPlan(name, 0))
	s.await(t, name, v1.ReasonComplete)
}

// replaced deletes an object and waits until another object exists instead.
func (s *env) replaced(t *testing.T, object client.Object) {
	t.Helper()
	if err := s.client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	was := object.GetUID()
	if err := s.client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error {
		err := s.client.Get(ctx, types.NamespacedName{Name: object.GetName()}, object)
		if err == nil && object.GetUID() == was {
			err = fmt.Errorf("%s is still the one that was deleted", object.GetName())
		}
		return err
	})
}
