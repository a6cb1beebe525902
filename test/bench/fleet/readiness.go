// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
)

// readiness follows which Clusters the hub shows as Ready.
type readiness struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex // guards what follows
	ready map[types.NamespacedName]bool
	left  map[types.NamespacedName]bool // were Ready and then not
}

func watchReadiness(ctx context.Context, c client.WithWatch) *readiness {
	ctx, cancel := context.WithCancel(ctx)
	r := &readiness{cancel: cancel, done: make(chan struct{})}
	r.reset()
	go func() {
		defer close(r.done)
		for ctx.Err() == nil {
			r.follow(ctx, c)
			pause(ctx, time.Second) // the API server ends watches now and then
		}
	}()
	return r
}

func (r *readiness) stop() {
	r.cancel()
	<-r.done
}

// reset forgets which Clusters left, and keeps which are Ready.
func (r *readiness) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = map[types.NamespacedName]bool{}
	if r.ready == nil {
		r.ready = map[types.NamespacedName]bool{}
	}
}

// count returns how many Clusters are Ready and how many were not Ready for a while.
func (r *readiness) count() (ready, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ready), len(r.left)
}

// follow lists and watches until the watch ends.
func (r *readiness) follow(ctx context.Context, c client.WithWatch) {
	list := &v1.ClusterList{}
	for {
		page := &v1.ClusterList{}
		if err := c.List(ctx, page, client.Limit(500), client.Continue(list.Continue)); err != nil {
			return // it is tried again
		}
		for i := range page.Items {
			r.see(&page.Items[i])
		}
		if list = page; list.Continue == "" {
			break
		}
	}
	events, err := c.Watch(ctx, &v1.ClusterList{}, &client.ListOptions{Raw: rawFrom(list)})
	if err != nil {
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if cluster, ok := event.Object.(*v1.Cluster); ok && event.Type != watch.Deleted {
			r.see(cluster)
		}
	}
}

func (r *readiness) see(cluster *v1.Cluster) {
	name := client.ObjectKeyFromObject(cluster)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case framework.Ready(cluster):
		r.ready[name] = true
	case r.ready[name]:
		delete(r.ready, name)
		r.left[name] = true
	}
}

// rawFrom has a watch begin where a list ended.
func rawFrom(list *v1.ClusterList) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: list.ResourceVersion}
}
