// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
)

// LookEvery is how often the hub checks whether its API server serves the kind. The hub stops checking once the kind is
// served.
const LookEvery = time.Minute

// Kind watches ClusterProfiles once the hub's API server serves the ClusterProfile kind, which can be installed at any
// time. Kind is a source: it enqueues the owner of a profile when the profile changes, and all Clusters when the watch
// starts. If the ClusterProfile kind is removed, Kind waits until it is installed again.
type Kind struct {
	Mapper meta.RESTMapper
	Scheme *runtime.Scheme
	Cache  cache.Cache
	// Clusters lists all Clusters.
	Clusters func(context.Context) ([]types.NamespacedName, error)
	// Every is the interval between checks. It is LookEvery, except in tests.
	Every time.Duration

	served atomic.Bool
}

// Served reports whether the API server served the kind at the last check and the kind is being watched.
func (k *Kind) Served() bool { return k.served.Load() }

// Start implements source.Source. It does not wait until the kind is served.
func (k *Kind) Start(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	go func() {
		err := wait.PollUntilContextCancel(ctx, k.Every, true, func(ctx context.Context) (bool, error) {
			err := k.watch(ctx, queue)
			if err != nil && !meta.IsNoMatchError(err) {
				ctrl.LoggerFrom(ctx).Info("ClusterProfiles not watched yet", "error", err.Error())
			}
			return err == nil, nil
		})
		if err != nil && ctx.Err() == nil {
			ctrl.LoggerFrom(ctx).Error(err, "ClusterProfiles not watched")
		}
	}()
	return nil
}

// watch starts a watch if the API server serves the kind.
func (k *Kind) watch(ctx context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	if _, err := k.Mapper.RESTMapping(clusterprofile.GroupVersion.WithKind("ClusterProfile").GroupKind(), clusterprofile.GroupVersion.Version); err != nil {
		return err
	}
	profiles := source.Kind(k.Cache, &clusterprofile.ClusterProfile{}, handler.TypedEnqueueRequestForOwner[*clusterprofile.ClusterProfile](k.Scheme, k.Mapper, &v1.Cluster{}))
	if err := profiles.Start(ctx, queue); err != nil {
		return err
	}
	if err := profiles.WaitForSync(ctx); err != nil {
		return fmt.Errorf("read all ClusterProfiles: %w", err)
	}
	names, err := k.Clusters(ctx)
	if err != nil {
		return fmt.Errorf("list Clusters: %w", err)
	}
	k.served.Store(true)
	for _, name := range names {
		queue.Add(reconcile.Request{NamespacedName: name})
	}
	return nil
}
