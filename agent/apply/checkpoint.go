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

// checkpointEntry is the queue entry for the hub's checkpoint and the key under which the checkpoint is published.
// It is not a valid set ID, so it cannot collide with a set.
const checkpointEntry = "//"

const (
	checkpointSecret = "hub.checkpoint"
	keyCheckpoint    = "checkpoint"
)

// hubHistory holds the hub's latest checkpoint.
type hubHistory struct {
	mu     sync.Mutex // guards value
	value  string
	secret *corev1.Secret // the stored Secret without its data, or nil; used only to handle checkpointEntry
}

// reached records the checkpoint from the query of a set request. The checkpoint is stored in the background, so the
// request does not wait for the write.
func (l *leadership) reached(query url.Values) {
	checkpoint := query.Get(protocol.QueryCheckpoint)
	if !protocol.ValidCheckpoint(checkpoint) || !l.hub.set(checkpoint) {
		return
	}
	l.publisher.Put(checkpointEntry, &protocol.Line{Set: &protocol.SetEvent{Checkpoint: checkpoint}})
	l.queue.Add(checkpointEntry)
}

// reconcileOther handles a queue entry that is not a set ID. It returns false if id is a set ID.
func (l *leadership) reconcileOther(ctx context.Context, id string) bool {
	switch id {
	case orphans:
		l.releaseOrphans(ctx)
	case checkpointEntry:
		l.saveCheckpoint(ctx)
	case unclaimedEntry:
		l.reviewUnclaimed()
	default:
		return false
	}
	return true
}

// set replaces the checkpoint if the given checkpoint is newer, and reports whether it was replaced.
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

// loadHistory reads the checkpoint that a previous leader stored.
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

func (l *leadership) saveCheckpoint(ctx context.Context) {
	value := l.hub.get()
	if value == "" { // all sets and the checkpoint have been removed in the meantime
		return
	}
	stored, err := l.store.write(ctx, secretOf(checkpointSecret, map[string][]byte{keyCheckpoint: []byte(value)}),
		l.hub.secret)
	if err != nil {
		if ctx.Err() == nil {
			l.options.Log.Error(err, "cannot store the checkpoint of the hub")
			l.queue.AddRateLimited(checkpointEntry)
		}
		return
	}
	l.queue.Forget(checkpointEntry)
	l.hub.secret = stored
}

// forgetHistory deletes the stored checkpoint.
func (l *leadership) forgetHistory(ctx context.Context) (remaining []string) {
	l.hub.set("")
	err := l.options.Secrets.Delete(ctx, checkpointSecret)
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return []string{"Secret " + checkpointSecret + ": " + err.Error()}
}
