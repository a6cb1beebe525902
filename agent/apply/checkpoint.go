// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/protocol"
)

// checkpointEntry is the queue entry, and the key of the published line, of the hub's checkpoint. It is not a valid id
// of a set.
const checkpointEntry = "//"

const (
	checkpointSecret = "hub.checkpoint"
	keyCheckpoint    = "checkpoint"
)

// hubCheckpoint is the latest checkpoint of the hub.
type hubCheckpoint struct {
	mu     sync.Mutex // guards value
	value  string
	secret *corev1.Secret // as stored, without its data; nil if none is known. The queue's goroutine has it.
}

// reached takes the checkpoint that came with a set. It is stored a moment later, so that no set waits for that.
func (l *leadership) reached(checkpoint string) {
	if !protocol.ValidCheckpoint(checkpoint) || !l.hub.set(checkpoint) {
		return
	}
	l.publisher.Put(checkpointEntry, &protocol.Line{Set: &protocol.SetEvent{Checkpoint: checkpoint}})
	l.queue.Add(checkpointEntry)
}

// reconcileOther reconciles an entry of the queue that is no set, and reports whether it is one.
func (l *leadership) reconcileOther(id string) bool {
	switch id {
	case orphans:
		l.releaseOrphans(l.ctx)
	case checkpointEntry:
		l.saveCheckpoint(l.ctx)
	case unclaimedEntry:
		l.reviewUnclaimed()
	default:
		return false
	}
	return true
}

// set replaces the checkpoint, and reports whether it did.
func (c *hubCheckpoint) set(value string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value == c.value || protocol.OlderCheckpoint(value, c.value) {
		return false
	}
	c.value = value
	return true
}

func (c *hubCheckpoint) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// loadCheckpoint reads the checkpoint of a former leader.
func (l *leadership) loadCheckpoint(ctx context.Context) error {
	secret, err := l.options.Secrets.Get(ctx, checkpointSecret)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	value := string(secret.Data[keyCheckpoint])
	secret.Data = nil
	l.hub.secret = secret
	if protocol.ValidCheckpoint(value) && l.hub.set(value) {
		l.publisher.Put(checkpointEntry, &protocol.Line{Set: &protocol.SetEvent{Checkpoint: value}})
	}
	return nil
}

// saveCheckpoint stores the checkpoint.
func (l *leadership) saveCheckpoint(ctx context.Context) {
	value := l.hub.get()
	if value == "" { // everything was removed since
		return
	}
	stored, err := l.store.write(ctx, secretOf(checkpointSecret, map[string][]byte{keyCheckpoint: []byte(value)}),
		l.hub.secret)
	if err != nil {
		if ctx.Err() == nil {
			l.options.Log.Error(err, "checkpoint of the hub not stored")
			l.queue.AddRateLimited(checkpointEntry)
		}
		return
	}
	l.queue.Forget(checkpointEntry)
	l.hub.secret = stored
}

// forgetCheckpoint removes what is stored.
func (l *leadership) forgetCheckpoint(ctx context.Context) error {
	l.hub.set("")
	err := l.options.Secrets.Delete(ctx, checkpointSecret)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
