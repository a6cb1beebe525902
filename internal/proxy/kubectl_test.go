// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net/http/httptest"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// What a real kubectl without any cache does of a member that is away was: ask fifty times, a second apart, and then
// say why.
func TestAKubectlWithAnEmptyCacheSaysAtOnceThatAMemberIsAway(t *testing.T) {
	programs, err := lab.Binaries(t.Context(), io.Discard, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	for name, lastSeen := range map[string]time.Time{"never seen": {}, "seen a quarter of a minute ago": time.Now().Add(-15 * time.Second)} {
		t.Run(name, func(t *testing.T) {
			h := newHubSide(t)
			h.members.fail(&NotConnectedError{LastSeen: lastSeen})
			server := httptest.NewTLSServer(h.handler) // kubectl sends no token in the clear
			defer server.Close()
			command := exec.CommandContext(t.Context(), programs[lab.Kubectl], "get", "pods", "--kubeconfig=/dev/null", "--cache-dir="+t.TempDir(),
				"--server="+server.URL+"/k8s/clusters/team-a/prod", "--token=t-alice", "--insecure-skip-tls-verify")
			out, err := command.CombinedOutput()
			if err == nil || !strings.Contains(string(out), `cluster "team-a/prod" is not connected to the hub`) {
				t.Errorf("kubectl says %v: %s, want that the cluster is not connected", err, out)
			}
			if asked := h.members.calls(); asked == 0 || asked > 10 {
				t.Errorf("the member was asked for %d times:\n%s", asked, out)
			}
		})
	}
}
