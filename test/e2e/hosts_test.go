// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// hostAgent builds drover-host-agent once, in the folder of the manager, which serves it.
var hostAgent = sync.OnceValue(func() error {
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(filepath.Dir(programs.Manager), "drover-host-agent"), "./cmd/drover-host-agent")
	build.Dir = programs.Root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build drover-host-agent: %w\n%s", err, out)
	}
	return nil
})

// machine is a set of test folders that a host's agent uses as its machine.
type machine struct {
	t       *testing.T
	s       *system
	dir     string
	process *lab.Process
}

func (s *system) machine(t *testing.T) *machine {
	t.Helper()
	m := &machine{t: t, s: s, dir: t.TempDir()}
	for _, folder := range []string{"bin", "root", "tmp"} {
		if err := os.Mkdir(filepath.Join(m.dir, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m *machine) path(of ...string) string {
	return filepath.Join(append([]string{m.dir}, of...)...)
}

func (m *machine) env() []string {
	return append(os.Environ(), "DROVER_HOST_BIN_DIR="+m.path("bin"), "RANCHER_SYSTEM_AGENT_CONFIG_DIR="+m.path("agent", "etc"))
}

// join runs the join command as a user does, but without systemd.
func (m *machine) join(command string) {
	m.t.Helper()
	join := exec.CommandContext(within(m.t, time.Minute), "sh", "-c", command+" --role worker --label zone=a --taint dedicated=x:NoSchedule --start=false")
	join.Env = append(m.env(), "TMPDIR="+m.path("tmp"))
	if out, err := join.CombinedOutput(); err != nil {
		m.t.Fatalf("join: %v\n%s", err, out)
	}
	if left, err := os.ReadDir(m.path("tmp")); err != nil || len(left) > 0 {
		m.t.Errorf("the command leaves %v, %v", left, err)
	}
}

func (m *machine) start() {
	m.t.Helper()
	process, err := lab.Command{
		Name: "host-agent", Path: m.path("bin", "drover-host-agent"), Args: []string{"run", "--root", m.path("root")}, Env: m.env(), LogFile: m.path("agent.log"),
	}.Start()
	if err != nil {
		m.t.Fatal(err)
	}
	m.process = process
	m.t.Cleanup(func() { _ = process.Kill() })
}

// await waits until a Host meets the given conditions, and returns it.
func (m *machine) await(name types.NamespacedName, what string, wanted func(*v1.Host) bool) *v1.Host {
	m.t.Helper()
	host := &v1.Host{}
	ctx := within(m.t, time.Minute)
	for {
		err := m.s.hub.Client.Get(ctx, name, host)
		if err == nil && wanted(host) {
			return host
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			status, _ := json.MarshalIndent(host.Status, "", " ")
			m.t.Fatalf("the host is not %s (%v): %s\nagent log:\n%s\nmanager log:\n%s", what, err, status, tail(m.path("agent.log")), tail(m.s.hub.Manager.LogFile()))
		}
	}
}

func inState(state v1.HostState) func(*v1.Host) bool {
	return func(h *v1.Host) bool { return h.Status.State == state }
}

func because(reason string) func(*v1.Host) bool {
	return func(h *v1.Host) bool {
		ready := meta.FindStatusCondition(h.Status.Conditions, v1.ConditionReady)
		return ready != nil && ready.Reason == reason
	}
}

// instruct writes the instructions of a Host.
func (s *system) instruct(t *testing.T, host types.NamespacedName, given protocol.HostInstructions) {
	t.Helper()
	raw, err := json.Marshal(given)
	if err != nil {
		t.Fatal(err)
	}
	secret := instructionsSecret(host, raw)
	if err := s.hub.Client.Create(t.Context(), secret); apierrors.IsAlreadyExists(err) {
		testkit.Update(t, s.hub.Client, instructionsSecret(host, nil), func(s *corev1.Secret) { s.Data[v1.HostInstructionsKey] = raw })
	} else if err != nil {
		t.Fatal(err)
	}
}

func instructionsSecret(host types.NamespacedName, raw []byte) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: host.Namespace, Name: host.Name + v1.HostInstructionsSecretSuffix,
			Labels: map[string]string{v1.LabelHost: host.Name, v1.LabelSecretKind: v1.SecretKindHostInstructions},
		},
		Type: v1.SecretTypeHostInstructions, Data: map[string][]byte{v1.HostInstructionsKey: raw},
	}
}

func (s *system) host(t *testing.T, name string) (host types.NamespacedName, command string) {
	t.Helper()
	host = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}
	create(t, s.hub.Plane, &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name}})
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		secret := &corev1.Secret{}
		err := s.hub.Client.Get(ctx, types.NamespacedName{Namespace: host.Namespace, Name: host.Name + v1.HostJoinSecretSuffix}, secret)
		command = string(secret.Data["command"])
		return err
	})
	return host, command
}

func ran(t *testing.T, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(raw)), " ")
}

// TestPlansReachHostsAtAllReplicas runs two replicas of the hub, one of which leads. Tunnels of hosts end at both
// replicas.
func TestPlansReachHostsAtAllReplicas(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, which the join command takes")
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	s := build(t)
	s.startReplicas(t)
	var all []*machine
	var names []types.NamespacedName
	for i := range 4 { // the balancer takes turns
		m := s.machine(t)
		host, command := s.host(t, fmt.Sprint("m", i))
		m.join(command)
		m.start()
		m.await(host, "available", because(v1.ReasonHostAvailable))
		all, names = append(all, m), append(names, host)
	}
	appends := func(m *machine, id string) protocol.HostInstruction {
		return protocol.HostInstruction{ID: id, Command: []string{"/bin/sh", "-c", `echo "$DROVER_INSTRUCTION" >>"$0"`, m.path("ran")}}
	}
	for i, m := range all {
		s.instruct(t, names[i], protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends(m, "first")}})
	}
	for i, m := range all {
		m.await(names[i], "active", inState(v1.HostActive))
	}
	kill(t, s.hub.Replicas[0].Process) // the leader or another: then the other one has all
	for i, m := range all {
		s.instruct(t, names[i], protocol.HostInstructions{Instructions: []protocol.HostInstruction{appends(m, "first"), appends(m, "second")}})
	}
	for i, m := range all {
		m.await(names[i], "done with the second instruction", func(h *v1.Host) bool {
			return h.Status.State == v1.HostActive && h.Status.Progress != nil && h.Status.Progress.Done == 2
		})
		if got := ran(t, m.path("ran")); got != "first second" {
			t.Errorf("%s ran %q, want each instruction once", names[i].Name, got)
		}
	}
}

// TestAMachineJoinsCarriesOutItsPlanAndIsGivenBack follows a Host from joining to release. In between, the hub's
// manager and the host's agent are killed.
func TestAMachineJoinsCarriesOutItsPlanAndIsGivenBack(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed, which the join command takes")
	}
	if err := hostAgent(); err != nil {
		t.Fatal(err)
	}
	s := build(t)
	s.startHub(t)
	m := s.machine(t)
	host, command := s.host(t, "m1")
	m.await(host, "waiting to register", inState(v1.HostWaitingToRegister))

	m.join(command)
	m.start()
	joined := m.await(host, "available", because(v1.ReasonHostAvailable))
	if is := joined.Status.Machine; is == nil || is.CPUs == 0 || is.Kernel == "" || strings.Join(is.Roles, "") != "worker" || strings.Join(is.Labels, "") != "zone=a" ||
		strings.Join(is.Taints, "") != "dedicated=x:NoSchedule" || !meta.IsStatusConditionTrue(joined.Status.Conditions, v1.ConditionReady) {
		t.Errorf("it reports %+v, %+v, want facts, what the command gave, and Ready", is, joined.Status.Conditions)
	}
	t.Run("the token joins one machine", func(t *testing.T) {
		other := s.machine(t)
		other.join(command)
		other.start()
		testkit.Eventually(t, time.Minute, func(context.Context) error {
			if log := tail(other.path("agent.log")); !strings.Contains(log, v1.ReasonTokenUsed) {
				return errors.New("the agent of the other machine was not refused:\n" + log)
			}
			return nil
		})
	})

	work, release := m.path("ran"), m.path("release")
	probed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := probed.Addr().String()
	if err := errors.Join(probed.Close(), exec.Command("mkfifo", release).Run()); err != nil {
		t.Fatal(err)
	}
	appends := func(id string) protocol.HostInstruction {
		return protocol.HostInstruction{ID: id, Command: []string{"/bin/sh", "-c", `echo "$DROVER_INSTRUCTION" >>"$0"`, work}}
	}
	plan := protocol.HostInstructions{
		Files: []protocol.HostFile{{Path: "/etc/thing/config.yaml", Content: []byte("token: 0123456789abcdef\n")}},
		Instructions: []protocol.HostInstruction{
			appends("first"), {ID: "slow", Command: []string{"/bin/sh", "-c", `echo slow >>"$0"; read x <"$1"`, work, release}}, appends("last"),
		},
		Probes: []protocol.HostProbe{{Name: "thing", URL: "http://" + address, PeriodSeconds: 1}},
		Clean:  []protocol.HostInstruction{appends("uninstall")},
	}
	s.instruct(t, host, plan)
	m.await(host, "at the slow instruction", func(h *v1.Host) bool {
		return h.Status.State == v1.HostInstalling && h.Status.Progress != nil && h.Status.Progress.Instruction == "slow" && ran(t, work) == "first slow"
	})
	t.Run("agent and hub are killed in the middle, and the instruction goes on", func(t *testing.T) {
		kill(t, m.process)
		m.await(host, "lost", because(v1.ReasonTunnelLost))
		m.start()
		kill(t, s.hub.Manager)
		s.restartManager(t)
		if err := os.WriteFile(release, []byte("go\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		m.await(host, "waiting for its probe", inState(v1.HostWaitingForKubernetes))
		if got := ran(t, work); got != "first slow last" {
			t.Errorf("ran %q, want each instruction once", got)
		}
	})
	server := &http.Server{Addr: address, Handler: http.NotFoundHandler(), ReadHeaderTimeout: time.Minute}
	server.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	go func() { _ = server.ListenAndServe() }()
	t.Cleanup(func() { _ = server.Close() })
	m.await(host, "active", inState(v1.HostActive))

	t.Run("an instruction that fails shows its last lines without secrets", func(t *testing.T) {
		plan.Instructions = append(plan.Instructions, protocol.HostInstruction{ID: "bad", Command: []string{"/bin/sh", "-c", `echo "no room for $KEY"; exit 7`}, Env: map[string]string{"KEY": "hush-hush"}})
		s.instruct(t, host, plan)
		failed := m.await(host, "failed", because(v1.ReasonInstructionFailed))
		raw, _ := json.Marshal(failed.Status)
		if failed.Status.Progress.Output != "no room for <secret>" || strings.Contains(string(raw), "hush") || !meta.IsStatusConditionTrue(failed.Status.Conditions, v1.ConditionStalled) {
			t.Errorf("the status is %s", raw)
		}
	})
	t.Run("a Secret that holds no instructions is refused by name", func(t *testing.T) {
		testkit.Update(t, s.hub.Client, instructionsSecret(host, nil), func(s *corev1.Secret) {
			s.Data[v1.HostInstructionsKey] = []byte(`{"instructions":[{"id":"x","command":["hush-hush"],"shell":1}]}`)
		})
		invalid := m.await(host, "invalid", because(v1.ReasonInstructionsInvalid))
		if raw, _ := json.Marshal(invalid.Status); strings.Contains(string(raw), "hush") {
			t.Errorf("the status quotes the instructions: %s", raw)
		}
	})

	if err := s.hub.Client.Delete(t.Context(), &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name}}); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.AwaitGone(within(t, time.Minute), &v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: host.Namespace, Name: host.Name}}); err != nil {
		t.Fatalf("%v\nagent log:\n%s", err, tail(m.path("agent.log")))
	}
	select {
	case <-m.process.Exited():
	case <-within(t, time.Minute).Done():
		t.Error("the agent still runs")
	}
	for _, file := range []string{m.path("root", "etc", "thing", "config.yaml"), m.path("agent", "etc", "config.json")} {
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is there after the host was given back: %v", file, err)
		}
	}
	if got := ran(t, work); got != "first slow last uninstall" {
		t.Errorf("ran %q, want the host to be uninstalled once", got)
	}
}
