// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/set"
)

// Values delivers the name and labels of a Cluster to its member if any of the member's Baselines has objects that
// refer to them. The reconciler of Baselines calls Use before it delivers objects.
type Values struct {
	// Clusters reads Clusters from a cache.
	Clusters   client.Reader
	Deliveries delivery.Deliverer

	mu sync.Mutex // guards the field below, and keeps the order of calls to Deliveries
	// uses contains the members that need values, by Baseline. A member's entry is false if the member keeps its current
	// values, because it keeps objects that are not known.
	uses map[types.NamespacedName]map[string]bool
}

// Use sets the members in which the objects of a Baseline refer to values. The keys of the map are the names of
// Clusters. An entry is false if the objects in the member are not known.
func (v *Values) Use(ctx context.Context, name types.NamespacedName, members map[string]bool) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	before := v.uses[name]
	if maps.Equal(before, members) {
		return nil
	}
	if v.uses == nil {
		v.uses = map[types.NamespacedName]map[string]bool{}
	}
	if v.uses[name] = members; len(members) == 0 {
		delete(v.uses, name)
	}
	changed := map[string]struct{}{}
	for member, needs := range members {
		if was, known := before[member]; !known || was != needs {
			changed[member] = struct{}{}
		}
	}
	for member := range before {
		if _, still := members[member]; !still {
			changed[member] = struct{}{}
		}
	}
	var failed []error
	for member := range changed {
		failed = append(failed, v.deliver(ctx, types.NamespacedName{Namespace: name.Namespace, Name: member}))
	}
	return errors.Join(failed...)
}

// Reconcile delivers the values of one Cluster.
func (v *Values) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return ctrl.Result{}, v.deliver(ctx, req.NamespacedName)
}

func (v *Values) deliver(ctx context.Context, member types.NamespacedName) error {
	key := delivery.Key{Kind: set.Values, Namespace: member.Namespace, Name: member.Name}
	used, needed := false, false
	for name, members := range v.uses {
		if needs, uses := members[member.Name]; uses && name.Namespace == member.Namespace {
			used, needed = true, needed || needs
		}
	}
	if !used {
		v.Deliveries.Replace(key, nil)
		return nil
	}
	cluster := &v1.Cluster{}
	err := v.Clusters.Get(ctx, member, cluster, client.UnsafeDisableDeepCopy)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read cluster %s: %w", member, err)
	case err != nil || !cluster.DeletionTimestamp.IsZero():
		v.Deliveries.Replace(key, nil)
		return nil
	}
	given := delivery.Unchanged(set.Values)
	if needed {
		content := set.Content{Values: baseline.Values(cluster.Name, cluster.Labels)}
		if given, err = set.New(set.Values, nil, content); err != nil {
			return err
		}
	}
	v.Deliveries.Replace(key, map[types.NamespacedName]*set.Set{member: given})
	return nil
}
