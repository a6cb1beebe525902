// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// auditPolicy is the audit policy of docs/operations/backup.md.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create, update, patch, delete, deletecollection]
  resources:
  - group: ""
    resources: [secrets, namespaces]
  - group: cluster.drover.dev
    resources: [clusters, hosts]
- level: None
`

// TestLong_ARevokedAgentStaysOutOfARestoredHub is the drill of docs/operations/backup.md. The hub's etcd is restored
// from a snapshot in which an agent is not revoked yet. The revocation is repeated from the audit log, which is not
// part of the snapshot.
func TestLong_ARevokedAgentStaysOutOfARestoredHub(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, which the join command takes")
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(t.TempDir(), "audit.log")
	s := startWith(t, func(s *system, t *testing.T) { s.startAuditedHub(t, log) })
	kept, _ := s.ready(t, "kept")
	revoked, agent := s.ready(t, "revoked")
	m := s.machine(t)
	stolen, command := s.host(t, "stolen")
	m.join(command)
	m.start()
	m.await(stolen, "available", because(v1.ReasonHostAvailable))
	snapshot := s.snapshot(t)
	made := "--backup-time=" + time.Now().Format(time.RFC3339)

	for _, name := range []string{revoked.Name + v1.AgentSecretSuffix, stolen.Name + v1.HostAgentSecretSuffix} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: revoked.Namespace, Name: name}}
		if err := s.hub.Client.Delete(t.Context(), secret); err != nil {
			t.Fatal(err)
		}
	}
	m.await(stolen, "revoked", inState(v1.HostWaitingToRegister))
	kill(t, m.process) // as the agent below
	s.await(t, revoked, time.Minute, func(c *v1.Cluster) bool {
		return !meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionConnected)
	})
	kill(t, agent.Process) // a refused agent would wait for minutes before it asks again

	kill(t, s.hub.Manager)
	s.restoreEtcd(t, snapshot)
	if err := s.hub.Client.Get(t.Context(), revoked, &v1.Cluster{}); err != nil {
		t.Fatal(err)
	}
	if out, err := s.plugin(t, "revoked", log); exitCode(err) != 2 || !strings.Contains(out, "--backup-time") { // the backup is of a minute ago, as if a manager had run since
		t.Errorf("without the time of the backup the list ends with %v:\n%s", err, out)
	}
	if out, err := s.plugin(t, "revoked", log, made); exitCode(err) != 1 || !strings.Contains(out, "revoked-agent ") || !strings.Contains(out, "revoked-registration ") ||
		!strings.Contains(out, "stolen-host-identity ") || !strings.Contains(out, "stolen-host-join ") || strings.Contains(out, "kept") {
		t.Errorf("the list ends with %v:\n%s", err, out)
	}
	if out, err := s.plugin(t, "revoked", log, made, "--yes"); err != nil || !strings.Contains(out, "Deleted: 4.") {
		t.Fatalf("it ends with %v:\n%s", err, out)
	}
	if out, err := s.plugin(t, "revoked", log, made); err != nil || !strings.Contains(out, "no revocation") {
		t.Errorf("again it ends with %v:\n%s", err, out)
	}
	if err := s.hub.StartManager(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	s.startAgent(t, agent)
	if err := os.Remove(m.path("agent.log")); err != nil { // it has refusals of before
		t.Fatal(err)
	}
	m.start()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if log := tail(m.path("agent.log")); !strings.Contains(log, v1.ReasonAwaitingAgent) {
			return fmt.Errorf("the host's agent was not refused: %s", log)
		}
		return nil
	})
	m.await(stolen, "still without agent", because(v1.ReasonAwaitingAgent))
	s.await(t, revoked, 2*time.Minute, func(c *v1.Cluster) bool {
		connected := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionConnected)
		return connected != nil && connected.Status != metav1.ConditionTrue && strings.Contains(connected.Message, "an agent connects with a key that is not")
	})
	s.await(t, kept, 2*time.Minute, framework.Ready)
}

// startAuditedHub starts a hub whose API server writes an audit log.
func (s *system) startAuditedHub(t *testing.T, log string) {
	t.Helper()
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	programs := s.programs
	programs.APIServerArgs = []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}
	plane, err := framework.StartPlane(within(t, 2*time.Minute), programs, "hub", s.dir, lab.User{Name: "demo", Token: demoToken})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	if s.hub, err = framework.InstallHub(within(t, 2*time.Minute), plane); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.hub.Manager.Kill() })
}
