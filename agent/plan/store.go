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

// store stores the relevant part of each object of a collection. It is a cache.ReflectorStore. Responses to own writes are stored too: such a
// response counts until the watch has reached its version.
type store[T any] struct {
	read    func(any) (T, error)
	trim    func(any) // drops from an object what read does not need; may be nil
	changed func()    // called on each change, without mu
	ready   chan struct{}
	once    sync.Once // closes ready when everything is known

	mu    sync.Mutex // guards the rest
	seen  uint64     // version that the watch has reached
	stale bool       // the objects may be gone
	items map[string]item[T]
}

type item[T any] struct {
	version uint64
	value   T
}

func newStore[T any](read func(any) (T, error), trim func(any), changed func()) *store[T] {
	return &store[T]{read: read, trim: trim, changed: changed, ready: make(chan struct{}), items: map[string]item[T]{}}
}

// values returns what is stored, in the order of namespace and name.
func (s *store[T]) values() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := make([]T, 0, len(s.items))
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		values = append(values, s.items[key].value)
	}
	return values
}

// invalidate marks the content as stale until the next list.
func (s *store[T]) invalidate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}

func (s *store[T]) isStale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

// get returns what is stored of an object.
func (s *store[T]) get(key string) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, known := s.items[key]
	return i.value, known
}

// wrote stores the response to a write, unless the watch has reached its version.
func (s *store[T]) wrote(obj any) error {
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

// alter changes what is stored of an object until its next event.
func (s *store[T]) alter(key string, change func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, known := s.items[key]; known {
		change(&i.value)
		s.items[key] = i
	}
}

// drop removes an object that is known to be gone, unless the watch has since shown another one of its name.
func (s *store[T]) drop(key string, gone func(T) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, known := s.items[key]; known && gone(i.value) {
		delete(s.items, key)
	}
}

func (s *store[T]) item(obj any) (string, item[T], error) {
	o, err := meta.Accessor(obj)
	if err != nil {
		return "", item[T]{}, fmt.Errorf("watch %T: %w", obj, err)
	}
	value, err := s.read(obj)
	return keyOf(o), item[T]{version: number(o.GetResourceVersion()), value: value}, err
}

// Transformer trims objects before they are stored anywhere.
func (s *store[T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if s.trim != nil {
			s.trim(obj)
		}
		return obj, nil
	}
}

// Add stores an object.
func (s *store[T]) Add(obj any) error { return s.Update(obj) }

// Update stores an object from the watch, unless a later version was written.
func (s *store[T]) Update(obj any) error {
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

// Delete removes an object.
func (s *store[T]) Delete(obj any) error {
	o, err := meta.Accessor(obj)
	if err != nil {
		return fmt.Errorf("watch %T: %w", obj, err)
	}
	version := number(o.GetResourceVersion())
	s.mu.Lock()
	s.seen = max(s.seen, version)
	if s.items[keyOf(o)].version <= version { // otherwise it was created again
		delete(s.items, keyOf(o))
	}
	s.mu.Unlock()
	s.changed()
	return nil
}

// Replace stores all objects of a list. Objects that were written later stay.
func (s *store[T]) Replace(objs []any, version string) error {
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
	s.items, s.stale = listed, false
	s.mu.Unlock()
	s.once.Do(func() { close(s.ready) })
	s.changed()
	return nil
}

// Resync does nothing.
func (s *store[T]) Resync() error { return nil }

func keyOf(o metav1.Object) string {
	if o.GetNamespace() == "" {
		return o.GetName()
	}
	return o.GetNamespace() + "/" + o.GetName()
}

// number returns a resource version as a number, which grows with each write of any object of a resource.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
