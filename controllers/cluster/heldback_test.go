// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
	"github.com/drover-dev/drover/test/testkit"
)

// upgraded runs an upgrade of agents in workspaces of four Clusters each until no other upgrade starts. It returns the
// Clusters whose upgrade has started, in order, and the events. The function fails decides whose upgrade fails.
func upgraded(t *testing.T, workspaces int, fails func(begun []types.NamespacedName) bool) (begun []types.NamespacedName, told []string) {
	t.Helper()
	hub := fake.NewClientBuilder().WithScheme(testkit.Scheme(t))
	names := make([]types.NamespacedName, 0, 4*workspaces)
	for i := range 4 * workspaces {
		name := types.NamespacedName{Namespace: fmt.Sprintf("team-%d", i/4), Name: fmt.Sprintf("c%d", i%4)}
		hub.WithObjects(&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
		names = append(names, name)
	}
	recorder, now := events.NewFakeRecorder(100), time.Now().Truncate(time.Second)
	u := &Upgrades{Client: hub.Build(), Recorder: recorder, Now: func() time.Time { return now }, Pace: func(clusters int) rollout.Pace {
		return rollout.Pace{MaxConcurrent: 1, MaxFailed: clusters / 100, Waves: []rollout.Wave{{Name: "first", Share: 1, Soak: time.Minute}, {Name: "tenth", Share: 10, Soak: time.Minute}}}
	}}
	u.lead("new", now)
	for _, name := range names {
		u.observe(name, agentState{waits: true})
	}
	u.OnTurn(func(name types.NamespacedName) { begun = append(begun, name) })
	for done := -1; done < len(begun); now = now.Add(time.Hour) {
		done = len(begun)
		if _, err := u.Reconcile(t.Context(), ctrl.Request{}); err != nil {
			t.Fatal(err)
		}
		for i := done; i < len(begun); i++ {
			at, turn := metav1.NewTime(now), *u.turn(begun[i])
			if fails(begun[:i+1]) {
				turn.Failed = &at
			} else {
				turn.Complete = &at
			}
			u.observe(begun[i], agentState{upgrade: &turn, waits: turn.Failed != nil})
		}
	}
	close(recorder.Events)
	for event := range recorder.Events {
		told = append(told, event)
	}
	return begun, told
}

// The attacker runs the Cluster whose turn is first. A share of one percent is one Cluster in this test, and names can
// be chosen.
func TestFailingAgentsHoldBackOnlyTheirWorkspace(t *testing.T) {
	begun, told := upgraded(t, 6, func(begun []types.NamespacedName) bool { return begun[len(begun)-1].Namespace == begun[0].Namespace })
	others, own := map[types.NamespacedName]bool{}, 0
	for _, name := range begun {
		if name.Namespace == begun[0].Namespace {
			own++
		} else {
			others[name] = true
		}
	}
	if len(others) != 20 || own != 1 {
		t.Errorf("%d Clusters of other workspaces were upgraded, and %d of the one that fails, want all 20 and 1: %v", len(others), own, begun)
	}
	if len(told) != 1 || !strings.Contains(told[0], "stopped in workspace "+begun[0].Namespace+": 1 cluster failed ("+begun[0].String()+")") {
		t.Errorf("the events are %q, want one about the workspace", told)
	}
}

func TestFailuresInTwoWorkspacesStopTheUpgradeOfAll(t *testing.T) {
	begun, told := upgraded(t, 6, func([]types.NamespacedName) bool { return true })
	if len(begun) != 2 || begun[0].Namespace == begun[1].Namespace {
		t.Fatalf("%v have begun, want two of two workspaces", begun)
	}
	for _, event := range told {
		if strings.Contains(event, "stopped in all workspaces") {
			if strings.Contains(event, begun[0].String()) || strings.Contains(event, begun[1].String()) {
				t.Errorf("the event is %q, want no Cluster of another workspace in it", event)
			}
			return
		}
	}
	t.Errorf("the events are %q, want one about all workspaces", told)
}

func TestFailuresInTheOnlyWorkspaceStopTheUpgrade(t *testing.T) {
	if begun, told := upgraded(t, 1, func([]types.NamespacedName) bool { return true }); len(begun) != 1 || len(told) != 1 {
		t.Errorf("%v have begun with the events %q, want one of each", begun, told)
	}
}
