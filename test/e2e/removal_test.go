// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
)

// testLeftBehind checks that the deletion of a Cluster does not wait for a member that never returns.
func testLeftBehind(t *testing.T, s *system) {
	cluster, agent := s.ready(t, "left-behind")
	kill(t, agent.Process)
	object := s.cluster(t, cluster)
	began := time.Now()
	if err := s.hub.Client.Delete(t.Context(), object); err != nil {
		t.Fatal(err)
	}
	s.await(t, cluster, 10*time.Second, framework.NotReady(v1.ReasonRemoving))
	if err := s.hub.AwaitGone(within(t, 30*time.Second), object); err != nil {
		t.Fatal(err)
	}
	t.Logf("gone after %s", time.Since(began))
	out, err := s.hub.Kubectl(t.Context(), nil, "get", "events.events.k8s.io", "-o", "wide", "--field-selector", "reason="+v1.ReasonLeftBehind)
	if err != nil || !strings.Contains(out, "cluster/left-behind") || !strings.Contains(out, "kubectl drover uninstall") {
		t.Errorf("no event says how to clean up: %v\n%s", err, out)
	}
}

// testMadeAgain checks that a Cluster that is recreated under its name is treated as a different Cluster.
func testMadeAgain(t *testing.T, s *system) {
	cluster, agent := s.ready(t, "again")
	former := s.cluster(t, cluster)
	orphan := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"deletionPolicy":"Orphan"}}`))
	if err := s.hub.Client.Patch(t.Context(), former, orphan); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.Client.Delete(t.Context(), former.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.AwaitGone(within(t, 10*time.Second), former); err != nil {
		t.Fatal(err)
	}
	_, manifest := s.created(t, cluster.Name)
	t.Run("the old agent is refused and logs what to do", func(t *testing.T) {
		log := awaitLog(t, agent, 30*time.Second, "apply the manifest")
		t.Log(log[strings.LastIndex(strings.TrimSpace(log), "\n")+1:])
		s.await(t, cluster, 10*time.Second, func(c *v1.Cluster) bool {
			return framework.NotReady(v1.ReasonAwaitingAgent)(c) && c.UID != former.UID
		})
		if _, err := s.kubectl(t, cluster, demoToken, "get", "--raw", prefix(cluster)+"/version"); err == nil {
			t.Error("the old agent serves the new Cluster")
		}
	})
	t.Run("the new manifest brings it back, and it was not restarted", func(t *testing.T) {
		s.rejoin(t, manifest, agentNamespace(cluster.Name))
		s.await(t, cluster, 10*time.Second, framework.Ready)
		select {
		case <-agent.Process.Exited():
			t.Error("the agent has ended")
		default:
		}
	})
}
