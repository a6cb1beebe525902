// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decision caches answers for a short time, and asks a question only once if several callers are waiting for
// the answer.
package decision

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/drover-dev/drover/internal/limit"
)

const (
	// capacity is the maximum number of results in a Cache. It limits positive and negative results separately, so
	// that a flood of negative results does not evict positive ones. The least recently used results are evicted first.
	capacity = 8192
	// concurrency is the maximum number of questions that are asked at the same time, so that a flood of invalid tokens
	// does not reach the API server.
	concurrency = 64
	// share is the maximum number of these questions for one asker.
	share = 16
	// waiting and waitingShare limit the questions that are waiting to be asked, in total and for one asker.
	waiting      = 2048
	waitingShare = 256
	// reserved is the additional concurrency for familiar keys. As a result, they never wait behind unknown callers.
	reserved = 32
	// familiarFor is how long a key counts as familiar after its last positive result.
	familiarFor = time.Hour
	// timeout limits how long a question may take, including the wait before it is asked.
	timeout = 10 * time.Second
)

// Key is the key of a question. It must be a hash of everything that the answer depends on.
type Key [32]byte

// Result holds a value and how long it can be reused. A Result is not cached if For is zero.
type Result[V any] struct {
	Value V
	For   time.Duration
	// Yes reports whether the result is positive. Positive results are cached separately from negative ones.
	Yes bool
}

// Cache caches results. Use New to create it. All methods are safe for concurrent use.
type Cache[V any] struct {
	yes, no  *cache.LRUExpireCache
	familiar *cache.LRUExpireCache // keys that recently had a positive result
	asking   singleflight.Group
	open     *limit.Gate // limits new questions
	reserve  *limit.Gate // limits familiar questions
}

// New returns an empty Cache.
func New[V any]() *Cache[V] {
	lru := func() *cache.LRUExpireCache { return cache.NewLRUExpireCache(capacity) }
	bounds := limit.Bounds{User: share, All: concurrency, Queue: waiting, QueueUser: waitingShare, Wait: timeout}
	return &Cache[V]{
		yes: lru(), no: lru(), familiar: lru(),
		open:    limit.NewGate(bounds, limit.Observer{}),
		reserve: limit.NewGate(limit.Bounds{User: share, All: reserved, Queue: capacity, Wait: timeout}, limit.Observer{}),
	}
}

// Get returns the result for key, either from memory or by calling ask. Errors are never cached. The context that is
// passed to ask is independent of ctx, because other callers may be waiting for the same result. It expires after ten
// seconds.
//
// The capacity for concurrent questions is divided fairly among the askers, so that an asker with many questions cannot
// starve the others. An asker with too many questions at once gets a *limit.FullError.
func (c *Cache[V]) Get(
	ctx context.Context, key Key, asker string, ask func(context.Context) (Result[V], error),
) (V, error) {
	for _, remembered := range []*cache.LRUExpireCache{c.yes, c.no} {
		if known, ok := remembered.Get(key); ok {
			return known.(V), nil // only values of type V are added
		}
	}
	result := c.asking.DoChan(string(key[:]), func() (any, error) {
		return c.ask(context.WithoutCancel(ctx), key, asker, ask)
	})
	var none V
	select {
	case <-ctx.Done():
		return none, fmt.Errorf("wait for an answer: %w", context.Cause(ctx))
	case r := <-result:
		if r.Err != nil {
			return none, r.Err
		}
		return r.Val.(V), nil // ask returns V
	}
}

func (c *Cache[V]) ask(
	ctx context.Context, key Key, asker string, ask func(context.Context) (Result[V], error),
) (V, error) {
	var none V
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	gate := c.open
	if _, familiar := c.familiar.Get(key); familiar {
		gate = c.reserve
	}
	seat, err := gate.Enter(ctx, limit.Requester{User: asker})
	if err != nil {
		return none, fmt.Errorf("wait for one of %d questions to be answered: %w", concurrency, err)
	}
	defer seat.Release()
	result, err := ask(ctx)
	if err != nil {
		return none, err
	}
	c.remember(key, result)
	return result.Value, nil
}

func (c *Cache[V]) remember(key Key, result Result[V]) {
	if result.For <= 0 {
		return
	}
	if !result.Yes {
		c.familiar.Remove(key)
		c.no.Add(key, result.Value, result.For)
		return
	}
	c.familiar.Add(key, struct{}{}, familiarFor)
	c.yes.Add(key, result.Value, result.For)
}
