// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/footprint"
)

// fieldManager is the field manager that applies sets.
const fieldManager = footprint.FieldManager

// object is what is known of an object in the member.
type object struct {
	uid     types.UID
	version uint64
	set     string // value of its label, empty if its labels do not say that Drover manages it
	// mark identifies the fields that the field manager drover owns, and since when; 0 if it owns none. When another client changes a field
	// of ours, the API server makes that client the owner. Other changes, such as of a quota's status, are not drift.
	mark     uint64
	other    string // the field manager beside us that wrote last
	added    string // what another field manager has added, see added; always empty for a Namespace
	deleting bool
	gone     bool // it was there and is deleted, at that version
}

// namespace is a Namespace of some project.
type namespace struct {
	project  string
	uid      types.UID
	created  metav1.Time
	deleting bool
}

// objectCache is what is known of the member: objects that carry a set's label, namespaces of projects, and what was just written. An older
// version never replaces a newer one.
type objectCache struct {
	seed maphash.Seed
	// changed is called for an object, outside of the lock.
	changed func(r ref, now object)
	// moved is called for projects whose namespaces have changed.
	moved func(projects ...string)

	mu         sync.Mutex // guards what follows
	objects    map[ref]object
	bySet      map[string]map[ref]bool
	namespaces map[string]namespace
}

func newObjectCache() *objectCache {
	return &objectCache{
		seed: maphash.MakeSeed(), objects: map[ref]object{}, bySet: map[string]map[ref]bool{}, namespaces: map[string]namespace{},
		changed: func(ref, object) {}, moved: func(...string) {},
	}
}

// read returns the relevant part of an object's metadata.
func (c *objectCache) read(meta *metav1.ObjectMeta) object {
	o := object{uid: meta.UID, version: number(meta.ResourceVersion), deleting: meta.DeletionTimestamp != nil}
	// A Namespace is joined, not owned, and says so by having no "managed-by".
	o.set = meta.Labels[v1.LabelSet]
	var latest time.Time
	for i := range meta.ManagedFields {
		f := &meta.ManagedFields[i]
		switch {
		case f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "":
			var h maphash.Hash
			h.SetSeed(c.seed)
			if f.FieldsV1 != nil {
				_, _ = h.Write(f.FieldsV1.GetRawBytes())
			}
			if f.Time != nil {
				_, _ = h.WriteString(f.Time.UTC().Format(time.RFC3339))
			}
			o.mark = h.Sum64() | 1
		case f.Subresource == "" && (f.Time == nil || !f.Time.Time.Before(latest)):
			o.other = f.Manager
			if f.Time != nil {
				latest = f.Time.Time
			}
		}
	}
	return o
}

// number returns a resource version as a number: versions only grow.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// observe stores an observed object, and returns what is known of it now.
func (c *objectCache) observe(r ref, meta *metav1.ObjectMeta) object {
	now := c.observed(r, meta)
	projects, known := c.note(r, now, meta)
	if len(projects) > 0 {
		c.moved(projects...)
	}
	c.changed(r, known)
	return known
}

// observed returns an object as its metadata describe it.
func (c *objectCache) observed(r ref, meta *metav1.ObjectMeta) object {
	now := c.read(meta)
	if r.kind != kindNamespace && now.other != "" {
		now.added = added(meta.ManagedFields)
	}
	return now
}

func (c *objectCache) note(r ref, now object, meta *metav1.ObjectMeta) (moved []string, known object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, had := c.objects[r]
	if had && before.version > now.version {
		return nil, before
	}
	if r.kind == kindNamespace {
		moved = c.noteNamespace(r.name, namespace{
			project: meta.Labels[v1.LabelProject], uid: now.uid, created: meta.CreationTimestamp, deleting: now.deleting,
		})
	}
	if now.set == "" && now.mark == 0 { // it has no fields of ours
		c.drop(r)
		return moved, now
	}
	if had && before.set != now.set {
		c.drop(r)
	}
	c.objects[r] = now
	if c.bySet[now.set] == nil {
		c.bySet[now.set] = map[ref]bool{}
	}
	c.bySet[now.set][r] = true
	return moved, now
}

// noteNamespace returns the projects whose namespaces have changed.
func (c *objectCache) noteNamespace(name string, now namespace) []string {
	before := c.namespaces[name]
	if now.project == "" {
		delete(c.namespaces, name)
	} else {
		c.namespaces[name] = now
	}
	if before == now || before.project == "" && now.project == "" {
		return nil
	}
	return slices.DeleteFunc([]string{before.project, now.project}, func(project string) bool { return project == "" })
}

// drop must be called under mu.
func (c *objectCache) drop(r ref) {
	set := c.objects[r].set
	delete(c.objects, r)
	if delete(c.bySet[set], r); len(c.bySet[set]) == 0 {
		delete(c.bySet, set)
	}
}

// vanish records that an object is gone as of a version.
func (c *objectCache) vanish(r ref, version uint64) {
	c.mu.Lock()
	before, had := c.objects[r]
	if had && before.version > version {
		c.mu.Unlock()
		return
	}
	var moved []string
	if r.kind == kindNamespace {
		moved = c.noteNamespace(r.name, namespace{})
	}
	if had {
		before.gone, before.version, before.mark = true, version, 0 // kept until no set wants it, see forget
		c.objects[r] = before
	}
	c.mu.Unlock()
	if len(moved) > 0 {
		c.moved(moved...)
	}
	if had {
		c.changed(r, before)
	}
}

// forget drops an object that is gone.
func (c *objectCache) forget(r ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.objects[r].gone {
		c.drop(r)
	}
}

// replace stores all objects of a kind as of a version. Others are gone unless they are newer.
func (c *objectCache) replace(k string, metas map[ref]*metav1.ObjectMeta, version uint64) {
	for r, meta := range metas {
		c.observe(r, meta)
	}
	c.mu.Lock()
	var missing []ref
	for r, o := range c.objects {
		if _, there := metas[r]; r.kind == k && !there && !o.gone {
			missing = append(missing, r)
		}
	}
	if k == kindNamespace {
		for name := range c.namespaces {
			r := ref{kind: k, name: name}
			if _, there := metas[r]; !there && !slices.Contains(missing, r) {
				missing = append(missing, r)
			}
		}
	}
	c.mu.Unlock()
	for _, r := range missing {
		c.vanish(r, version)
	}
}

// get returns what is known of an object.
func (c *objectCache) get(r ref) (object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, known := c.objects[r]
	return o, known
}

// of returns the objects that carry a set's label.
func (c *objectCache) of(set string) []ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Keys(c.bySet[set]), compareRefs)
}

// labels returns the set labels of all objects of which the field manager drover owns fields.
func (c *objectCache) labels() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []string
	for set, refs := range c.bySet {
		for r := range refs {
			if o := c.objects[r]; set != "" && o.mark != 0 && !o.gone && !o.deleting {
				all = append(all, set)
				break
			}
		}
	}
	slices.Sort(all)
	return all
}

// ours returns all objects of which the field manager drover owns fields. A copy that a user made with our labels is not one.
func (c *objectCache) ours() []ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []ref
	for r, o := range c.objects {
		if o.mark != 0 && !o.gone {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, compareRefs)
	return all
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// members returns the namespaces of a project, in no order.
func (c *objectCache) members(project string) []expansion.Namespace {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []expansion.Namespace
	for name, ns := range c.namespaces {
		if ns.project == project {
			all = append(all, expansion.Namespace{Name: name, UID: ns.uid, Created: ns.created, Terminating: ns.deleting})
		}
	}
	return all
}

// deleting reports whether a namespace is being deleted.
func (c *objectCache) deleting(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.namespaces[name].deleting
}
