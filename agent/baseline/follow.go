// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
)

// live holds the parts of a member's object that the agent stores.
type live struct {
	uid      types.UID
	mark     uint64 // see kube.Mark
	other    string // the last other field manager that wrote the object
	deleting bool
	health   status.Status
	message  string // why the object is not healthy; always empty for Secrets
}

const (
	// maxHealthMessage is the maximum length of a message about an object's health, in bytes.
	maxHealthMessage = 200
	// page is the maximum number of whole objects in a page of a list. A single object can be larger than a megabyte.
	page = 10
)

type liveStore = watch.Store[*kube.Whole, live]

// follow watches the objects of one kind that have a Baseline's label.
type follow struct {
	served
	objects   *liveStore
	stop      context.CancelFunc
	forbidden atomic.Bool // whether the last request was refused
}

// readLive returns the stored parts of an object of the given kind. name is the name of the Baseline.
func readLive(k kind, name string, o *kube.Whole) live {
	now := live{uid: o.GetUID(), deleting: o.GetDeletionTimestamp() != nil, health: status.UnknownStatus}
	now.mark, now.other = kube.Mark(o.GetManagedFields(), baseline.User(name))
	u, err := o.Unstructured()
	var result *status.Result
	if err == nil {
		result, err = status.Compute(u)
	}
	switch {
	case kube.TooLarge(err):
		now.message = "its spec or status is too large to be judged"
	case err != nil:
		now.message = "its status cannot be read"
	case result.Status == status.CurrentStatus || ref{kind: k}.secret():
		now.health = result.Status
	default:
		now.health = result.Status
		now.message = strings.ToValidUTF8(result.Message[:min(len(result.Message), maxHealthMessage)], "")
	}
	return now
}

// reader returns the function that reads the objects of a kind for the store. It decodes only objects that the agent
// stores.
func (b *kept) reader(k kind) func(*kube.Whole) (live, bool) {
	name := b.name
	return func(o *kube.Whole) (live, bool) {
		if o.GetLabels()[v1.LabelBaseline] != name || !b.cares(ref{k, o.Namespace, o.Name}) {
			return live{}, false
		}
		return readLive(k, name, o), true
	}
}

// interest determines which objects with the Baseline's label the agent stores. Any user in the member can add this
// label to their own objects.
type interest map[ref]bool

// same reports whether the interest still matches the objects of an inventory.
func (i *interest) same(store *inventory) bool {
	if i == nil || len(*i) != len(store.entries) {
		return false
	}
	for r := range store.entries {
		if !(*i)[r] {
			return false
		}
	}
	return true
}

// setInterest updates the interest to match the objects of the inventory.
func (b *kept) setInterest() {
	if b.store.interest.Load().same(&b.store) {
		return
	}
	now := make(interest, len(b.store.entries))
	for r := range b.store.entries {
		now[r] = true
	}
	b.store.interest.Store(&now)
}

// cares reports whether the agent stores the given object, which has the Baseline's label.
func (b *kept) cares(r ref) bool {
	i := b.store.interest.Load()
	return i != nil && (*i)[r]
}

// follow starts to watch a kind, unless it is being watched.
func (b *kept) follow(k kind, s served) *follow {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.watches[k]; f != nil && f.served == s {
		return f
	} else if f != nil { // the Baseline now uses another version of the kind
		f.stop()
	}
	ctx, stop := context.WithCancel(b.ctx)
	id := b.id
	f := &follow{served: s, stop: stop}
	f.objects = watch.NewStore(watch.Options[*kube.Whole, live]{
		Read: b.reader(k),
		Changed: func(_ watch.Name, before, now *live) {
			if before == nil || now == nil || *before != *now {
				b.options.Changed(id)
			}
		},
		Seen: func() {
			if f.forbidden.Swap(false) {
				b.options.Changed(id)
			}
		},
	})
	collection := watch.Collection{
		Client: b.options.Client.Any, User: baseline.User(b.name), Path: s.path("", ""), Optional: true,
		Labels: v1.LabelBaseline + "=" + b.name, Log: b.options.Log,
		Page: page,
		OnError: func(err error) {
			// No event reports that the objects are gone after a NotFound error.
			if apierrors.IsForbidden(err) && !f.forbidden.Swap(true) || apierrors.IsNotFound(err) {
				b.options.Changed(id)
			}
		},
	}
	b.running.Go(func() { f.objects.Follow(ctx, collection) })
	b.watches[k] = f
	return f
}

// unfollow ends a watch, unless another watch has replaced it.
func (b *kept) unfollow(k kind, f *follow) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.watches[k] == f {
		f.stop()
		delete(b.watches, k)
	}
}

// stopWatches ends the watches of all kinds that are not in the map keep.
func (b *kept) stopWatches(keep map[kind]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, f := range b.watches {
		if !keep[k] {
			f.stop()
			delete(b.watches, k)
		}
	}
}

// watched returns the watch of a kind, or nil.
func (b *kept) watched(k kind) *follow {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.watches[k]
}
