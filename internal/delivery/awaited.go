// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"cmp"
	"maps"
	"slices"
)

// Awaited returns the expected owners for which Replace has not been called yet, sorted. The result is empty if the
// store is complete or Expect has not been called yet.
func (d *Store) Awaited() []Key {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.owners.complete {
		return nil
	}
	return slices.SortedFunc(maps.Keys(d.owners.expected), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
