// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"
	"sync"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// prefix is the prefix of the names of the ClusterRoleBindings that result from bindings.
const prefix = "drover:crtb:"

// event is a change to an object.
type event = watch.EventType

const (
	added    = watch.Added
	modified = watch.Modified
	deleted  = watch.Deleted
)

// watcher reports when a binding's object appears in the member.
type watcher struct {
	watch watch.Interface
	done  chan struct{}

	mu      sync.Mutex // guards waiting
	waiting map[string]chan time.Time
}

func watchBindings(ctx context.Context, c client.WithWatch) (*watcher, error) {
	w := &watcher{done: make(chan struct{}), waiting: map[string]chan time.Time{}}
	var err error
	if w.watch, err = c.Watch(ctx, &rbacv1.ClusterRoleBindingList{}); err != nil {
		return nil, err
	}
	go func() {
		defer close(w.done)
		for e := range w.watch.ResultChan() {
			now := time.Now()
			b, ok := e.Object.(*rbacv1.ClusterRoleBinding)
			if !ok {
				continue
			}
			name, _, _ := strings.Cut(strings.TrimPrefix(b.Name, prefix), ":")
			w.mu.Lock()
			if seen := w.waiting[string(e.Type)+name]; seen != nil {
				seen <- now
				delete(w.waiting, string(e.Type)+name)
			}
			w.mu.Unlock()
		}
	}()
	return w, nil
}

// expect returns a channel that receives the time at which an event for a binding's object occurs.
func (w *watcher) expect(name string, kind event) <-chan time.Time {
	seen := make(chan time.Time, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[string(kind)+name] = seen
	return seen
}

func (w *watcher) stop() {
	w.watch.Stop()
	<-w.done
}
