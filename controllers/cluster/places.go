// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Places tracks which Clusters are within the limit for their workspace. Older Clusters take precedence.
type Places struct {
	most int // limit for each workspace; 0 means no limit

	mu         sync.Mutex // guards the fields below
	workspaces map[string][]place
}

// NewPlaces returns a Places that allows at most the given number of Clusters in each workspace. There is no limit if
// most is 0.
func NewPlaces(most int) *Places { return &Places{most: most} }

// place is a Cluster's position in its workspace. Clusters are ordered by age.
type place struct {
	created time.Time
	name    string
}

func (p place) compare(other place) int {
	return cmp.Or(p.created.Compare(other.created), cmp.Compare(p.name, other.name))
}

func placeOf(object client.Object) place {
	return place{created: object.GetCreationTimestamp().Time, name: object.GetName()}
}

// has reports whether a Cluster is within the limit.
func (p *Places) has(object client.Object) bool {
	if p == nil || p.most == 0 {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	before, _ := slices.BinarySearchFunc(p.workspaces[object.GetNamespace()], placeOf(object), place.compare)
	return before < p.most
}

func (p *Places) add(object client.Object) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.workspaces == nil {
		p.workspaces = map[string][]place{}
	}
	all := p.workspaces[object.GetNamespace()]
	if i, known := slices.BinarySearchFunc(all, placeOf(object), place.compare); !known {
		p.workspaces[object.GetNamespace()] = slices.Insert(all, i, placeOf(object))
	}
}

// remove removes a Cluster. If this brings another Cluster within the limit, remove returns that Cluster.
func (p *Places) remove(object client.Object) (next types.NamespacedName, found bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	namespace := object.GetNamespace()
	all := p.workspaces[namespace]
	i, known := slices.BinarySearchFunc(all, placeOf(object), place.compare)
	if !known {
		return next, false
	}
	if all = slices.Delete(all, i, i+1); len(all) == 0 {
		delete(p.workspaces, namespace)
	} else {
		p.workspaces[namespace] = all
	}
	if p.most == 0 || i >= p.most || len(all) < p.most {
		return next, false
	}
	return types.NamespacedName{Namespace: namespace, Name: all[p.most-1].name}, true
}

// Handler updates the places when Clusters change, and enqueues each Cluster that gets a place.
func (p *Places) Handler() handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			p.add(e.Object)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if next, found := p.remove(e.Object); found {
				q.Add(reconcile.Request{NamespacedName: next})
			}
		},
	}
}
