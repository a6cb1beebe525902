// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/chromium"
)

// joining returns a Cluster that no agent has joined, as the hub reports it for a reason: with the same value in three
// conditions, and without facts about the cluster. All reasons but AwaitingAgent and RegistrationFailed stall it.
// Without a message, it is the one for AwaitingAgent.
func joining(name, reason, message string) map[string]any {
	if message == "" {
		message = "Run in the cluster: the command in Secret " + name + "-registration, key command"
	}
	m := cluster(name, "False", reason, message)
	object := m["object"].(map[string]any)
	at := time.Now().Add(-4 * time.Minute).UTC().Format(time.RFC3339)
	object["metadata"].(map[string]any)["creationTimestamp"] = at
	var conditions []any
	for _, kind := range []string{v1.ConditionRegistered, v1.ConditionConnected, v1.ConditionReady, v1.ConditionStalled} {
		state := "False"
		if kind == v1.ConditionStalled {
			if reason == v1.ReasonAwaitingAgent || reason == v1.ReasonRegistrationFailed {
				continue
			}
			state = "True"
		}
		conditions = append(conditions, map[string]any{"type": kind, "status": state, "reason": reason, "message": message,
			"lastTransitionTime": at})
	}
	object["status"] = map[string]any{"conditions": conditions, "observedGeneration": 1}
	return m
}

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
			map[string]any{"labels": labels("next", "registration")}, "it does not belong to this cluster",
		},
		"a former owner": {
			map[string]any{"labels": labels("next", "registration"), "ownerReferences": owners("former")},
			"it does not belong to this cluster",
		},
		"the hub's": {
			map[string]any{"labels": labels("next", "registration"), "ownerReferences": owners("uid-of-the-cluster")}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f.mu.Lock()
			f.secret = map[string]any{"metadata": tt.meta, "data": map[string]any{"command": []byte(command)}}
			f.mu.Unlock()
			f.send(joining("next", v1.ReasonAwaitingAgent, ""))
			sees(t, p, "link: next")
			click(t, p, ".actions .primary")
			sees(t, p, "dialog: Import a cluster", "textbox: Name")
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
				sees(t, p, "StaticText: The cluster is created. The Secret next-registration was not created by the hub: "+tt.want)
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

// TestAnImportBlamesWhatHasFailed shows Clusters without an agent, and different answers to the request for the
// command.
func TestAnImportBlamesWhatHasFailed(t *testing.T) {
	f, p := signedIn(t, 1)
	const secret = "GET /k8s/local/api/v1/namespaces/team/secrets/edge-registration"
	refuses := func(code int, message string) answer {
		return func(map[string]any) (int, any) { return code, map[string]any{"message": message} }
	}
	f.send(joining("edge", v1.ReasonAwaitingAgent, ""))
	const text = `document.querySelector("main").textContent`
	for name, tt := range map[string]struct {
		code         int
		want, absent string
	}{
		"the user may not read Secrets": {http.StatusForbidden, "you may not read the Secret", "cannot be shown"},
		"the API server fails":          {http.StatusInternalServerError, "The command cannot be shown.", "may not read"},
		"the hub has created none":      {http.StatusNotFound, "There is no command yet.", "may not read"},
	} {
		t.Run(name, func(t *testing.T) {
			f.on(secret, refuses(tt.code, "the server says so"))
			at(p, "#/clusters")
			at(p, "#/clusters/team/edge")
			eventually(t, p, text+`.includes("`+tt.want+`")`, true)
			eventually(t, p, text+`.includes("`+tt.absent+`")`, false)
		})
	}
	t.Run("the command appears when it is tried again", func(t *testing.T) {
		f.on(secret, refuses(http.StatusInternalServerError, "the server says so"))
		at(p, "#/clusters")
		at(p, "#/clusters/team/edge")
		sees(t, p, "StaticText: The command cannot be shown.")
		f.on(secret, always(map[string]any{"data": map[string]any{"command": []byte("curl it | sh")},
			"metadata": map[string]any{
				"labels":          map[string]any{v1.LabelCluster: "edge", v1.LabelSecretKind: v1.SecretKindRegistration},
				"ownerReferences": []any{map[string]any{"uid": "uid-of-edge"}},
			}}))
		activate(t, p, "main button", "Try again")
		sees(t, p, "StaticText: curl it | sh")
	})
	t.Run("no command is shown that would fail, and the cause is the one of the state", func(t *testing.T) {
		for _, reason := range []string{v1.ReasonTokenInvalid, v1.ReasonTooManyClusters, v1.ReasonSecretConflict,
			v1.ReasonAlreadyImported, v1.ReasonTokenUsed} {
			f.send(joining("edge", reason, "because of "+reason))
			eventually(t, p, `document.querySelector("main .note")?.textContent.includes("because of `+reason+`")`, true)
			eventually(t, p, `/Run this|run the command/.test(`+text+`)`, false)
		}
		sees(t, p, "StaticText: A revoked agent has used your token. Put a new one into your Secret.")
	})
	t.Run("without a Secret, the hub makes a new command in any case", func(t *testing.T) {
		f.on(secret, refuses(http.StatusNotFound, "no such Secret"))
		f.send(joining("edge", v1.ReasonTokenExpired, "No agent joined before the join token expired"))
		activate(t, p, "main button", "Make a new command")
		sees(t, p, "StaticText: The hub makes a new command.")
		eventually(t, p, text+`.includes("no such Secret")`, false)
	})
	t.Run("a token of the user's own is not renewed by the hub", func(t *testing.T) {
		m := joining("edge", v1.ReasonTokenExpired, "put a new one into Secret mine")
		m["object"].(map[string]any)["spec"] = map[string]any{"registration": map[string]any{
			"tokenSecretRef": map[string]any{"name": "mine"}}}
		f.send(m)
		eventually(t, p, text+`.includes("put a new one into Secret mine")`, true)
		eventually(t, p, text+`.includes("Make a new command")`, false)
	})
	if n := strings.Count(strings.Join(p.Requests(), " "), "edge-registration"); n > 60 {
		t.Errorf("the page has asked %d times for the Secret, want at most 40 times in 10 seconds where it does not exist", n)
	}
}
