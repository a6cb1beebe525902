// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/baseline"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/wiring"
)

func (w *workspaces) baselines() wiring.Controller {
	sources := sources{Reader: w.baselineSources, start: map[string]func() error{}}
	triggers := []wiring.Trigger{
		wiring.OnChange(&v1.Baseline{}), w.onAffecting(&v1.Cluster{}, index.ClusterTo[*v1.Baseline]),
		w.onAffecting(&v1.RoleTemplate{}, index.RoleTo[*v1.Baseline]),
		onOutcome(w.deliveries, 50*time.Millisecond, set.Baseline),
	}
	for _, kind := range []string{index.ConfigMapSource, index.SecretSource} {
		trigger, start := wiring.OnDemand(w.changedSources(kind))
		triggers, sources.start[kind] = append(triggers, trigger), start
	}
	return wiring.Controller{
		Name: set.Baseline, Workers: 4, Triggers: triggers, Reconciler: &baseline.Reconciler{
			Client: w.client, Live: w.live, Sources: sources, Recorder: w.recorder("drover-baseline"),
			Deliveries: w.deliveries, Values: w.values, Settled: w.settled(since(w.Started)), Now: time.Now,
		},
	}
}

// changedSources returns a source that enqueues the Baselines that use a changed ConfigMap or Secret.
func (w *workspaces) changedSources(kind string) source.Source {
	affected := index.Enqueue(w.client, index.SourceToBaselines(kind))
	return source.Kind(
		w.baselineSources, client.Object(index.SourceMetadata(kind)), affected, predicate.ResourceVersionChangedPredicate{})
}

// sources reads the metadata of the ConfigMaps and Secrets that Baselines may use from a cache. It starts to watch a
// kind when the kind is first used, so a hub without such Baselines has no watch.
type sources struct {
	client.Reader
	start map[string]func() error
}

// listTime is how long a read waits for the first list of a kind.
const listTime = 10 * time.Second

// Get implements client.Reader.
func (s sources) Get(
	ctx context.Context, name client.ObjectKey, object client.Object, options ...client.GetOption,
) error {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if err := s.start[kind](); err != nil {
		return fmt.Errorf("watch the %ss of Baselines: %w", kind, err)
	}
	ctx, cancel := context.WithTimeout(ctx, listTime)
	defer cancel()
	return s.Reader.Get(ctx, name, object, options...)
}

// labelledSources returns a cache of the metadata of the ConfigMaps and Secrets that Baselines may use.
func labelledSources(mgr ctrl.Manager) (cache.Cache, error) {
	labelled := cache.ByObject{
		Label: labels.SelectorFromSet(labels.Set{v1.LabelBaselinesUse: "true"}), Transform: index.SourceOutline,
	}
	return cache.New(mgr.GetConfig(), cache.Options{
		Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), HTTPClient: mgr.GetHTTPClient(),
		ByObject: map[client.Object]cache.ByObject{
			index.SourceMetadata(index.ConfigMapSource): labelled, index.SourceMetadata(index.SecretSource): labelled,
		},
	})
}
