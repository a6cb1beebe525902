// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// Name identifies an object of a collection.
type Name = cache.ObjectName

// Object is an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// Options configure a Store for objects of type O.
type Options[O Object, T any] struct {
	// Read returns the value to store for an object, or false to store nothing.
	Read func(O) (T, bool)
	// Index returns the key that Of uses to find an object. It may be nil.
	Index func(T) string
	// Changed is called with the values of an object before and after a change. A value is nil if nothing is stored.
	// Calls for the same object may overlap. Changed may be nil.
	Changed func(name Name, before, now *T)
	// Seen is called after each event and each list. It may be nil.
	Seen func()
}

// Store holds a value for each object in a collection. It is a cache.TransformingStore. It also stores the agent's own
// writes: the API server's response to a write takes precedence until the watch has reached the version in the
// response.
type Store[O Object, T any] struct {
	options Options[O, T]
	known   chan struct{}
	once    sync.Once // closes known

	mu      sync.Mutex // guards the fields below
	version uint64     // version that the watch has reached
	stale   bool       // whether the objects may be gone
	entries map[Name]stored[T]
	index   map[string]map[Name]bool
}

// stored is a value together with the version of its object.
type stored[T any] struct {
	version uint64
	value   T
}

// NewStore returns a Store. Follow fills it.
func NewStore[O Object, T any](o Options[O, T]) *Store[O, T] {
	return &Store[O, T]{options: o, known: make(chan struct{}), entries: map[Name]stored[T]{},
		index: map[string]map[Name]bool{}}
}

// Known returns a channel that is closed when all objects of the collection are known.
func (s *Store[O, T]) Known() <-chan struct{} { return s.known }

func (s *Store[O, T]) setKnown() { s.once.Do(func() { close(s.known) }) }

// Stale reports whether the API server's last response indicates that it does not serve the kind. Either the objects
// are gone, or the API server has just started.
func (s *Store[O, T]) Stale() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stale
}

func (s *Store[O, T]) invalidate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stale = true
}

// Get returns the value of an object.
func (s *Store[O, T]) Get(name Name) (T, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, there := s.entries[name]
	return i.value, there
}

// Values returns all values, ordered by name.
func (s *Store[O, T]) Values() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	values := make([]T, 0, len(s.entries))
	for _, name := range slices.SortedFunc(maps.Keys(s.entries), compare) {
		values = append(values, s.entries[name].value)
	}
	return values
}

// Of returns the names of the objects with the given index key, in order.
func (s *Store[O, T]) Of(key string) []Name {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.index[key]), compare)
}

// Each calls f for each object in no particular order. f must not call the store.
func (s *Store[O, T]) Each(f func(Name, T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, i := range s.entries {
		f(name, i.value)
	}
}

func compare(a, b Name) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// Wrote stores the API server's response to a write, unless the watch has already reached the version in the
// response.
func (s *Store[O, T]) Wrote(obj O) {
	e := s.entry(obj)
	s.mu.Lock()
	var before, now *T
	if e.version > s.version && e.version > s.entries[e.name()].version {
		before, now = s.put(e)
	}
	s.mu.Unlock()
	s.changed(e.name(), before, now)
}

// Alter changes the value of an object until its next event.
func (s *Store[O, T]) Alter(name Name, change func(*T)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, there := s.entries[name]; there {
		change(&i.value)
		s.entries[name] = i
	}
}

// Drop removes an object that no longer exists. If gone returns false for the stored value, the watch has already
// delivered another object with the same name, and Drop does nothing.
func (s *Store[O, T]) Drop(name Name, gone func(T) bool) {
	s.mu.Lock()
	var before *T
	if i, there := s.entries[name]; there && gone(i.value) {
		before = s.take(name)
	}
	s.mu.Unlock()
	s.changed(name, before, nil)
}

// Clear removes all objects. It calls Changed, but not Seen.
func (s *Store[O, T]) Clear() {
	s.mu.Lock()
	before := s.entries
	s.entries, s.index, s.version = map[Name]stored[T]{}, map[string]map[Name]bool{}, 0
	s.mu.Unlock()
	for name, i := range before {
		s.changed(name, &i.value, nil)
	}
}

// put stores an entry, and returns the values of the object before and after the change. The caller must hold mu.
func (s *Store[O, T]) put(e *entry[T]) (before, now *T) {
	name := e.name()
	before = s.take(name)
	if !e.keep {
		return before, nil
	}
	s.entries[name] = stored[T]{e.version, e.value}
	if s.options.Index != nil {
		key := s.options.Index(e.value)
		if s.index[key] == nil {
			s.index[key] = map[Name]bool{}
		}
		s.index[key][name] = true
	}
	return before, &e.value
}

// take removes an object and returns its value. The caller must hold mu.
func (s *Store[O, T]) take(name Name) *T {
	i, there := s.entries[name]
	if !there {
		return nil
	}
	delete(s.entries, name)
	if s.options.Index != nil {
		key := s.options.Index(i.value)
		if delete(s.index[key], name); len(s.index[key]) == 0 {
			delete(s.index, key)
		}
	}
	return &i.value
}

func (s *Store[O, T]) changed(name Name, before, now *T) {
	if s.options.Changed != nil && (before != nil || now != nil) {
		s.options.Changed(name, before, now)
	}
}

func (s *Store[O, T]) seen() {
	if s.options.Seen != nil {
		s.options.Seen()
	}
}

// Transformer returns a function that converts objects to entries, so that the reflector's own store also holds only
// entries.
func (s *Store[O, T]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) { return s.entryOf(obj) }
}

// Add stores an object.
func (s *Store[O, T]) Add(obj any) error { return s.Update(obj) }

// Update stores an object from the watch, unless the response to a later write has been stored.
func (s *Store[O, T]) Update(obj any) error {
	e, err := s.entryOf(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.version = max(s.version, e.version)
	var before, now *T
	if i, there := s.entries[e.name()]; !there || e.version > i.version {
		before, now = s.put(e)
	}
	s.mu.Unlock()
	s.changed(e.name(), before, now)
	s.seen()
	return nil
}

// Delete removes an object, unless the object has been created again. The object was deleted, or the collection's
// selectors no longer match it.
func (s *Store[O, T]) Delete(obj any) error {
	e, err := s.entryOf(obj)
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.version = max(s.version, e.version)
	var before *T
	if s.entries[e.name()].version <= e.version {
		before = s.take(e.name())
	}
	s.mu.Unlock()
	s.changed(e.name(), before, nil)
	s.seen()
	return nil
}

// Replace stores all objects from a list. It keeps objects that were written after the list was read. Normally, a list
// is never older than an earlier event. If the version of the list is lower, the API server was restored from a backup,
// and only the list is valid. If the stored objects were kept, a restored role with more rights could be mistaken for
// the role that the agent applied. If the restore has increased resource versions, a restored object is recognized by
// its own version, which is lower than the stored version.
func (s *Store[O, T]) Replace(objs []any, version string) error {
	listed := make(map[Name]*entry[T], len(objs))
	for _, obj := range objs {
		e, err := s.entryOf(obj)
		if err != nil {
			return err
		}
		listed[e.name()] = e
	}
	type change struct{ before, now *T }
	changes := make(map[Name]change, len(listed))
	s.mu.Lock()
	now := number(version)
	restored := now > 0 && now < s.version
	s.stale = false
	if now > 0 {
		s.version = now
	}
	for name, i := range s.entries {
		if _, there := listed[name]; !there && (restored || i.version <= s.version) {
			changes[name] = change{before: s.take(name)}
		}
	}
	for name, e := range listed {
		i, there := s.entries[name]
		older := e.version < i.version && i.version <= s.version
		if !there || restored || older || e.version > i.version {
			before, stored := s.put(e)
			changes[name] = change{before, stored}
		}
	}
	s.mu.Unlock()
	for name, c := range changes {
		s.changed(name, c.before, c.now)
	}
	s.setKnown()
	s.seen()
	return nil
}

// Resync does nothing.
func (s *Store[O, T]) Resync() error { return nil }

// entry is the part of an object that is kept after decoding. It implements runtime.Object because the reflector
// requires this.
type entry[T any] struct {
	metav1.ObjectMeta // namespace, name and version only
	version           uint64
	value             T
	keep              bool
}

// GetObjectKind returns an empty kind.
func (e *entry[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject returns the entry itself, because an entry never changes.
func (e *entry[T]) DeepCopyObject() runtime.Object { return e }

func (e *entry[T]) name() Name { return Name{Namespace: e.Namespace, Name: e.Name} }

// entryOf returns the entry of an object, or obj itself if it is an entry.
func (s *Store[O, T]) entryOf(obj any) (*entry[T], error) {
	switch o := obj.(type) {
	case *entry[T]:
		return o, nil
	case O:
		return s.entry(o), nil
	}
	return nil, fmt.Errorf("watch: got %T", obj)
}

func (s *Store[O, T]) entry(o O) *entry[T] {
	e := &entry[T]{ObjectMeta: metav1.ObjectMeta{Namespace: o.GetNamespace(), Name: o.GetName(),
		ResourceVersion: o.GetResourceVersion()}}
	e.version = number(e.ResourceVersion)
	e.value, e.keep = s.options.Read(o)
	return e
}

// number converts a resource version to a number. The number increases with each write to any object of the same
// resource.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
