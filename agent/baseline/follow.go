// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
)

// live is the stored part of an object in the member.
type live struct {
	uid      types.UID
	mark     uint64 // see kube.Mark
	other    string // the last other field manager that wrote the object
	deleting bool
	health   status.Status
	message  string // why the object is not healthy; always empty for Secrets
}

// maxHealthMessage is the maximum length of a message about an object's health, in bytes.
const maxHealthMessage = 200

type liveStore = watch.Store[*unstructured.Unstructured, live]

// follow watches the objects of a kind that carry the label of a Baseline.
type follow struct {
	served
	version   string // apiVersion of the kind
	objects   *liveStore
	stop      context.CancelFunc
	forbidden atomic.Bool // whether the last request was refused
}

// readLive returns the function that extracts the stored part of an object of a kind.
func readLive(k kind, name string) func(*unstructured.Unstructured) (live, bool) {
	manager, secret := baseline.User(name), ref{kind: k}.secret()
	return func(o *unstructured.Unstructured) (live, bool) {
		now := live{uid: o.GetUID(), deleting: o.GetDeletionTimestamp() != nil, health: status.UnknownStatus}
		now.mark, now.other = kube.Mark(o.GetManagedFields(), manager)
		result, err := status.Compute(o)
		switch {
		case err != nil:
			now.message = "its status cannot be read"
		case result.Status == status.CurrentStatus || secret:
			now.health = result.Status
		default:
			now.health = result.Status
			now.message = strings.ToValidUTF8(result.Message[:min(len(result.Message), maxHealthMessage)], "")
		}
		return now, o.GetLabels()[v1.LabelBaseline] == name
	}
}

// follow starts to watch a kind, unless it is being watched.
func (b *kept) follow(k kind, version string, s served) *follow {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f := b.watches[k]; f != nil && f.served == s {
		return f
	} else if f != nil { // the Baseline now uses another version of the kind
		f.stop()
	}
	ctx, stop := context.WithCancel(b.ctx)
	id := b.id
	f := &follow{served: s, version: version, stop: stop}
	f.objects = watch.NewStore(watch.Options[*unstructured.Unstructured, live]{
		Read: readLive(k, b.name),
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
		OnError: func(err error) {
			if apierrors.IsForbidden(err) && !f.forbidden.Swap(true) {
				b.options.Changed(id)
			}
		},
	}
	b.running.Go(func() { f.objects.Follow(ctx, collection) })
	b.watches[k] = f
	return f
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
