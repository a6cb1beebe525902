// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"

	"github.com/drover-dev/drover/test/chromium"
)

// failing is a hub with a Plan that has a failed node.
type failing struct {
	*fleet
	mu     sync.Mutex // guards all fields below
	bodies []string   // the changes that the page has sent
	looks  int        // how often the page has read the Plan since the first change
}

const failingPath = bindingsPath + "plans/kernel"

// failingPlan returns a message of the stream. reason is the member's.
func failingPlan(paused bool, generation int, reason string) map[string]any {
	m := plan(0, 1)
	o := m["object"].(map[string]any)
	o["metadata"] = map[string]any{"namespace": "team", "name": "kernel", "uid": "u", "generation": generation,
		"resourceVersion": fmt.Sprint(generation)}
	o["spec"].(map[string]any)["paused"] = paused
	status := o["status"].(map[string]any)
	status["observedGeneration"] = generation
	status["members"].([]any)[0].(map[string]any)["reason"] = reason
	return m
}

// newFailing returns a hub and a page that shows the Plan. after returns the Plan after it was paused, each time that
// the page reads it. The stream is behind: it does not tell of the pause.
func newFailing(t *testing.T, after func(look int) map[string]any) (*failing, *chromium.Page) {
	t.Helper()
	hub, p := signedIn(t, 1)
	f := &failing{fleet: hub}
	f.on("GET "+failingPath, func(map[string]any) (int, any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.bodies) == 0 {
			return http.StatusOK, failingPlan(false, 1, "NodeFailed")["object"]
		}
		f.looks++
		return http.StatusOK, after(f.looks)["object"]
	})
	f.on("PATCH "+failingPath, func(body map[string]any) (int, any) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.bodies = append(f.bodies, fmt.Sprint(body["metadata"], body["spec"]))
		return http.StatusOK, failingPlan(true, 1+len(f.bodies), "Paused")["object"]
	})
	f.send(failingPlan(false, 1, "NodeFailed"))
	at(p, "#/plans/team/kernel")
	sees(t, p, "heading: kernel", "list: Clusters of canary that are not done", "list: Nodes of c0000",
		"progressbar: canary: 0/2, 1 failed")
	return f, p
}

// sends fails unless the page has sent exactly these changes.
func (f *failing) sends(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.bodies, want) {
		t.Errorf("the page sent %q, want %q", f.bodies, want)
	}
}

const (
	pauses  = "map[resourceVersion:1] map[paused:true]"
	resumes = "map[resourceVersion:2] map[paused:false]"
)

// TestFailedNodesAreTriedAgain retries a Plan as kubectl drover plan retry does: it reads the Plan until members have
// paused.
func TestFailedNodesAreTriedAgain(t *testing.T) {
	stale := failingPlan(true, 2, "NodeFailed")
	stale["object"].(map[string]any)["status"].(map[string]any)["observedGeneration"] = 1
	for name, tt := range map[string]struct {
		after func(look int) map[string]any
		sees  []string
		sends []string
	}{
		"after the controller and the member have seen the pause": {func(look int) map[string]any {
			switch look {
			case 1:
				return stale
			case 2:
				return failingPlan(true, 2, "NodeFailed")
			}
			return failingPlan(true, 2, "Paused")
		}, []string{"StaticText: The failed nodes of kernel are tried again."}, []string{pauses, resumes}},
		"except in a member that is away": {
			func(int) map[string]any { return failingPlan(true, 2, "MembersAway") },
			[]string{"StaticText: These failures stay: c0000: MembersAway"}, []string{pauses, resumes},
		},
		"unless someone else resumes the Plan meanwhile": {
			func(int) map[string]any { return failingPlan(false, 3, "Applying") },
			[]string{"StaticText: Someone else has resumed the Plan before its members had paused.",
				"StaticText: If a GitOps tool owns spec.paused"}, []string{pauses},
		},
		"unless someone else changes the Plan meanwhile": {
			func(int) map[string]any { return failingPlan(true, 3, "Paused") },
			[]string{"StaticText: Someone else has changed the Plan meanwhile.",
				"StaticText: The Plan may still be paused. If it is, resume it."}, []string{pauses},
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, p := newFailing(t, tt.after)
			activate(t, p, "main button", "Try failed nodes again")
			activate(t, p, "dialog button", "Try again")
			sees(t, p, tt.sees...)
			f.sends(t, tt.sends...)
		})
	}
}

func TestPlansAreResumed(t *testing.T) {
	f, p := newFailing(t, func(int) map[string]any { return failingPlan(true, 2, "Paused") })
	f.send(failingPlan(true, 2, "Paused"))
	sees(t, p, "button: Resume", "StaticText: This plan is paused and starts nothing new.")
	activate(t, p, "main button", "Resume")
	activate(t, p, "dialog button", "Resume")
	sees(t, p, "StaticText: kernel goes on.")
	f.sends(t, "map[uid:u] map[paused:false]")
}
