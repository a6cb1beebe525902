// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// An agent chooses its report. A report whose characters become six bytes each must not end the link that carries all
// members.
func TestReportThatGrowsInJSONEndsNoLink(t *testing.T) {
	t.Parallel()
	all := hubs(t, 2)
	hostile := types.NamespacedName{Namespace: "team-x", Name: "hostile"}
	all[1].reports(t, hostile, growing(t))
	until(t, "the other replica has the report that grows",
		func() bool { return all[0].fleet.State(hostile).Report != nil })
	all[1].reports(t, member, []byte(`{}`))
	all[0].knows(t)
}

// growing returns a line that an agent may send. With the default settings of encoding/json, it would become larger
// than a link accepts.
func growing(t *testing.T) []byte {
	t.Helper()
	long := strings.Repeat("<", 512)
	many := func(n int) (all []string) {
		for range n {
			all = append(all, long)
		}
		return all
	}
	report := &protocol.Report{
		Remnants: protocol.Remnants{Unclaimed: many(16)},
		Host: &protocol.HostReport{
			Machine: protocol.HostMachine{
				HostProperties: v1.HostProperties{Addresses: many(16), Labels: many(32), Taints: many(32)},
			},
		},
	}
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(protocol.Line{Report: report}); err != nil || line.Len() > protocol.MaxLine {
		t.Fatalf("a line of %d bytes, %v, want at most %d", line.Len(), err, protocol.MaxLine)
	}
	return line.Bytes()
}

// reports connects an agent of a member that reports this line.
func (h *replica) reports(t *testing.T, name types.NamespacedName, line []byte) {
	t.Helper()
	opened := testkit.OpenTunnel(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != protocol.PathReport {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(append(bytes.TrimSpace(line), '\n'))
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	h.fleet.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: name.Namespace, Name: name.Name, UID: "uid"},
		Key: "key-" + name.Name, Instance: "one"}, opened.Session)
}
