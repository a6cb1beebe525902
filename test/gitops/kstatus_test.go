// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package gitops

import (
	"testing"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
)

// TestFluxAndArgoCDReadTheSameHealth compares kstatus, which Flux and kubectl-like tools read, with the health script
// for Argo CD.
func TestFluxAndArgoCDReadTheSameHealth(t *testing.T) {
	t.Parallel()
	same := map[string]status.Status{"Healthy": status.CurrentStatus, "Progressing": status.InProgressStatus, "Degraded": status.FailedStatus}
	// These objects can only be expressed in one of the two. The schema's default gives each object a Ready condition, so
	// every object has a status.
	differ := map[string]status.Status{
		"testdata/cluster_without_status_progressing.yaml":   status.CurrentStatus,
		"testdata/cluster_tunnel_lost_degraded.yaml":         status.InProgressStatus,
		"testdata/cluster_api_server_degraded.yaml":          status.InProgressStatus,
		"testdata/plan_paused_suspended.yaml":                status.InProgressStatus,
		"testdata/plan_awaiting_approval_suspended.yaml":     status.InProgressStatus,
		"testdata/baseline_awaiting_approval_suspended.yaml": status.InProgressStatus,
	}
	for _, tt := range readHealthCases(t) {
		t.Run(tt.InputPath, func(t *testing.T) {
			want, ok := differ[tt.InputPath]
			if !ok {
				want = same[tt.HealthStatus.Status]
			}
			got, err := status.Compute(tt.object)
			if err != nil || got.Status != want {
				t.Errorf("kstatus says %+v (%v), want %s", got, err, want)
			}
		})
	}
}
