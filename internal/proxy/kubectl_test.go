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

// A real kubectl without a cache used to ask fifty times, once per second, before it showed that a member was not
// connected.
func TestKubectlWithAnEmptyCacheSoonShowsThatAMemberIsDisconnected(t *testing.T) {
	programs, err := lab.Binaries(t.Context(), io.Discard, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	for name, lastSeen := range map[string]time.Time{
		"never seen": {}, "seen 15 seconds ago": time.Now().Add(-15 * time.Second),
	} {
		t.Run(name, func(t *testing.T) {
			h := newHubSide(t)
			h.members.fail(&NotConnectedError{LastSeen: lastSeen})
			server := httptest.NewTLSServer(h.handler) // kubectl sends no token over plain HTTP
			defer server.Close()
			command := exec.CommandContext(t.Context(), programs[lab.Kubectl], "get", "pods",
				"--kubeconfig=/dev/null", "--cache-dir="+t.TempDir(),
				"--server="+server.URL+"/k8s/clusters/team-a/prod", "--token=t-alice", "--insecure-skip-tls-verify")
			out, err := command.CombinedOutput()
			if err == nil || !strings.Contains(string(out), `cluster "team-a/prod" is not connected to the hub`) {
				t.Errorf("kubectl failed with %v: %s, want the message that the cluster is not connected", err, out)
			}
			if asked := h.members.calls(); asked == 0 || asked > 10 {
				t.Errorf("kubectl asked for the member %d times, want fewer:\n%s", asked, out)
			}
		})
	}
}
