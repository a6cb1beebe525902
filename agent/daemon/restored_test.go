// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
	"github.com/drover-dev/drover/test/testkit"
)

// TestAgentStartsOverWhenItsClusterIsRestored sets the Lease and the agent's Secret back to an earlier version.
func TestAgentStartsOverWhenItsClusterIsRestored(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var restored atomic.Bool
	w.api.Hook = func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/leases/"+protocol.LeaderLease) || !restored.Load() {
			return false
		}
		rw.Header().Set("Content-Type", "application/json")
		if r.Method != http.MethodGet {
			rw.WriteHeader(http.StatusConflict)
			_ = json.NewEncoder(rw).Encode(metav1.Status{Status: metav1.StatusFailure, Code: http.StatusConflict,
				Reason: metav1.StatusReasonConflict})
			return true
		}
		restored.Store(false) // from now on, the agent finds this state when it starts over
		_ = json.NewEncoder(rw).Encode(coordinationv1.Lease{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1",
			Kind: "Lease"}, ObjectMeta: metav1.ObjectMeta{Name: protocol.LeaderLease, ResourceVersion: "1"}})
		return true
	}
	w.start(t)
	s := w.session(t)
	stream := reports(t, s)
	if first := nextReport(t, stream); !first.Restored.IsZero() {
		t.Errorf("a cluster that was not restored: got the time %s in the report, want none", first.Restored)
	}
	backup, _ := w.api.Get(identity)["data"].(map[string]any)
	backup = maps.Clone(backup)
	next := protocol.Settings{Servers: []string{w.hub.URL},
		CABundle: w.ca.Bundle() + agenttest.NewAuthority(t, "next").Bundle()}
	raw, err := json.Marshal(next)
	if err != nil {
		t.Fatal(err)
	}
	if resp, body := ask(t, s, http.MethodPut, protocol.PathSettings, nil,
		string(raw)); resp.StatusCode != http.StatusNoContent {
		t.Fatalf("PUT of the settings: %s %s, want 204", resp.Status, body)
	}
	asked := time.Now()
	w.api.Put(t, identity,
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: protocol.IdentitySecret, Namespace: "drover-agent"},
			Data: decoded(t, backup)})
	restored.Store(true)

	s = w.sessionWithin(t, time.Minute)
	stream = reports(t, s)
	report := nextReport(t, stream)
	if report.Restored.Before(asked) || report.SettingsDigest != next.Digest() {
		t.Errorf("got a report that the cluster was restored at %s with the settings %s, want a time after %s and %s",
			report.Restored, report.SettingsDigest, asked, next.Digest())
	}
	if now, _ := w.api.Get(identity)["data"].(map[string]any); now["settings"] == backup["settings"] {
		t.Error("the identity Secret has the settings of the backup, want the settings from before the restore")
	}
	for !report.Leader {
		report = nextReport(t, stream)
	}
	// The agent becomes ready a moment after the hub has read its report.
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if got := w.probed(t, "/readyz"); got != http.StatusOK {
			return fmt.Errorf("/readyz: got %d, want 200", got)
		}
		return nil
	})
}

func decoded(t *testing.T, data map[string]any) map[string][]byte {
	t.Helper()
	raw, err := json.Marshal(map[string]any{"data": data})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	if err := json.Unmarshal(raw, secret); err != nil {
		t.Fatal(err)
	}
	return secret.Data
}
