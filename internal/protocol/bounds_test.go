// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/drover-dev/drover/internal/protocol"
)

func TestReportIsTrimmedToItsLimits(t *testing.T) {
	r := protocol.Report{Version: strings.Repeat("v", 1000), Health: protocol.Health{Message: strings.Repeat("é", 1000)},
		Nodes: &protocol.Nodes{Total: -1, Capacity: map[string]string{"cpu": "12", "memory": "1.5Gi"}}}
	for i := range 100 {
		r.Nodes.Capacity[fmt.Sprintf("a.example.com/x%03d", i)] = "1"
	}
	r.Bound()
	if len(r.Version) > 128 || len(r.Health.Message) > 512 || !utf8.ValidString(r.Health.Message) || r.Nodes.Total != 0 ||
		len(r.Nodes.Capacity) != 64 ||
		r.Nodes.Capacity["cpu"] != "12" || r.Nodes.Capacity["memory"] != "1.5Gi" {
		t.Errorf("got %+v, want each field within its limit, and cpu and memory kept", r)
	}
}

func TestQuantityThatIsSlowToParseIsDropped(t *testing.T) {
	for _, amount := range []string{"1e-2147483648", "1e2147483647", "1E9", "-1", "+1", "", "1 ", "0x1",
		strings.Repeat("9", 19),
		"1.0000000001", "1Kii"} {
		r := protocol.Report{Nodes: &protocol.Nodes{Requested: map[string]string{"cpu": amount}}}
		if r.Bound(); len(r.Nodes.Requested) != 0 {
			t.Errorf("%q was kept, want it dropped", amount)
		}
	}
	for _, amount := range []string{"0", "250m", "384Gi", "96", "1.5", "12k", "999999999999999999"} {
		r := protocol.Report{Nodes: &protocol.Nodes{Requested: map[string]string{"cpu": amount}}}
		if r.Bound(); len(r.Nodes.Requested) != 1 {
			t.Errorf("%q was dropped, want it kept", amount)
		}
	}
}

// An agent publishes one report after another with the same nodes and Deployment, and trims the later report while the
// earlier one is being encoded.
func TestBoundDoesNotChangeOtherReports(t *testing.T) {
	nodes := protocol.Nodes{Total: -1, Capacity: map[string]string{"cpu": "1e9"}}
	deployment := protocol.Deployment{Digest: strings.Repeat("x", 1000)}
	former := protocol.Report{Nodes: &nodes, Deployment: &deployment}
	later := former
	later.Bound()
	if later.Nodes.Total != 0 || len(later.Nodes.Capacity) != 0 || len(later.Deployment.Digest) != 128 {
		t.Errorf("the later report has %+v and a digest of %d bytes, want both trimmed",
			later.Nodes, len(later.Deployment.Digest))
	}
	if former.Nodes.Total != -1 || len(former.Nodes.Capacity) != 1 || len(former.Deployment.Digest) != 1000 {
		t.Errorf("the earlier report has %+v and a digest of %d bytes, want both unchanged",
			former.Nodes, len(former.Deployment.Digest))
	}
}
