// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

func TestListenersOfClustersAreNotCalledForHosts(t *testing.T) {
	t.Parallel()
	r := members.New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	heard := make(chan string, 100)
	r.OnChange(func(n types.NamespacedName) { heard <- "cluster changed " + n.Name })
	r.OnOpen(func(n types.NamespacedName) { heard <- "cluster opened " + n.Name })
	r.OnHostOpen(func(n types.NamespacedName) { heard <- "host opened " + n.Name })
	r.OnHostChange(func(n types.NamespacedName) { heard <- "host changed " + n.Name })
	await := func(what string) {
		t.Helper()
		for limit := time.After(time.Minute * testkit.Patience); ; {
			select {
			case got := <-heard:
				switch got {
				case what:
					return
				case "cluster changed host:m", "cluster opened host:m", "host changed m", "host opened m":
					t.Errorf("got a call of %q, want only listeners of the same kind called", got)
				}
			case <-limit:
				t.Fatalf("got no call of %q, want one", what)
			}
		}
	}
	for name, kind := range map[string]string{protocol.HostMember("m"): "host", "m": "cluster"} {
		agent := testkit.ConnectAgent(t, testkit.HealthyReport())
		r.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "w", Name: name}, Key: "key"}, agent.Session)
		await(kind + " opened " + name)
		agent.Kill()
		await(kind + " changed " + name)
	}
}
