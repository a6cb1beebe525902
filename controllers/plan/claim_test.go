// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/rollout"
)

// A user who can run plans on one Cluster can recreate it with any claim. The plan's status must still be valid for the
// other members.
func FuzzClaim(f *testing.F) {
	for _, text := range []string{
		`{"revision":"r","since":"2026-11-21T00:00:00Z","complete":"2026-11-21T00:00:00Z"}`, `{}`, `x`, `{"revision":"r","since":"9999-12-31T23:59:59-23:59"}`,
		`{"revision":"r","since":"2026-11-21T00:00:00Z","complete":"9999-12-31T23:59:59Z"}`, `{"revision":"r","since":"2026-11-21T00:00:00Z","failed":"0001-01-01T00:00:00Z"}`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		created := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(created), Annotations: map[string]string{v1.PlanLabel("p"): text}}}
		claim := readClaim(cluster, "p")
		if claim == nil {
			return
		}
		plan := rollout.FleetPlan{Name: "p", Revision: "r", Hash: "h"}
		plan.Pace.Waves = []rollout.Wave{{Name: "all", Soak: 100 * 365 * 24 * time.Hour}}
		clusters := []rollout.Cluster{{Name: "a", Selected: true, Claim: claim}}
		fleet, err := rollout.NewFleet(clusters, plan, created.AddDate(1, 0, 0))
		if err != nil {
			t.Fatal(err)
		}
		status := v1.PlanStatus{Waves: fleet.Waves(), Members: []v1.PlanMember{describe(&clusters[0], nil, "r", delivery.Outcome{})}}
		written, err := json.Marshal(status)
		if err != nil || json.Unmarshal(written, &v1.PlanStatus{}) != nil || status.Members[0].Since.IsZero() {
			t.Errorf("no status can have %s: %v", written, err)
		}
	})
}
