// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Remains counts the members that still have a set of which Absent was handed over, those that have not said yet what they have, and those that
// cannot be asked: they are not connected and had it when they were, or their agents take nothing.
func (d *Store) Remains(id string, members []types.NamespacedName) (held, away, unreported int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range members {
		m := d.members[name]
		switch {
		case (m == nil || !m.connected && !m.heard) && time.Since(d.started) < settleTime:
			unreported++
		case m != nil && m.ridLocked(id):
		case m == nil, !m.connected, m.refuses != "":
			away++
		case !m.readyLocked():
			unreported++
		case m.has[id] != nil, m.sends[id] != nil:
			held++
		}
	}
	return held, away, unreported
}
