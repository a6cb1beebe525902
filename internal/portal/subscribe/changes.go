// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"maps"
	"slices"
	"sort"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// mostDeleted is the maximum number of deletions that are kept per kind. If a deletion is dropped before a stream
	// has sent it, that stream restarts from the beginning.
	mostDeleted = 10_000
	// slack is the number of outdated records that may be kept in addition to one record for each object.
	slack = 1024
	// settles is how long older changes may still arrive after a newer change. A list returns objects in any order.
	settles = time.Second
)

// object holds the latest change to an API object. It is immutable.
type object struct {
	types.NamespacedName
	uid     types.UID
	seq     uint64        // the sequence number of the change on this replica
	version uint64        // the resource version, or 0 if it is unknown
	content client.Object // nil if the object was deleted
}

// changes holds the latest change to each object of a kind and the latest deletions, in order. Each reader keeps its
// own position.
type changes struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below
	seq     uint64     // the sequence number of the latest change
	objects map[types.NamespacedName]object
	records []object // by seq; a record is outdated if its object has changed again
	live    map[string]int
	deleted int
	// forgotten is the position up to which deletions have been dropped.
	forgotten position
	// version is the greatest resource version of any change. The settled field contains the version before the latest
	// burst of changes.
	version, settled uint64
	burst, last      time.Time
}

// position is a reader's position in the changes.
type position struct{ seq, version uint64 }

func newChanges(now func() time.Time) *changes {
	return &changes{now: now, objects: map[types.NamespacedName]object{}, live: map[string]int{}}
}

// put records the current state of an object, or its deletion.
func (c *changes) put(o client.Object, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		c.forgotten.version = ^uint64(0) // a stream cannot be resumed from versions that cannot be compared
	}
	c.putLocked(o, gone, version)
}

// lose records the deletion of an object whose delete event was missed. The version of the deletion is unknown: the
// last known version of the object is older.
func (c *changes) lose(o client.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(o, true, 0)
}

func (c *changes) putLocked(o client.Object, gone bool, version uint64) {
	key := client.ObjectKeyFromObject(o)
	before, known := c.objects[key]
	if gone && (!known || before.content == nil) {
		return
	}
	c.advanceLocked(version)
	c.countLocked(before, -1)
	c.seq++
	now := object{NamespacedName: key, uid: o.GetUID(), seq: c.seq, version: version}
	if !gone {
		now.content = o
	}
	c.objects[key] = now
	c.countLocked(now, 1)
	c.records = append(c.records, now)
	c.compactLocked()
}

// advanceLocked records that a resource version has been seen.
func (c *changes) advanceLocked(version uint64) {
	now := c.now()
	if now.Sub(c.last) > settles {
		c.settled, c.burst = c.version, now
	} else if now.Sub(c.burst) > 2*settles { // changes keep arriving
		c.settled, c.burst = c.version, now
	}
	c.last = now
	c.version = max(c.version, version)
}

func (c *changes) countLocked(o object, n int) {
	switch {
	case o.seq == 0: // there was no earlier record
	case o.content == nil:
		c.deleted += n
	default:
		if c.live[o.Namespace] += n; c.live[o.Namespace] == 0 {
			delete(c.live, o.Namespace)
		}
	}
}

// compactLocked removes outdated records. If there are too many deletions, it also drops the oldest half of them.
func (c *changes) compactLocked() {
	drop := 0
	if c.deleted > mostDeleted {
		drop = c.deleted - mostDeleted/2
	}
	if drop == 0 && len(c.records) <= 2*len(c.objects)+slack {
		return
	}
	c.records = slices.DeleteFunc(c.records, func(r object) bool {
		if !c.currentLocked(r) {
			return true
		}
		if r.content != nil || drop == 0 {
			return false
		}
		drop--
		c.deleted--
		c.forgotten = position{r.seq, max(c.forgotten.version, r.version)}
		delete(c.objects, r.NamespacedName)
		return true
	})
}

func (c *changes) currentLocked(r object) bool { return c.objects[r.NamespacedName].seq == r.seq }

// after returns at most the given number of changes after a position, in order. It returns false if deletions after
// that position have been dropped.
func (c *changes) after(seq uint64, most int) (batch []object, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if seq > 0 && seq < c.forgotten.seq {
		return nil, false
	}
	first := sort.Search(len(c.records), func(i int) bool { return c.records[i].seq > seq })
	for _, r := range c.records[first:] {
		if len(batch) == most {
			break
		}
		if c.currentLocked(r) {
			batch = append(batch, r)
		}
	}
	return batch, true
}

// end returns the position after all changes. All changes up to the position's version have been seen.
func (c *changes) end() position {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.now().Sub(c.last) > settles {
		return position{c.seq, c.version}
	}
	return position{c.seq, c.settled}
}

// newest returns the greatest resource version that has been seen.
func (c *changes) newest() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.version
}

// since reports whether all deletions after a resource version are still known.
func (c *changes) since(version uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return version > 0 && version >= c.forgotten.version
}

// forget records that deletions up to a resource version have been dropped.
func (c *changes) forget(version uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forgotten.version = max(c.forgotten.version, version)
}

// names returns the names and UIDs of the objects in the namespaces that the given function accepts.
func (c *changes) names(in func(namespace string) bool) map[types.NamespacedName]types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	found := map[types.NamespacedName]types.UID{}
	for name, o := range c.objects {
		if o.content != nil && in(name.Namespace) {
			found[name] = o.uid
		}
	}
	return found
}

// get returns the latest change to an object. If the object is not known, get returns a change without content.
func (c *changes) get(name types.NamespacedName) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o, known := c.objects[name]; known {
		return o
	}
	return object{NamespacedName: name}
}

// current reports whether a change is the latest change to its object.
func (c *changes) current(o object) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.currentLocked(o)
}

// namespaces returns the namespaces that contain objects.
func (c *changes) namespaces() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.live))
}
