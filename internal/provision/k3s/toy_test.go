// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// toy is a distribution that exists only in this test. Each of its commands is "toy", followed by the method and its
// arguments.
type toy struct{}

func init() { distributions["toy"] = toy{} }

func (toy) does(words ...string) []string { return append([]string{"toy"}, words...) }

func (toy) CheckConfig(string, []byte) (map[string]any, error) {
	return map[string]any{"toy": true}, nil
}
func (toy) CheckSpec(roster.Spec) error { return nil }
func (toy) Files(_ *roster.Input, host *roster.Member, join string) ([]protocol.HostFile, error) {
	return []protocol.HostFile{{Path: "/toy/config", Content: []byte(host.Name + " joins " + join)}}, nil
}
func (toy) Manifest(*roster.Input) string { return "/toy/manifest" }
func (toy) Service(*roster.Member) string { return "toy" }
func (toy) JoinURL(address string) string { return "toy://" + address }
func (toy) Probes(*roster.Input, *roster.Member) []protocol.HostProbe {
	return []protocol.HostProbe{{Name: "toy", URL: "http://127.0.0.1:1/toy"}}
}
func (t toy) Install(*roster.Input, *roster.Member) []string { return t.does("install") }
func (t toy) Check(*roster.Input) []string                   { return t.does("check") }
func (t toy) Start(*roster.Input, *roster.Member) []string   { return t.does("start") }
func (t toy) Stop(*roster.Input) []string                    { return t.does("stop") }
func (t toy) RotateCertificates(*roster.Input, *roster.Member) []string {
	return t.does("rotate-certificates")
}
func (t toy) RotateKeys(*roster.Input) []string                     { return t.does("rotate-keys") }
func (t toy) Snapshot(_ *roster.Input, name string) []string        { return t.does("snapshot", name) }
func (t toy) Find(_ *roster.Input, r *roster.Restoring) []string    { return t.does("find", r.File) }
func (t toy) Restore(_ *roster.Input, r *roster.Restoring) []string { return t.does("restore", r.File) }
func (t toy) Keep(*roster.Input) []string                           { return t.does("keep") }
func (t toy) Resume(*roster.Input) []string                         { return t.does("resume") }
func (t toy) Rejoin(*roster.Input, string) []string                 { return t.does("rejoin") }
func (t toy) RemoveNode(_ *roster.Input, node string) []string      { return t.does("remove-node", node) }
func (t toy) Forget(_ *roster.Input, node string) []string          { return t.does("forget", node) }
func (t toy) KeepNodes(_ *roster.Input, nodes []string) []string {
	return t.does("keep-nodes", strings.Join(nodes, " "))
}
func (t toy) Leave(_ *roster.Input, node string) []string { return t.does("leave", node) }
func (t toy) Clean(*roster.Input, *roster.Member) protocol.HostInstruction {
	return protocol.HostInstruction{Command: t.does("clean")}
}
func (t toy) Machine() distribution.Machine {
	return distribution.Machine{Distribution: "toy", Remove: t.does("remove"), Kubeconfig: "/toy/kubeconfig", Programs: []string{"/toy/bin"}}
}

// TestClusterUsesOnlyItsOwnDistribution creates a cluster with a toy distribution, changes it in all ways and restores
// it. Hosts get only the toy's files and commands.
func TestClusterUsesOnlyItsOwnDistribution(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1, pool("server", -1, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker))
	w.spec.Distribution, w.spec.Version = "toy", "v1"
	ran := map[string]bool{}
	settle := func() {
		t.Helper()
		for range 60 {
			for _, given := range w.decide().Instructions {
				wantToy(t, given, ran)
			}
			for _, name := range w.names() {
				if m := w.machines[name]; m.Held != nil && w.carryOut(m) {
					m.State = progress.Up
				}
			}
		}
	}
	w.add("server", 3)
	w.add("worker", 1)
	settle()
	w.spec.Version, w.spec.CertificateRotation, w.spec.EncryptionKeyRotation = "v2", 1, 1
	w.snapshots = []roster.Snapshot{{ID: "s", Name: "before"}}
	settle()
	w.restores = []roster.Restore{{ID: "r", Name: "back", Host: "m0001", File: "before"}}
	settle()
	w.machines["m0004"].Leaving = true
	settle()
	for _, method := range strings.Fields("install check start stop rotate-certificates rotate-keys snapshot find restore keep rejoin forget keep-nodes remove-node leave clean") {
		if !ran[method] {
			t.Errorf("no host was told to %s, want each part of a cluster's life to ask the distribution: %v", method, ran)
		}
	}
	removal, all := Removals()["toy"], Machines()
	if !slices.Equal(removal, []string{"toy", "remove"}) ||
		!slices.ContainsFunc(all, func(m distribution.Machine) bool { return reflect.DeepEqual(m, toy{}.Machine()) }) {
		t.Errorf("machines of Cluster API are cleaned by %v, and have %v, want the toy's among them", removal, all)
	}
}

// wantToy checks that instructions have only the toy's files and commands, and records the methods of the commands.
func wantToy(t *testing.T, given *distribution.Instructions, ran map[string]bool) {
	t.Helper()
	raw, err := json.Marshal(given.HostInstructions)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"k3s", "rke2", "rancher", "systemctl"} {
		if strings.Contains(string(raw), word) {
			t.Errorf("the instructions have %q, want nothing of another distribution: %s", word, raw)
		}
	}
	for _, i := range slices.Concat(given.Instructions, given.Clean) {
		if i.Command[0] != "toy" {
			t.Errorf("the command of %s is %v, want the toy's", i.ID, i.Command)
			continue
		}
		ran[i.Command[1]] = true
	}
	for _, f := range given.Files {
		if !strings.HasPrefix(f.Path, "/toy/") {
			t.Errorf("the file %s is written, want the toy's alone", f.Path)
		}
	}
}

func TestUnknownDistributionIsAnError(t *testing.T) {
	t.Parallel()
	in := roster.Input{}
	in.Spec.Distribution = "k9s"
	const want = `there is no distribution "k9s", only ["k3s" "rke2" "toy"]`
	_, decide := Decide(in)
	_, config := CheckConfig("k9s", "spec.config", nil)
	for what, err := range map[string]error{"Decide": decide, "CheckConfig": config, "CheckSpec": CheckSpec(in.Spec)} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", what, err, want)
		}
	}
}
