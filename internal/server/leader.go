// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/config"
)

// Leader runs controllers, on the replica that holds the Lease. It is a manager of its own because a manager gives its Lease up last:
// within the replica's manager, no replica would lead while a replica waits for shells to end. So it ends at once and the others go on.
type Leader struct {
	// Manager is what controllers are added to. It has the cache and the client of the replica's manager, and no others.
	Manager ctrl.Manager
}

// NewLeader makes a Leader. Add it to mgr, the replica's manager.
func NewLeader(mgr ctrl.Manager, cfg config.Config) (*Leader, error) {
	leader, err := within(mgr, cfg.LeaderOptions())
	if err != nil {
		return nil, fmt.Errorf("make manager of the leader: %w", err)
	}
	return &Leader{Manager: leader}, nil
}

// NewSteady makes the manager of what goes on until a server has ended its last tunnel: mgr, the replica's, ends its controllers as soon as the
// replica begins to stop, which may take hours. The server starts it.
func (s *Server) NewSteady(mgr ctrl.Manager, cfg config.Config) (ctrl.Manager, error) {
	options := cfg.LeaderOptions()
	options.LeaderElection = false
	steady, err := within(mgr, options)
	if err != nil {
		return nil, fmt.Errorf("make manager of what outlasts a stop: %w", err)
	}
	s.steady = steady.Start
	return steady, nil
}

// within makes a manager that has the cache and the client of another.
func within(mgr ctrl.Manager, options ctrl.Options) (ctrl.Manager, error) {
	options.Scheme, options.Logger = mgr.GetScheme(), orderly(mgr.GetLogger())
	options.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return sharedCache{mgr.GetCache()}, nil }
	options.NewClient = func(*rest.Config, client.Options) (client.Client, error) { return mgr.GetClient(), nil }
	options.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mgr.GetRESTMapper(), nil }
	return ctrl.NewManager(mgr.GetConfig(), options)
}

// NeedLeaderElection is false: it elects.
func (l *Leader) NeedLeaderElection() bool { return false }

// Start runs the controllers while this replica leads, until ctx ends, and gives up the Lease then. A lost Lease is an error.
func (l *Leader) Start(ctx context.Context) error {
	if err := l.Manager.Start(ctx); err != nil {
		return fmt.Errorf("lead: %w", err)
	}
	return nil
}

func orderly(logger logr.Logger) logr.Logger {
	if logger.GetSink() == nil {
		return logger
	}
	return logr.New(expected{logger.GetSink()})
}

// expected drops what controller-runtime calls an error at each stop of a leader in good order: that it leads no longer. A Lease that is lost otherwise is
// what Start returns.
type expected struct{ logr.LogSink }

// Error implements logr.LogSink.
func (e expected) Error(err error, message string, values ...any) {
	if err != nil && err.Error() == "leader election lost" && message == "error received after stop sequence was engaged" {
		return
	}
	e.LogSink.Error(err, message, values...)
}

// WithValues implements logr.LogSink.
func (e expected) WithValues(values ...any) logr.LogSink {
	return expected{e.LogSink.WithValues(values...)}
}

// WithName implements logr.LogSink.
func (e expected) WithName(name string) logr.LogSink { return expected{e.LogSink.WithName(name)} }

// sharedCache is a cache that another manager starts and stops.
type sharedCache struct{ cache.Cache }

// Start waits for ctx to end.
func (sharedCache) Start(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
