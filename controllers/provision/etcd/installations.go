// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Installations is the Backend for ClusterInstallations. The controller for ClusterInstallations performs the steps
// itself, because all its other work must stop during a restore. That controller reads the same snapshots and restores,
// so this backend only reports their progress.
type Installations struct {
	// Progress reads an installation and makes a decision without carrying it out. It returns the progress of all
	// snapshots and restores that refer to the installation.
	Progress func(ctx context.Context, name types.NamespacedName) (progress.All, error)
}

// Kind implements Backend.
func (Installations) Kind() provisionv1.EtcdClusterKind { return provisionv1.EtcdOfInstallation }

// Wakes implements Backend.
func (Installations) Wakes(client.Object) bool { return false }

// Read implements Backend.
func (b Installations) Read(_ context.Context, name types.NamespacedName) (Cluster, error) {
	return installed{b, name}, nil
}

// installed implements Cluster for an installation.
type installed struct {
	Installations
	name types.NamespacedName
}

// Advance implements Cluster.
func (c installed) Advance(ctx context.Context, w *Wanted) (progress.All, error) {
	if len(w.Snapshots) == 0 && len(w.Restores) == 0 {
		return progress.All{}, nil
	}
	return c.Progress(ctx, c.name)
}

// Settle implements Cluster.
func (installed) Settle(context.Context, *Wanted) (time.Duration, error) { return 0, nil }
