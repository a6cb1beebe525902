// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"github.com/drover-dev/drover/internal/checkpoint"
)

// lookEvery is the time between two reads of the manager's Lease.
const lookEvery = 5 * time.Second

// RestoreWatch ends the program once the hub's etcd was restored from a backup. The program's caches may have objects
// that the hub has forgotten, such as a Host that is clean in the cache only.
type RestoreWatch struct {
	leases    leasesv1.LeasesGetter
	namespace string
}

// NewRestoreWatch returns a RestoreWatch that reads the manager's Lease in a namespace.
func NewRestoreWatch(client leasesv1.LeasesGetter, namespace string) *RestoreWatch {
	return &RestoreWatch{checkpoint.NewRecorder(client), namespace}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*RestoreWatch) NeedLeaderElection() bool { return false }

// Start reads the Lease until ctx ends, or until the Lease lacks a renewal that an earlier read has seen. Then it
// returns checkpoint.ErrRestored. Other errors are ignored, and a manager without leader election has no Lease.
func (r *RestoreWatch) Start(ctx context.Context) error {
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	for {
		_, err := r.leases.Leases(r.namespace).Get(ctx, ManagerLease, metav1.GetOptions{})
		if errors.Is(err, checkpoint.ErrRestored) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}
