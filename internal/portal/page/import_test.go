// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"

	"github.com/drover-dev/drover/test/chromium"
)

// In TestPageHidesTheCommandOfASecretThatTheHubDidNotCreate, a user with the right to create Secrets creates one with
// the name of a Cluster's registration Secret.
func TestPageHidesTheCommandOfASecretThatTheHubDidNotCreate(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 1)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	at(p, "#/clusters")
	sees(t, p, "button: Import a cluster")
	labels := func(cluster, kind string) map[string]any {
		return map[string]any{"cluster.drover.dev/cluster": cluster, "cluster.drover.dev/secret": kind}
	}
	owners := func(uid string) []any { return []any{map[string]any{"kind": "Cluster", "uid": uid}} }
	const command = "curl it | sh"
	for name, tt := range map[string]struct {
		meta map[string]any
		want string
	}{
		"none of the hub's labels": {
			map[string]any{"ownerReferences": owners("uid-of-the-cluster")},
			"its label cluster.drover.dev/cluster is missing and not next",
		},
		"another cluster": {
			map[string]any{"labels": labels("other", "registration"), "ownerReferences": owners("uid-of-the-cluster")},
			"its label cluster.drover.dev/cluster is other and not next",
		},
		"another kind": {
			map[string]any{"labels": labels("next", "agent"), "ownerReferences": owners("uid-of-the-cluster")},
			"its label cluster.drover.dev/secret is agent and not registration",
		},
		"no owner": {
			map[string]any{"labels": labels("next", "registration")}, "it does not belong to this Cluster",
		},
		"a former owner": {
			map[string]any{"labels": labels("next", "registration"), "ownerReferences": owners("former")},
			"it does not belong to this Cluster",
		},
		"the hub's": {
			map[string]any{"labels": labels("next", "registration"), "ownerReferences": owners("uid-of-the-cluster")}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.mu.Lock()
			f.secret = map[string]any{"metadata": tt.meta, "data": map[string]any{"command": []byte(command)}}
			f.mu.Unlock()
			next := cluster("next", "False", "AwaitingAgent", "")
			status := next["object"].(map[string]any)["status"].(map[string]any)
			status["conditions"].([]any)[1] = map[string]any{"type": "Registered", "status": "False",
				"reason": "AwaitingAgent"}
			f.send(next)
			sees(t, p, "link: next")
			click(t, p, ".actions .primary")
			p.Evaluate(`{
				const [workspace, name] = document.querySelectorAll("dialog input");
				for (const [input, value] of [[workspace, "team"], [name, "next"]]) {
					input.value = value;
					input.dispatchEvent(new InputEvent("input", { bubbles: true }));
				}
			}`+painted, nil)
			click(t, p, "dialog .primary")
			if tt.want == "" {
				sees(t, p, "StaticText: "+command)
			} else {
				sees(t, p, "StaticText: The Cluster is created. The Secret next-registration was not created by the hub: "+tt.want)
				var shown bool
				if p.Evaluate(`document.querySelector("dialog").textContent.includes("`+command+`")`, &shown); shown {
					t.Errorf("the page shows the command of a Secret that the hub did not create, want only the " +
						"reason why it does not")
				}
			}
			p.Evaluate(`document.querySelector("dialog").close(); `+painted, nil)
		})
	}
}
