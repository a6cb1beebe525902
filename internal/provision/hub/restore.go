// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/checkpoint"
)

// lookEvery is how often the manager's Lease is read.
const lookEvery = 5 * time.Second

// RestoreWatch stops the process after the hub's etcd has been restored from a backup, because its caches may contain
// state that the hub has lost. For example, a Host might be clean only according to the cache.
type RestoreWatch struct {
	leases    leasesv1.LeasesGetter
	namespace string
	log       logr.Logger
}

// NewRestoreWatch returns a RestoreWatch that reads the manager's Lease in a namespace.
func NewRestoreWatch(leases leasesv1.LeasesGetter, namespace string, log logr.Logger) *RestoreWatch {
	return &RestoreWatch{checkpoint.NewRecorder(leases), namespace, log}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (*RestoreWatch) NeedLeaderElection() bool { return false }

// Start reads the Lease until ctx is done. It returns checkpoint.ErrRestored if the Lease lacks a renewal that Start
// saw earlier. It logs an error if the Lease can no longer be read. A missing Lease is not an error, because a manager
// without leader election has no Lease.
func (r *RestoreWatch) Start(ctx context.Context) error {
	again := time.NewTicker(lookEvery)
	defer again.Stop()
	failing := false
	for {
		_, err := r.leases.Leases(r.namespace).Get(ctx, ManagerLease, metav1.GetOptions{})
		if errors.Is(err, checkpoint.ErrRestored) {
			return err
		}
		was := failing
		if failing = client.IgnoreNotFound(err) != nil && ctx.Err() == nil; failing && !was {
			r.log.Error(err, "cannot read the manager's Lease, so a restore of the hub goes unnoticed: check the provisioner's "+
				"namespace and its Role there", "namespace", r.namespace, "lease", ManagerLease)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
	}
}
