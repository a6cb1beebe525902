// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// hostName is the Host that joins before the upgrade.
const hostName = "machine"

// machine is a Host's machine, which consists of its agent's folders.
type machine struct {
	dir     string
	process *lab.Process
	given   []protocol.HostInstruction
}

func (m *machine) path(name string) string { return filepath.Join(m.dir, name) }

func (m *machine) env() []string {
	return append(os.Environ(), "DROVER_HOST_BIN_DIR="+m.path("bin"), "RANCHER_SYSTEM_AGENT_CONFIG_DIR="+m.path("etc"),
		"TMPDIR="+m.path("tmp"))
}

// joinHost creates a Host and runs its join command, which downloads the agent from the hub.
func (s *skew) joinHost(t *testing.T) {
	t.Helper()
	for _, folder := range []string{"bin", "root", "tmp"} {
		if err := os.MkdirAll(s.machine.path(folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	host := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: hostName}}
	if err := s.hub.Client.Create(t.Context(), host); err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		key := types.NamespacedName{Namespace: workspace, Name: hostName + v1.HostJoinSecretSuffix}
		return s.hub.Client.Get(ctx, key, secret)
	})
	join := exec.CommandContext(within(t, time.Minute), "sh", "-c", string(secret.Data["command"])+" --start=false")
	join.Env = s.machine.env()
	if out, err := join.CombinedOutput(); err != nil {
		t.Fatalf("join: %v\n%s", err, out)
	}
	s.startHostAgent(t)
}

// startHostAgent starts the agent that is installed on the machine.
func (s *skew) startHostAgent(t *testing.T) {
	t.Helper()
	var err error
	s.machine.process, err = lab.Command{
		Name: "host-agent", Path: s.machine.path("bin/drover-host-agent"),
		Args: []string{"run", "--root", s.machine.path("root")},
		Env:  s.machine.env(), LogFile: s.machine.path("agent.log"),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
}

// changeHostAgent replaces the machine's agent.
func (s *skew) changeHostAgent(t *testing.T, to release) {
	t.Helper()
	if err := s.machine.process.Stop(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(to.program("drover-host-agent"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.machine.path("bin/drover-host-agent"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	s.startHostAgent(t)
}

// testHost gives the machine another instruction.
func testHost(t *testing.T, s *skew) {
	m, id := s.machine, fmt.Sprintf("round-%d", s.round)
	m.given = append(m.given, protocol.HostInstruction{ID: id,
		Command: []string{"/bin/sh", "-c", `echo "$DROVER_INSTRUCTION" >>"$0"`, m.path("ran")}})
	raw, err := json.Marshal(protocol.HostInstructions{Instructions: m.given})
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Namespace: workspace, Name: hostName + v1.HostInstructionsSecretSuffix,
		Labels: map[string]string{v1.LabelHost: hostName, v1.LabelSecretKind: v1.SecretKindHostInstructions}},
		Type: v1.SecretTypeHostInstructions, Data: map[string][]byte{v1.HostInstructionsKey: raw}}
	if len(m.given) == 1 {
		err = s.hub.Client.Create(t.Context(), secret)
	} else {
		err = s.hub.Client.Update(t.Context(), secret)
	}
	if err != nil {
		t.Fatal(err)
	}
	host, want := &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: hostName}}, int32(len(m.given))
	agent := s.release(s.now.agent).version
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		if err := s.hub.Client.Get(ctx, client.ObjectKeyFromObject(host), host); err != nil {
			return err
		}
		st := host.Status
		if st.State != v1.HostActive || st.Progress == nil || st.Progress.Done != want || st.AgentVersion != agent {
			log, _ := os.ReadFile(m.path("agent.log"))
			return fmt.Errorf("the Host is %+v, want an agent of version %s and %d instructions done; its agent logged\n%s",
				st, agent, want, log[max(0, len(log)-2000):])
		}
		return nil
	})
	ran, err := os.ReadFile(m.path("ran"))
	if lines := strings.Fields(string(ran)); err != nil || len(lines) != len(m.given) || lines[len(lines)-1] != id {
		t.Errorf("the machine ran %q (%v), want each instruction once", ran, err)
	}
}
