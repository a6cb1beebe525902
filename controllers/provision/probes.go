// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package provision

import (
	"net/http"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/provision/clusterimport"
	"github.com/drover-dev/drover/internal/provision/config"
	"github.com/drover-dev/drover/internal/wiring"
)

// addProbes adds the checks for /healthz and /readyz to a manager. A replica is ready once its caches have been filled
// and it serves the hooks for Cluster API, even if it is not the leader.
func addProbes(mgr ctrl.Manager, cfg config.Config) error {
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return err
	}
	kinds := cached(cfg)
	filled := func(*http.Request) error { return wiring.CachesFilled(mgr.GetCache(), kinds...) }
	if err := mgr.AddReadyzCheck("caches", filled); err != nil {
		return err
	}
	if !cfg.ClusterAPI.InPlaceUpdates {
		return nil
	}
	return mgr.AddReadyzCheck("hooks", mgr.GetWebhookServer().StartedChecker())
}

// cached returns the kinds that the controllers read from the cache.
func cached(cfg config.Config) []client.Object {
	kinds := []client.Object{
		&v1.Cluster{}, &v1.Host{},
		&provisionv1.ClusterInstallation{}, &provisionv1.EtcdSnapshot{}, &provisionv1.EtcdRestore{},
	}
	if cfg.ClusterAPI.Enabled {
		kinds = append(kinds, &infrav1.DroverCluster{}, &infrav1.DroverMachine{}, &corev1.ConfigMap{})
	}
	if cfg.ClusterAPI.Import {
		kinds = append(kinds, clusterimport.Outline())
	}
	return kinds
}
