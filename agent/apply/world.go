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

// fieldManager is as whom sets are applied.
const fieldManager = footprint.FieldManager

// object is what is known of an object in the member.
type object struct {
	uid     types.UID
	version uint64
	set     string // value of its label, empty if it is not managed by Drover as its labels say
	// mark identifies what the field manager drover has of it and since when; 0 if it has nothing. When somebody else changes a field
	// of ours, the API server takes it from us, so whatever changes else, as a quota's status does, is no drift.
	mark     uint64
	other    string // the field manager beside us that wrote last
	added    string // what somebody has added to it, see added; of a Namespace nothing
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

// world is what is known of the member: objects that carry a set's label, namespaces of projects, and what was just written. Whatever
// is told later and is older changes nothing.
type world struct {
	seed maphash.Seed
	// changed is told of an object, outside of the lock.
	changed func(r ref, now object)
	// moved is told of projects whose namespaces have changed.
	moved func(projects ...string)

	mu         sync.Mutex // guards what follows
	objects    map[ref]object
	bySet      map[string]map[ref]bool
	namespaces map[string]namespace
}

func newWorld() *world {
	return &world{
		seed: maphash.MakeSeed(), objects: map[ref]object{}, bySet: map[string]map[ref]bool{}, namespaces: map[string]namespace{},
		changed: func(ref, object) {}, moved: func(...string) {},
	}
}

// read takes of an object's metadata what matters.
func (w *world) read(meta *metav1.ObjectMeta) object {
	o := object{uid: meta.UID, version: number(meta.ResourceVersion), deleting: meta.DeletionTimestamp != nil}
	// A Namespace is joined, not owned, and says so by having no "managed-by".
	o.set = meta.Labels[v1.LabelSet]
	var latest time.Time
	for i := range meta.ManagedFields {
		f := &meta.ManagedFields[i]
		switch {
		case f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "":
			var h maphash.Hash
			h.SetSeed(w.seed)
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

// number is a version as a number: they only grow.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// observe notes how an object is, and returns what is known of it now.
func (w *world) observe(r ref, meta *metav1.ObjectMeta) object {
	now := w.observed(r, meta)
	projects, known := w.note(r, now, meta)
	if len(projects) > 0 {
		w.moved(projects...)
	}
	w.changed(r, known)
	return known
}

// observed is what an object's metadata say of it.
func (w *world) observed(r ref, meta *metav1.ObjectMeta) object {
	now := w.read(meta)
	if r.kind != kindNamespace && now.other != "" {
		now.added = added(meta.ManagedFields)
	}
	return now
}

func (w *world) note(r ref, now object, meta *metav1.ObjectMeta) (moved []string, known object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before, had := w.objects[r]
	if had && before.version > now.version {
		return nil, before
	}
	if r.kind == kindNamespace {
		moved = w.noteNamespace(r.name, namespace{
			project: meta.Labels[v1.LabelProject], uid: now.uid, created: meta.CreationTimestamp, deleting: now.deleting,
		})
	}
	if now.set == "" && now.mark == 0 { // nothing of ours
		w.drop(r)
		return moved, now
	}
	if had && before.set != now.set {
		w.drop(r)
	}
	w.objects[r] = now
	if w.bySet[now.set] == nil {
		w.bySet[now.set] = map[ref]bool{}
	}
	w.bySet[now.set][r] = true
	return moved, now
}

// noteNamespace returns the projects whose namespaces have changed.
func (w *world) noteNamespace(name string, now namespace) []string {
	before := w.namespaces[name]
	if now.project == "" {
		delete(w.namespaces, name)
	} else {
		w.namespaces[name] = now
	}
	if before == now || before.project == "" && now.project == "" {
		return nil
	}
	return slices.DeleteFunc([]string{before.project, now.project}, func(project string) bool { return project == "" })
}

// drop must be called under mu.
func (w *world) drop(r ref) {
	set := w.objects[r].set
	delete(w.objects, r)
	if delete(w.bySet[set], r); len(w.bySet[set]) == 0 {
		delete(w.bySet, set)
	}
}

// vanish notes that an object is no more, as of a version.
func (w *world) vanish(r ref, version uint64) {
	w.mu.Lock()
	before, had := w.objects[r]
	if had && before.version > version {
		w.mu.Unlock()
		return
	}
	var moved []string
	if r.kind == kindNamespace {
		moved = w.noteNamespace(r.name, namespace{})
	}
	if had {
		before.gone, before.version, before.mark = true, version, 0 // kept until nobody wants it, see forget
		w.objects[r] = before
	}
	w.mu.Unlock()
	if len(moved) > 0 {
		w.moved(moved...)
	}
	if had {
		w.changed(r, before)
	}
}

// forget drops what is known of an object that is gone.
func (w *world) forget(r ref) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.objects[r].gone {
		w.drop(r)
	}
}

// replace notes all objects of a kind, as of a version: others are gone unless they are newer.
func (w *world) replace(k string, metas map[ref]*metav1.ObjectMeta, version uint64) {
	for r, meta := range metas {
		w.observe(r, meta)
	}
	w.mu.Lock()
	var missing []ref
	for r, o := range w.objects {
		if _, there := metas[r]; r.kind == k && !there && !o.gone {
			missing = append(missing, r)
		}
	}
	if k == kindNamespace {
		for name := range w.namespaces {
			r := ref{kind: k, name: name}
			if _, there := metas[r]; !there && !slices.Contains(missing, r) {
				missing = append(missing, r)
			}
		}
	}
	w.mu.Unlock()
	for _, r := range missing {
		w.vanish(r, version)
	}
}

// get is what is known of an object.
func (w *world) get(r ref) (object, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o, known := w.objects[r]
	return o, known
}

// of are the objects that carry a set's label.
func (w *world) of(set string) []ref {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Keys(w.bySet[set]), compareRefs)
}

// labels are those of all sets that objects carry which the field manager drover has something of.
func (w *world) labels() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for set, refs := range w.bySet {
		for r := range refs {
			if o := w.objects[r]; set != "" && o.mark != 0 && !o.gone && !o.deleting {
				all = append(all, set)
				break
			}
		}
	}
	slices.Sort(all)
	return all
}

// ours are all objects that the field manager drover has something of, or had: a copy that a person made with our labels is not.
func (w *world) ours() []ref {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []ref
	for r, o := range w.objects {
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

// members are the namespaces of a project, in no order.
func (w *world) members(project string) []expansion.Namespace {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []expansion.Namespace
	for name, ns := range w.namespaces {
		if ns.project == project {
			all = append(all, expansion.Namespace{Name: name, UID: ns.uid, Created: ns.created, Terminating: ns.deleting})
		}
	}
	return all
}

// deleting says whether a namespace is on its way out.
func (w *world) deleting(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.namespaces[name].deleting
}
