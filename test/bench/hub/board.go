// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// board shows how the Clusters of the workspace are, as a watch tells it, and since when.
type board struct {
	mu       sync.Mutex // guards what follows
	clusters map[string]shown
	failure  error
	changed  chan struct{} // closed, and replaced, with each change
}

type shown struct {
	cluster *v1.Cluster
	since   time.Time
}

// watchClusters fills a board until what it returns is called.
func watchClusters(ctx context.Context, from client.WithWatch) (*board, func()) {
	ctx, cancel := context.WithCancel(ctx)
	b := &board{clusters: map[string]shown{}, changed: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil && b.follow(ctx, from) {
		}
	}()
	return b, func() {
		cancel()
		<-ended
	}
}

// follow follows one watch to its end, and says whether another can be tried.
func (b *board) follow(ctx context.Context, from client.WithWatch) bool {
	watch, err := from.Watch(ctx, &v1.ClusterList{}, client.InNamespace(workspace))
	if err != nil {
		b.change(func() { b.failure = fmt.Errorf("watch clusters: %w", err) })
		return false
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if cluster, ok := event.Object.(*v1.Cluster); ok {
			b.change(func() { b.clusters[cluster.Name] = shown{cluster, time.Now()} })
		}
	}
	return true
}

func (b *board) change(how func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	how()
	close(b.changed)
	b.changed = make(chan struct{})
}

// await waits until a Cluster is as wanted, and returns since when it is.
func (b *board) await(ctx context.Context, name types.NamespacedName, wanted func(*v1.Cluster) bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		b.mu.Lock()
		now, err, changed := b.clusters[name.Name], b.failure, b.changed
		b.mu.Unlock()
		if err != nil {
			return time.Time{}, err
		}
		if now.cluster != nil && wanted(now.cluster) {
			return now.since, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err := fmt.Errorf("wait for cluster %s: %w", name, ctx.Err())
			if now.cluster != nil {
				err = fmt.Errorf("%w; its conditions: %+v", err, now.cluster.Status.Conditions)
			}
			return time.Time{}, err
		}
	}
}
