// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// HeldUntil returns the expiry time of a Lease that was renewed at the given time. It returns the zero time if no
// manager holds the Lease, for example because the last leader released the Lease when it stopped.
func HeldUntil(lease *coordinationv1.Lease, renewed time.Time) time.Time {
	holder, duration := lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds
	if holder == nil || *holder == "" || duration == nil {
		return time.Time{}
	}
	return renewed.Add(time.Duration(*duration) * time.Second)
}

// sighting records a version of the Lease and the time when this version expires. The time is measured with this
// replica's clock, because the leader's clock may differ.
type sighting struct {
	version string
	until   time.Time
}

// sight records a Lease that was read or written. The caller may modify the Lease afterward.
func (r *Recorder) sight(lease *coordinationv1.Lease) {
	if last := r.last.Load(); last == nil || last.version != lease.ResourceVersion {
		r.last.Store(&sighting{lease.ResourceVersion, HeldUntil(lease, time.Now())})
	}
}

// Led reports whether this replica knows of a leader among the replicas. Without leader election, this replica is the
// leader.
func (r *Recorder) Led() bool {
	if r == nil {
		return true
	}
	last := r.last.Load()
	return last == nil || time.Now().Before(last.until)
}
