// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

// TestLinksOfTheOverviewLeadToWhatTheyPromise follows the links below lists that are cut, and counts the items of their
// targets.
func TestLinksOfTheOverviewLeadToWhatTheyPromise(t *testing.T) {
	f, p := signedIn(t, 2) // both work, and their distribution is unknown
	facts := func(name string) (map[string]any, map[string]any) {
		m := cluster(name, "True", "Connected", "")
		status := m["object"].(map[string]any)["status"].(map[string]any)
		status["distribution"] = "k3s"
		return m, status
	}
	for i := range 2 {
		m, status := facts(fmt.Sprintf("old%d", i))
		status["conditions"] = append(status["conditions"].([]any),
			map[string]any{"type": "AgentUpToDate", "status": "False", "reason": "AgentWaiting"})
		f.send(m)
		m, status = facts(fmt.Sprintf("cert%d", i))
		status["directAuthority"] = expiring(t, 10*24*time.Hour)
		f.send(m)
	}
	for i := range 7 {
		f.send(joining(fmt.Sprintf("wait%d", i), v1.ReasonAwaitingAgent, ""))
		broken, _ := facts(fmt.Sprintf("gone%d", i))
		conditions := broken["object"].(map[string]any)["status"].(map[string]any)["conditions"].([]any)
		conditions[0].(map[string]any)["status"], conditions[0].(map[string]any)["reason"] = "False", "TunnelLost"
		f.send(broken)
		m, _ := facts(fmt.Sprintf("v%d", i))
		m["object"].(map[string]any)["status"].(map[string]any)["version"] = fmt.Sprintf("v1.2%d.0", i)
		f.send(m)
	}
	for i := range 6 {
		m := plan(1, 0)
		m["object"].(map[string]any)["metadata"] = map[string]any{"namespace": "team", "name": fmt.Sprintf("plan%d", i)}
		f.send(m)
	}
	done := plan(2, 0)["object"].(map[string]any)
	done["metadata"] = map[string]any{"namespace": "team", "name": "done"}
	done["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready", "status": "True"}}}
	f.send(map[string]any{"type": "CHANGED", "kind": "plans", "object": done})
	const clusters = `[...document.querySelectorAll("main tbody tr:not(.group) th")]
		.map(e => e.textContent).sort().join()`
	const plans = `[...document.querySelectorAll("main article h2 a")].map(e => e.textContent).sort().join()`
	const group = `document.querySelector("main select")?.value`
	for link, tt := range map[string]struct{ list, want string }{
		"2 agents not up to date": {clusters, "old0,old1"},
		"1 more certificate":      {clusters, "cert0,cert1"},
		"3 more broken clusters":  {clusters, "gone0,gone1,gone2,gone3,gone4,gone5,gone6"},
		"2 more waiting clusters": {clusters, "wait0,wait1,wait2,wait3,wait4,wait5,wait6"},
		"2 more plans":            {plans, "plan0,plan1,plan2,plan3,plan4,plan5"},
	} {
		t.Run(link, func(t *testing.T) {
			at(p, "#/")
			sees(t, p, "link: "+link)
			activate(t, p, "main a", link)
			eventually(t, p, tt.list, tt.want)
		})
	}
	t.Run("clusters of an unknown distribution are in a group of their own", func(t *testing.T) {
		at(p, "#/")
		sees(t, p, "link: unknown")
		click(t, p, "[aria-label=Distributions] li:nth-child(2) a")
		eventually(t, p, group, "distribution")
	})
	t.Run("versions that are not shown are in a list by version", func(t *testing.T) {
		at(p, "#/")
		sees(t, p, "link: 2 more")
		activate(t, p, "main a", "2 more")
		eventually(t, p, group, "version")
	})
}
