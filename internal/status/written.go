// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package status

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Written remembers what a controller wrote until the cache has it: who decides on an older state writes, and tells, the same again. The
// zero value is ready.
type Written struct {
	mu       sync.Mutex // guards what follows
	versions map[types.NamespacedName]string
	paces    map[types.NamespacedName]pace
}

// Note records an object as the API server returned it for a write.
func (w *Written) Note(object client.Object) {
	name := client.ObjectKeyFromObject(object)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.versions == nil {
		w.versions = map[types.NamespacedName]string{}
	}
	if known, ok := w.versions[name]; !ok || newer(object.GetResourceVersion(), known) {
		w.versions[name] = object.GetResourceVersion()
	}
}

// Missing reports whether the cached object is older than the last write. The watch event of that write is still to come.
func (w *Written) Missing(cached client.Object) bool {
	name := client.ObjectKeyFromObject(cached)
	w.mu.Lock()
	defer w.mu.Unlock()
	known, ok := w.versions[name]
	if ok && newer(known, cached.GetResourceVersion()) {
		return true
	}
	delete(w.versions, name)
	return false
}

// Forget drops what is known of an object that is gone.
func (w *Written) Forget(name types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, name)
	delete(w.paces, name)
}

// newer reports whether a is newer than b; false if they cannot be compared.
func newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
