// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// readiness tracks the Clusters or Hosts that the hub shows as Ready.
type readiness struct {
	hosts  bool
	cancel context.CancelFunc
	done   chan struct{}

	mu    sync.Mutex // guards what follows
	ready map[types.NamespacedName]bool
	left  map[types.NamespacedName]bool // were Ready and then not
}

func watchReadiness(ctx context.Context, c client.WithWatch, hosts bool) *readiness {
	ctx, cancel := context.WithCancel(ctx)
	r := &readiness{hosts: hosts, cancel: cancel, done: make(chan struct{})}
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

// reset resets the record of Clusters that were not Ready, and keeps the record of Clusters that are Ready.
func (r *readiness) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = map[types.NamespacedName]bool{}
	if r.ready == nil {
		r.ready = map[types.NamespacedName]bool{}
	}
}

// count returns the number of Clusters that are Ready, and the number of Clusters that were not Ready at some time.
func (r *readiness) count() (ready, left int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.ready), len(r.left)
}

// follow lists the objects, and watches them until the watch ends.
func (r *readiness) follow(ctx context.Context, c client.WithWatch) {
	list := r.list()
	for {
		page := r.list()
		if err := c.List(ctx, page, client.Limit(500), client.Continue(list.GetContinue())); err != nil {
			return // it is tried again
		}
		if meta.EachListItem(page, func(o runtime.Object) error { r.see(o); return nil }) != nil {
			return
		}
		if list = page; list.GetContinue() == "" {
			break
		}
	}
	events, err := c.Watch(ctx, r.list(), &client.ListOptions{Raw: rawFrom(list)})
	if err != nil {
		return
	}
	defer events.Stop()
	for event := range events.ResultChan() {
		if event.Type != watch.Deleted {
			r.see(event.Object)
		}
	}
}

func (r *readiness) list() client.ObjectList {
	if r.hosts {
		return &v1.HostList{}
	}
	return &v1.ClusterList{}
}

// see records whether a Cluster or Host is Ready. An event may contain another object.
func (r *readiness) see(o runtime.Object) {
	var name types.NamespacedName
	var conditions []metav1.Condition
	switch o := o.(type) {
	case *v1.Cluster:
		name, conditions = client.ObjectKeyFromObject(o), o.Status.Conditions
	case *v1.Host:
		name, conditions = client.ObjectKeyFromObject(o), o.Status.Conditions
	default:
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case meta.IsStatusConditionTrue(conditions, v1.ConditionReady):
		r.ready[name] = true
	case r.ready[name]:
		delete(r.ready, name)
		r.left[name] = true
	}
}

// rawFrom makes a watch start at the end of a list.
func rawFrom(list client.ObjectList) *metav1.ListOptions {
	return &metav1.ListOptions{ResourceVersion: list.GetResourceVersion()}
}
