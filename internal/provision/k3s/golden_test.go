// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// TestDecisionsStayTheSameByteForByte compares the digest of all decisions of a model with the digest of an earlier
// version. A host is restarted if its instructions change, and the stored state is read by later versions. If a change
// is intended, replace the digests.
func TestDecisionsStayTheSameByteForByte(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		distribution provisionv1.Distribution
		installer    provisionv1.Installer
		want         string
	}{
		"k3s":  {provisionv1.DistributionK3s, provisionv1.Installer{SHA256: "abc"}, "ee2c1eecfd9070080b19b73cf4c5214a1b25196536d50d66034220abce0054f3"},
		"RKE2": {provisionv1.DistributionRKE2, provisionv1.Installer{Path: "/opt/install.sh"}, "fba904be0fe712b79c6fbf3d2068c66e52c5c957a748306a0068d9c2c07a3028"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 7, pool("server", -1, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("etcd", -1, provisionv1.RoleEtcd),
				pool("control", -1, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker))
			w.spec.Distribution, w.spec.Installer = tt.distribution, tt.installer
			w.add("server", 3)
			w.add("etcd", 2)
			w.add("control", 1)
			w.add("worker", 4)
			w.settle(200)
			w.trouble = true
			sum := sha256.New()
			for round := range 110 {
				if round == 50 {
					w.spec.EncryptionKeyRotation++
					w.restores = append(w.restores, roster.Restore{ID: "last", Name: "a", File: "f"})
				}
				if round > 70 {
					w.trouble = false
				} else {
					w.disturb()
				}
				w.decide()
				w.pass()
				out, err := Decide(w.detailed())
				if err != nil {
					t.Fatal(err)
				}
				for _, part := range parts(out) {
					raw, err := json.Marshal(part)
					if err != nil {
						t.Fatal(err)
					}
					sum.Write(append(raw, '\n'))
				}
			}
			if got := hex.EncodeToString(sum.Sum(nil)); got != tt.want {
				t.Errorf("the decisions have the digest %s, want %s: instructions, messages or the stored state differ", got, tt.want)
			}
		})
	}
}

// detailed returns the input with a value in each field from which files are written.
func (w *world) detailed() roster.Input {
	in := w.input()
	in.Generation, in.Registries = 3, []byte("mirrors: {}")
	in.S3 = roster.S3Credentials{AccessKey: "access", SecretKey: "secret", CA: []byte("ca")}
	in.Spec.DataDir = "/data"
	in.Spec.Config = map[string]any{"cluster-cidr": "10.42.0.0/16,fd00::/56", "node-label": "a=b"}
	in.Spec.ServerConfig = map[string]any{"tls-san": []any{"x", "y"}, "secrets-encryption": true}
	in.Spec.Etcd = provisionv1.Etcd{Schedule: "@daily ", Retention: 7, S3: &provisionv1.EtcdS3{Endpoint: "s3.example.com", Bucket: "b", Region: "r"}}
	for i := range in.Hosts {
		in.Hosts[i].NodeLabels, in.Hosts[i].NodeTaints = []string{"l=1"}, []string{"t=1:NoSchedule"}
		if i%2 == 0 {
			in.Hosts[i].NodeIPs = []string{in.Hosts[i].Address, "fd00::1"}
		}
	}
	return in
}

// parts returns the parts of a decision that hosts, users or later versions see.
func parts(out decision.Decision) []any {
	instructions, held := map[string]protocol.HostInstructions{}, map[string]roster.Held{}
	for name, given := range out.Instructions {
		instructions[name], held[name] = given.HostInstructions, given.Held
	}
	return []any{
		instructions, held, out.Stored, out.Take, out.Release, out.Waiting, out.Hosts, out.Ready, out.Missing, out.Lost,
		out.Unselected, out.Task, out.TaskHost, out.Restore, out.Etcd, out.Configure,
	}
}
