// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"sync"

	"github.com/gorilla/websocket"
	"k8s.io/utils/lru"
)

// Limits on the messages that are kept for one kind. The limits are necessary because users determine how large their
// objects are and how often the objects change.
const (
	framesKept  = 1024
	framesBytes = 8 << 20
)

// frames caches the latest messages about the most recently used objects, so that several streams can send the same
// message without encoding it again.
type frames struct {
	mu    sync.Mutex // guards the fields below
	kept  *lru.Cache // by the name of the object
	bytes int
}

// frame is a message about a change to an object.
type frame struct {
	message *websocket.PreparedMessage
	seq     uint64
	size    int
}

func newFrames() *frames {
	f := &frames{}
	f.kept = lru.NewWithEvictionFunc(framesKept, func(_ lru.Key, evicted any) { f.bytes -= evicted.(frame).size })
	return f
}

// made returns the message about a change to an object. If the message is not cached, it calls encode to create it. If
// keep is set, it caches the new message.
func (f *frames) made(o object, keep bool, encode func() ([]byte, error)) (*websocket.PreparedMessage, error) {
	if kept := f.get(o); kept != nil {
		return kept, nil
	}
	data, err := encode()
	if err != nil {
		return nil, err
	}
	message, err := websocket.NewPreparedMessage(websocket.TextMessage, data)
	if err == nil && keep {
		f.add(o, message, len(data))
	}
	return message, err
}

// get returns the cached message about a change to an object, or nil if there is none.
func (f *frames) get(o object) *websocket.PreparedMessage {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept, found := f.kept.Get(o.NamespacedName); found && kept.(frame).seq == o.seq {
		return kept.(frame).message
	}
	return nil
}

// add caches a message. It replaces any earlier message about the same object.
func (f *frames) add(o object, message *websocket.PreparedMessage, size int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if kept, found := f.kept.Get(o.NamespacedName); found && kept.(frame).seq >= o.seq || size > framesBytes {
		return
	}
	f.kept.Remove(o.NamespacedName)
	f.bytes += size
	f.kept.Add(o.NamespacedName, frame{message, o.seq, size})
	for f.bytes > framesBytes {
		f.kept.RemoveOldest()
	}
}
