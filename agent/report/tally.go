// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// summary is all that is kept of an object while the reflector has it: what identifies it, and the numbers to count.
type summary[N any] struct {
	metav1.ObjectMeta
	numbers N
}

// summarize makes a summary.
func summarize[N any](m *metav1.ObjectMeta, numbers N) *summary[N] {
	return &summary[N]{
		ObjectMeta: metav1.ObjectMeta{Namespace: m.Namespace, Name: m.Name, ResourceVersion: m.ResourceVersion},
		numbers:    numbers,
	}
}

// GetObjectKind makes summary a runtime.Object, which the reflector wants.
func (s *summary[N]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject makes summary a runtime.Object. A summary never changes, so it is its own copy.
func (s *summary[N]) DeepCopyObject() runtime.Object { return s }

// tally is a cache.ReflectorStore that keeps a few numbers for each object and their sum, never the object.
type tally[N any] struct {
	read    func(any) *summary[N] // from an object of the API server; nil if it is of another type
	count   func(n N, sign int64) // adds to the sum; called under mu
	changed func()                // called after each change, without mu

	mu   sync.Mutex // guards kept and whatever count writes
	kept map[string]N
}

// Transformer makes the reflector's temporary store keep summaries too.
func (t *tally[N]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return t.summary(obj) }
}

func (t *tally[N]) summary(obj any) (*summary[N], error) {
	if s, ok := obj.(*summary[N]); ok {
		return s, nil
	}
	if s := t.read(obj); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("count %T: unexpected type", obj)
}

// Add counts an object.
func (t *tally[N]) Add(obj any) error { return t.Update(obj) }

// Update counts an object in place of what was counted under its name.
func (t *tally[N]) Update(obj any) error {
	s, err := t.summary(obj)
	if err != nil {
		return err
	}
	t.put(key(s), &s.numbers)
	t.changed()
	return nil
}

// Delete counts an object no longer.
func (t *tally[N]) Delete(obj any) error {
	s, err := t.summary(obj)
	if err != nil {
		return err
	}
	t.put(key(s), nil)
	t.changed()
	return nil
}

// put replaces what is counted under a key, with nothing if n is nil.
func (t *tally[N]) put(key string, n *N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before, ok := t.kept[key]; ok {
		t.count(before, -1)
	}
	if n == nil {
		delete(t.kept, key)
		return
	}
	if t.kept == nil {
		t.kept = make(map[string]N)
	}
	t.count(*n, 1)
	t.kept[key] = *n
}

// Replace counts these objects and no others.
func (t *tally[N]) Replace(objs []any, _ string) error {
	kept := make(map[string]N, len(objs))
	for _, obj := range objs {
		s, err := t.summary(obj)
		if err != nil {
			return err
		}
		kept[key(s)] = s.numbers
	}
	t.replace(kept)
	t.changed()
	return nil
}

func (t *tally[N]) replace(kept map[string]N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, n := range t.kept {
		t.count(n, -1)
	}
	for _, n := range kept {
		t.count(n, 1)
	}
	t.kept = kept
}

// Resync has nothing to do.
func (t *tally[N]) Resync() error { return nil }

func key(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}
