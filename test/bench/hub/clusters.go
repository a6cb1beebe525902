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

// clusterWatch contains the Clusters of the workspace as reported by a watch, and the times of the reports.
type clusterWatch struct {
	mu       sync.Mutex // guards what follows
	clusters map[string]observed
	failure  error
	changed  chan struct{} // closed, and replaced, with each change
}

type observed struct {
	cluster *v1.Cluster
	since   time.Time
}

// watchClusters watches the Clusters until the returned function is called.
func watchClusters(ctx context.Context, from client.WithWatch) (*clusterWatch, func()) {
	ctx, cancel := context.WithCancel(ctx)
	w := &clusterWatch{clusters: map[string]observed{}, changed: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil && w.follow(ctx, from) {
		}
	}()
	return w, func() {
		cancel()
		<-ended
	}
}

// follow reads one watch to its end, and reports whether another one can be started.
func (w *clusterWatch) follow(ctx context.Context, from client.WithWatch) bool {
	watch, err := from.Watch(ctx, &v1.ClusterList{}, client.InNamespace(workspace))
	if err != nil {
		w.change(func() { w.failure = fmt.Errorf("watch clusters: %w", err) })
		return false
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		if cluster, ok := event.Object.(*v1.Cluster); ok {
			w.change(func() { w.clusters[cluster.Name] = observed{cluster, time.Now()} })
		}
	}
	return true
}

func (w *clusterWatch) change(how func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	how()
	close(w.changed)
	w.changed = make(chan struct{})
}

// await waits until a Cluster is in the desired state, and returns the time when it reached that state.
func (w *clusterWatch) await(ctx context.Context, name types.NamespacedName, wanted func(*v1.Cluster) bool) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		w.mu.Lock()
		now, err, changed := w.clusters[name.Name], w.failure, w.changed
		w.mu.Unlock()
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
