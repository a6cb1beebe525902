// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/kinds"
)

// kind is a kind of object that users can subscribe to.
type kind struct{ kinds.Kind }

// subscribable returns all kinds that users can subscribe to. A new stream sends them in this order.
func subscribable() []kind {
	var all []kind
	for _, k := range kinds.All() {
		all = append(all, kind{k})
	}
	return all
}

// feed contains the changes to the objects of one kind. It is shared by all streams.
type feed struct {
	kind
	*changes
	frames *frames // messages with whole objects, kept for other streams
	parts  *frames // messages with the visible parts of Clusters, kept for other streams

	mu      sync.Mutex // guards started
	started bool
}

// start registers the feed with the informer of its kind, unless an earlier call has done so. It returns when all
// objects are known.
func (f *feed) start(ctx context.Context, s *Server) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.started {
		return nil
	}
	informer, err := s.Informers.GetInformer(ctx, f.Object)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.Resource, err)
	}
	handler, err := informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { f.see(s, o, false) },
		UpdateFunc: func(_, o any) { f.see(s, o, false) },
		DeleteFunc: func(o any) { f.see(s, o, true) },
	})
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.Resource, err)
	}
	version, err := f.complete(ctx, s, handler)
	if err != nil {
		return errors.Join(err, informer.RemoveEventHandler(handler)) // the next stream adds another handler
	}
	f.forget(version)
	f.started = true
	return nil
}

// complete waits until all objects are known, and returns a resource version. The feed misses no deletion after this
// version, because its watch started at an earlier version.
func (f *feed) complete(ctx context.Context, s *Server,
	handler toolscache.ResourceEventHandlerRegistration) (version uint64, err error) {
	if !toolscache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		return 0, fmt.Errorf("watch %s: %w", f.Resource, ctx.Err())
	}
	return f.latest(ctx, s.Live)
}

// latest returns the current resource version in the API server. It returns the maximum value if resource versions
// cannot be compared.
func (f *feed) latest(ctx context.Context, live client.Reader) (uint64, error) {
	list := f.List.DeepCopyObject().(client.ObjectList)
	if err := live.List(ctx, list, client.Limit(1)); err != nil {
		return 0, fmt.Errorf("list %s: %w", f.Resource, err)
	}
	version, err := strconv.ParseUint(list.GetResourceVersion(), 10, 64)
	if err != nil {
		return ^uint64(0), nil
	}
	return version, nil
}

// see records a change and wakes up the streams.
func (f *feed) see(s *Server, o any, gone bool) {
	lost, unseen := o.(toolscache.DeletedFinalStateUnknown)
	if unseen {
		// The version of the deletion is unknown. A stream that resumes from a version cannot tell whether the deletion
		// has already been sent.
		f.forget(f.end().version)
		o = lost.Obj
	}
	content, ok := o.(client.Object)
	if !ok {
		return
	}
	if unseen {
		f.lose(content)
	} else {
		f.put(content, gone)
	}
	s.wake()
}

// frame returns the message about an object. If keep is set, it caches the message for other streams.
func (f *feed) frame(o object, keep bool) (*websocket.PreparedMessage, error) {
	return f.frames.made(o, keep, func() ([]byte, error) { return f.message(o) })
}

// message is a message to a client. docs/guide/subscribe.md describes its fields.
type message struct {
	Type       string   `json:"type"`
	Kind       string   `json:"kind,omitempty"`
	Object     any      `json:"object,omitempty"`
	Resume     string   `json:"resume,omitempty"`
	Incomplete []string `json:"incomplete,omitempty"`
	// Partial means that the object contains only the fields that are visible to users who can reach the Cluster.
	Partial bool `json:"partial,omitempty"`
	// Unmanaged means that no manager is the leader, so the states of all objects may be out of date.
	Unmanaged bool `json:"unmanaged,omitempty"`
}

// marks is the state of a stream's bookmarks.
type marks struct {
	sent      bool      // whether anything has been sent since the last bookmark
	last      time.Time // the time of the last bookmark
	unmanaged bool      // whether the next bookmark says that no manager is the leader
}

// Types of messages.
const (
	typeReset    = "RESET"
	typeChanged  = "CHANGED"
	typeDeleted  = "DELETED"
	typeBookmark = "BOOKMARK"
)

// outline is the content of a message about an object that was deleted or is no longer visible.
type outline struct {
	Metadata nameAndUID `json:"metadata"`
}

// nameAndUID is the metadata that identifies an object.
type nameAndUID struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// gone returns the message that tells a user that an object is no longer visible.
func (f *feed) gone(o object) message {
	return message{Type: typeDeleted, Kind: f.Resource, Object: outline{nameAndUID{o.Namespace, o.Name, string(o.uid)}}}
}

func (f *feed) message(o object) ([]byte, error) {
	if o.content == nil {
		return json.Marshal(f.gone(o))
	}
	shown := o.content.DeepCopyObject().(client.Object) // the object in the cache must not be changed
	shown.SetManagedFields(nil)
	shown.SetAnnotations(nil)
	shown.SetOwnerReferences(nil)
	shown.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: v1.Group, Version: v1.GroupVersion.Version,
		Kind: f.Name})
	return json.Marshal(message{Type: typeChanged, Kind: f.Resource, Object: shown})
}
