// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"net/url"
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

// hubHistory is where in its history the hub is: its latest checkpoint.
type hubHistory struct {
	mu     sync.Mutex // guards value
	value  string
	secret *corev1.Secret // as stored, without its data; nil if none is known. The queue's goroutine has it.
}

// reached takes the checkpoint that came with a set. It is stored a moment later, so that no set waits for that.
func (l *leadership) reached(query url.Values) {
	checkpoint := query.Get(protocol.QueryCheckpoint)
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
func (c *hubHistory) set(value string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if value == c.value || protocol.OlderCheckpoint(value, c.value) {
		return false
	}
	c.value = value
	return true
}

func (c *hubHistory) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.value
}

// loadHistory reads the checkpoint of a former leader.
func (l *leadership) loadHistory(ctx context.Context) error {
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

// forgetHistory removes what is stored, and returns what remains.
func (l *leadership) forgetHistory(ctx context.Context) (remaining []string) {
	l.hub.set("")
	err := l.options.Secrets.Delete(ctx, checkpointSecret)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return []string{"Secret " + checkpointSecret + ": " + err.Error()}
}
