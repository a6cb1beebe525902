// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decision remembers answers for a short while and asks once for all who wait for the same one.
package decision

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/apimachinery/pkg/util/cache"
)

const (
	// capacity bounds the answers that a Cache remembers. The ones not used for longest go first.
	capacity = 8192
	// concurrency bounds the questions that are open at once, so that a flood of wrong tokens is no flood for the API server.
	concurrency = 64
	// timeout bounds one question, whoever waits for it.
	timeout = 10 * time.Second
)

// Key of a question. Make it with a hash over everything that the answer depends on.
type Key [32]byte

// Answer is a value and for how long it may be given again. An Answer with For zero is not remembered.
type Answer[V any] struct {
	Value V
	For   time.Duration
}

// Cache remembers answers. New makes it. All methods may be called concurrently.
type Cache[V any] struct {
	remembered *cache.LRUExpireCache
	asking     singleflight.Group
	open       chan struct{} // holds one element for each open question
}

// New makes an empty cache.
func New[V any]() *Cache[V] {
	return &Cache[V]{remembered: cache.NewLRUExpireCache(capacity), open: make(chan struct{}, concurrency)}
}

// Get returns the answer for key, from memory or by ask. Errors are never remembered. The context of ask outlives ctx,
// as others may wait for the same answer, and ends after ten seconds.
func (c *Cache[V]) Get(ctx context.Context, key Key, ask func(context.Context) (Answer[V], error)) (V, error) {
	if known, ok := c.remembered.Get(key); ok {
		return known.(V), nil // only V is ever added
	}
	result := c.asking.DoChan(string(key[:]), func() (any, error) {
		return c.ask(context.WithoutCancel(ctx), key, ask)
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

func (c *Cache[V]) ask(ctx context.Context, key Key, ask func(context.Context) (Answer[V], error)) (V, error) {
	var none V
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	select {
	case c.open <- struct{}{}:
		defer func() { <-c.open }()
	case <-ctx.Done():
		return none, fmt.Errorf("wait for one of %d questions to be answered: %w", concurrency, ctx.Err())
	}
	answer, err := ask(ctx)
	if err != nil {
		return none, err
	}
	if answer.For > 0 {
		c.remembered.Add(key, answer.Value, answer.For)
	}
	return answer.Value, nil
}
