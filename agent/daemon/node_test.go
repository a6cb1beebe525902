// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/agent/daemon"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// claimed returns the claims in the connect token of the hub's last tunnel, as JSON.
func (w *world) claimed(t *testing.T) string {
	t.Helper()
	claims := ""
	for _, r := range w.hub.Seen() {
		if parts := strings.Split(r.Header.Get("Authorization"), "."); r.Path == protocol.PathConnect && len(parts) == 3 {
			raw, err := base64.RawURLEncoding.DecodeString(parts[1])
			if err != nil {
				t.Fatal(err)
			}
			claims = string(raw)
		}
	}
	return claims
}

func TestNodeAgent(t *testing.T) {
	t.Parallel()
	t.Run("it serves under the agent's identity, and leaves the leader's tasks alone", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.start(t)
		first := w.session(t)
		nextReport(t, reports(t, first))
		if strings.Contains(w.claimed(t), "nodeAgent") {
			t.Errorf("got the claims %s of a replica, want none of a node agent", w.claimed(t))
		}
		w.stop()
		<-w.ended
		w.run(t, daemon.RunNode)
		s := w.sessionWithin(t, 2*time.Minute)
		if !strings.Contains(w.claimed(t), `"nodeAgent":true`) {
			t.Errorf("got the claims %s, want those of a node agent", w.claimed(t))
		}
		report := nextReport(t, reports(t, s))
		if report.Leader || report.Nodes != nil || report.Deployment != nil || !report.Health.Healthy ||
			report.Version != "v1.36.3" {
			t.Errorf("got the report %+v, want health and version", report)
		}
		resp, body := ask(t, s, http.MethodGet, "/v1/k8s/api/v1/nodes/n1", http.Header{"Impersonate-User": {"hub:alice"}}, "")
		if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"name":"n1"`) {
			t.Errorf("forwarded GET: got %s %s, want the node", resp.Status, body)
		}
		for _, of := range [][2]string{
			{http.MethodPut, protocol.SetPath("crtb/a")}, {http.MethodPut, protocol.PathDeployment},
			{http.MethodPost, protocol.PathUninstall},
		} {
			if resp, body := ask(t, s, of[0], of[1], nil, "{}"); resp.StatusCode != http.StatusMisdirectedRequest {
				t.Errorf("%s: got %s %s, want 421", of[1], resp.Status, body)
			}
		}
		if w.api.Get(identity) == nil {
			t.Error("the agent's identity was deleted, want it kept")
		}
	})

	t.Run("it never joins, and creates no identity", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.run(t, daemon.RunNode)
		w.awaitLog(t, "not connected to the hub")
		for _, r := range w.hub.Seen() {
			t.Errorf("got a request for %s at the hub, want none", r.Path)
		}
		if w.api.Get(identity) != nil {
			t.Error("it created an identity, want none")
		}
	})
}

// awaitLog waits until the log contains a text.
func (w *world) awaitLog(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if !strings.Contains(w.log.String(), text) {
			return fmt.Errorf("the log has no %q", text)
		}
		return nil
	})
}
