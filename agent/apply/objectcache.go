// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// fieldManager is the field manager that the agent uses to apply sets.
const fieldManager = protocol.FieldManager

// object is the cached state of an object in the member.
type object struct {
	uid      types.UID
	version  string
	set      string // value of the set label; empty unless the labels say that Drover manages the object
	mark     uint64 // see kube.Mark
	other    string // the last field manager, other than drover, that wrote the object
	added    string // path of a field that another field manager has added; always empty for a Namespace
	deleting bool
	project  string      // project of a Namespace
	created  metav1.Time // creation time of a Namespace in a project
}

// readObject extracts the cached state from an object's metadata.
func readObject(r ref, meta *metav1.ObjectMeta) object {
	o := object{uid: meta.UID, version: meta.ResourceVersion, deleting: meta.DeletionTimestamp != nil}
	// Namespaces do not have the managed-by label, because sets share them and do not own them.
	o.set = meta.Labels[v1.LabelSet]
	o.mark, o.other = kube.Mark(meta.ManagedFields, fieldManager)
	if r.kind == kindNamespace {
		o.project, o.created = meta.Labels[v1.LabelProject], meta.CreationTimestamp
	} else if o.other != "" {
		o.added = added(meta.ManagedFields)
	}
	return o
}

type objectStore = watch.Store[*metav1.PartialObjectMetadata, object]

// objectCache caches objects in the member: objects with a set label, namespaces of projects, and objects that the
// agent has just written.
type objectCache map[string]*objectStore // by kind

// newObjectCache returns a cache that calls changed whenever an object changes. The before parameter is nil if the
// object was created, and now is nil if the object was deleted.
func newObjectCache(changed func(r ref, before, now *object)) objectCache {
	c := objectCache{}
	for _, k := range protocol.SetKinds() {
		of := func(n watch.Name) ref { return ref{kind: k.Name, namespace: n.Namespace, name: n.Name} }
		c[k.Name] = watch.NewStore(watch.Options[*metav1.PartialObjectMetadata, object]{
			Read: func(o *metav1.PartialObjectMetadata) (object, bool) {
				now := readObject(of(watch.Name{Namespace: o.Namespace, Name: o.Name}), &o.ObjectMeta)
				return now, now.set != "" || now.mark != 0 || now.project != ""
			},
			Index:   func(o object) string { return o.set },
			Changed: func(n watch.Name, before, now *object) { changed(of(n), before, now) },
		})
	}
	return c
}

func (r ref) nameInKind() watch.Name { return watch.Name{Namespace: r.namespace, Name: r.name} }

func (c objectCache) get(r ref) (object, bool) { return c[r.kind].Get(r.nameInKind()) }

// wrote updates the cache with the API server's response to a write.
func (c objectCache) wrote(r ref, meta *metav1.PartialObjectMetadata) { c[r.kind].Wrote(meta) }

// gone removes the object from the cache if the cached object has the given UID.
func (c objectCache) gone(r ref, uid types.UID) {
	c[r.kind].Drop(r.nameInKind(), func(o object) bool { return o.uid == uid })
}

// of returns the objects with the given set label.
func (c objectCache) of(set string) []ref {
	var all []ref
	for kind, objects := range c {
		for _, n := range objects.Of(set) {
			all = append(all, ref{kind: kind, namespace: n.Namespace, name: n.Name})
		}
	}
	slices.SortFunc(all, compareRefs)
	return all
}

// ours returns all objects in which the field manager "drover" owns fields, and the set labels of these objects. It
// ignores copies that users made of such objects, even if the copies have the same labels.
func (c objectCache) ours() (all []ref, sets []string) {
	for kind, objects := range c {
		objects.Each(func(n watch.Name, o object) {
			if o.mark == 0 {
				return
			}
			all = append(all, ref{kind: kind, namespace: n.Namespace, name: n.Name})
			if o.set != "" && !o.deleting {
				sets = append(sets, o.set)
			}
		})
	}
	slices.SortFunc(all, compareRefs)
	slices.Sort(sets)
	return all, slices.Compact(sets)
}

func compareRefs(a, b ref) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.namespace, b.namespace), cmp.Compare(a.name, b.name))
}

// members returns the namespaces of a project in no particular order.
func (c objectCache) members(project string) []set.Namespace {
	var all []set.Namespace
	c[kindNamespace].Each(func(n watch.Name, o object) {
		if o.project == project {
			all = append(all, set.Namespace{Name: n.Name, UID: o.uid, Created: o.created, Terminating: o.deleting})
		}
	})
	return all
}

func (c objectCache) deleting(name string) bool {
	o, _ := c.get(ref{kind: kindNamespace, name: name})
	return o.deleting
}
