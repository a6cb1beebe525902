// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Remains counts, for a set that is to be Absent, the members that still have it, those that are away or take no sets and may have it, and those
// whose agents have not reported yet.
func (d *Store) Remains(id string, members []types.NamespacedName) (held, away, unreported int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, name := range members {
		m := d.members[name]
		switch {
		case (m == nil || !m.connected && !m.reported) && time.Since(d.started) < settleTime:
			unreported++
		case m != nil && m.lacksLocked(id):
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
