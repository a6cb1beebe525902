// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// shelf keeps what matters of each object of a collection. It is a cache.ReflectorStore that the answers of own writes go into too: such
// an answer counts until the watch has come as far.
type shelf[T any] struct {
	read    func(any) (T, error)
	trim    func(any) // drops from an object what read does not need; nil for nothing
	changed func()    // told of each change, without mu
	ready   chan struct{}
	once    sync.Once // closes ready when everything is known

	mu    sync.Mutex // guards the rest
	seen  uint64     // version that the watch has come to
	vague bool       // what is kept may be no more
	items map[string]item[T]
}

type item[T any] struct {
	version uint64
	value   T
}

func newShelf[T any](read func(any) (T, error), trim func(any), changed func()) *shelf[T] {
	return &shelf[T]{read: read, trim: trim, changed: changed, ready: make(chan struct{}), items: map[string]item[T]{}}
}

// values are what is kept, in the order of namespace and name.
func (s *shelf[T]) values() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := make([]T, 0, len(s.items))
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		values = append(values, s.items[key].value)
	}
	return values
}

// doubt has nothing be relied on until the watch shows everything anew.
func (s *shelf[T]) doubt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vague = true
}

func (s *shelf[T]) doubted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.vague
}

// get is what is kept of an object.
func (s *shelf[T]) get(key string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, known := s.items[key]
	return i.value, known
}

// wrote notes the answer of a write, unless the watch has shown it already: then it shows also what came after.
func (s *shelf[T]) wrote(obj any) error {
	key, i, err := s.item(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.version > s.seen && i.version > s.items[key].version {
		s.items[key] = i
	}
	return nil
}

// alter changes what is kept of an object until the watch shows the next of it.
func (s *shelf[T]) alter(key string, change func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, known := s.items[key]; known {
		change(&i.value)
		s.items[key] = i
	}
}

// drop forgets an object that is known to be no more, unless the watch has shown another of its name since.
func (s *shelf[T]) drop(key string, gone func(T) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, known := s.items[key]; known && gone(i.value) {
		delete(s.items, key)
	}
}

func (s *shelf[T]) item(obj any) (string, item[T], error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return "", item[T]{}, fmt.Errorf("watch %T: %w", obj, err)
	}
	value, err := s.read(obj)
	return keyOf(o), item[T]{version: number(o.GetResourceVersion()), value: value}, err
}

// Transformer trims objects before they are kept anywhere.
func (s *shelf[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if s.trim != nil {
			s.trim(obj)
		}
		return obj, nil
	}
}

// Add notes an object.
func (s *shelf[T]) Add(obj any) error { return s.Update(obj) }

// Update notes an object as the watch shows it, unless a later one was written.
func (s *shelf[T]) Update(obj any) error {
	key, i, err := s.item(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.seen = max(s.seen, i.version)
	if i.version > s.items[key].version {
		s.items[key] = i
	}
	s.mu.Unlock()
	s.changed()
	return nil
}

// Delete notes that an object is no more.
func (s *shelf[T]) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("watch %T: %w", obj, err)
	}
	version := number(o.GetResourceVersion())
	s.mu.Lock()
	s.seen = max(s.seen, version)
	if s.items[keyOf(o)].version <= version { // else it was made anew
		delete(s.items, keyOf(o))
	}
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace notes all objects as a list shows them. What was written later stays.
func (s *shelf[T]) Replace(objs []any, version string) error {
	listed := make(map[string]item[T], len(objs))
	for _, obj := range objs {
		key, i, err := s.item(obj)
		if err != nil {
			return err
		}
		listed[key] = i
	}
	s.mu.Lock()
	s.seen = max(s.seen, number(version))
	for key, i := range s.items {
		if old, there := listed[key]; i.version > s.seen || there && i.version >= old.version {
			listed[key] = i
		}
	}
	s.items, s.vague = listed, false
	s.mu.Unlock()
	s.once.Do(func() { close(s.ready) })
	s.changed()
	return nil
}

// Resync has nothing to do.
func (s *shelf[T]) Resync() error { return nil }

func keyOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// number is a resource version, which grows with each write of any object of a resource.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
