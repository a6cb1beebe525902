// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"fmt"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
)

// TestConditionsAreBrokenOnlyIfSomeoneHasToAct explains conditions as the controllers write them.
func TestConditionsAreBrokenOnlyIfSomeoneHasToAct(t *testing.T) {
	_, p := signedIn(t, 0)
	const cluster, other = `undefined`, `["in place", "not in place"]`
	for name, tt := range map[string]struct {
		ready      string
		conditions []any
		want       string
	}{
		"a new Cluster": {cluster, []any{condition(v1.ConditionReady, "Unknown", v1.ReasonPending, "")}, "Ready waiting"},
		"a Cluster without an agent": {cluster, []any{
			condition(v1.ConditionRegistered, "False", v1.ReasonAwaitingAgent, ""),
			condition(v1.ConditionConnected, "False", v1.ReasonAwaitingAgent, ""),
			condition(v1.ConditionReady, "False", v1.ReasonAwaitingAgent, ""),
		}, "Connected waiting, Registered waiting"},
		"a disconnected Cluster": {cluster, []any{
			condition(v1.ConditionAgentUpToDate, "False", v1.ReasonAgentWaiting, ""),
			condition(v1.ConditionRegistered, "True", v1.ReasonAgentJoined, ""),
			condition(v1.ConditionConnected, "False", v1.ReasonTunnelLost, ""),
			condition(v1.ConditionReady, "False", v1.ReasonTunnelLost, ""),
		}, "Connected broken with a remedy, AgentUpToDate waiting, Registered working"},
		"a Cluster whose agent Drover cannot update": {cluster, []any{
			condition(v1.ConditionAgentUpToDate, "Unknown", v1.ReasonAgentUnmanaged, ""),
			condition(v1.ConditionReady, "True", v1.ReasonConnected, ""),
		}, "AgentUpToDate waiting with a remedy, Ready working"},
		"a Cluster with a node agent only": {cluster, []any{
			condition(v1.ConditionConnected, "True", v1.ReasonConnectedByNodeAgent, ""),
			condition(v1.ConditionReady, "True", v1.ReasonConnectedByNodeAgent, ""),
		}, "Connected working with a remedy, Ready working"},
		"a running Plan": {other, []any{
			condition(v1.ConditionLatestResolved, "True", v1.ReasonVersion, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonApplying, ""),
			condition(v1.ConditionReady, "False", v1.ReasonApplying, ""),
		}, "Complete waiting, LatestResolved working"},
		"a Plan whose channel does not answer": {other, []any{
			condition(v1.ConditionLatestResolved, "False", v1.ReasonChannelFailed, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonChannelFailed, ""),
			condition(v1.ConditionReady, "False", v1.ReasonChannelFailed, ""),
		}, "Complete waiting, LatestResolved waiting"},
		"a failed Plan": {other, []any{
			condition(v1.ConditionLatestResolved, "True", v1.ReasonVersion, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonNodeFailed, ""),
			condition(v1.ConditionReady, "False", v1.ReasonNodeFailed, ""),
			condition(v1.ConditionStalled, "True", v1.ReasonNodeFailed, ""),
		}, "Complete broken, Stalled broken, LatestResolved working"},
		"a binding that is delivered": {other, []any{
			condition(v1.ConditionReady, "False", v1.ReasonDelivering, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonDelivering, ""),
		}, "Complete waiting"},
		"a binding for a member that is away": {other, []any{
			condition(v1.ConditionReady, "True", v1.ReasonApplied, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonMembersAway, ""),
		}, "Complete waiting, Ready working"},
		"a binding that has expired": {other, []any{
			condition(v1.ConditionReady, "True", v1.ReasonExpired, ""),
			condition(v1.ConditionComplete, "True", v1.ReasonExpired, ""),
		}, "Complete ended, Ready ended"},
		"a binding to a role that is missing in a member": {other, []any{
			condition(v1.ConditionReady, "False", v1.ReasonRoleMissing, ""),
			condition(v1.ConditionComplete, "False", v1.ReasonRoleMissing, ""),
			condition(v1.ConditionStalled, "True", v1.ReasonRoleMissing, ""),
		}, "Complete broken, Stalled broken"},
		"a Project with too small a quota": {other, []any{
			condition(v1.ConditionReady, "True", v1.ReasonApplied, ""),
			condition(v1.ConditionComplete, "True", v1.ReasonApplied, ""),
			condition(v1.ConditionQuotaFits, "False", v1.ReasonQuotaSpent, ""),
		}, "QuotaFits waiting, Complete working, Ready working"},
		"a Host that installs": {other,
			[]any{condition(v1.ConditionReady, "False", v1.ReasonInstalling, "")}, "Ready waiting"},
		"a disconnected Host": {other,
			[]any{condition(v1.ConditionReady, "False", v1.ReasonTunnelLost, "")}, "Ready waiting"},
		"a Host after the hub was restored": {other, []any{
			condition(v1.ConditionReady, "True", v1.ReasonActive, ""),
			condition(v1.ConditionRestoreConfirmed, "False", v1.ReasonHubRestored, ""),
		}, "RestoreConfirmed broken with a remedy, Ready working"},
	} {
		object, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": tt.conditions}})
		if err != nil {
			t.Fatal(err)
		}
		var got string
		p.Evaluate(fmt.Sprintf(`import("/ui/core/states.js").then(({ explained }) => explained(%s, %s)
			.map((c) => c.type + " " + c.name + (c.remedy ? " with a remedy" : "")).join(", "))`, object, tt.ready), &got)
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

func TestABindingThatHasExpiredIsNotWorking(t *testing.T) {
	_, p := signedIn(t, 0)
	for reason, tt := range map[string]struct{ ready, stalled, want string }{
		v1.ReasonApplied:     {"True", "False", "working"},
		v1.ReasonExpired:     {"True", "False", "ended"},
		v1.ReasonDelivering:  {"False", "False", "waiting"},
		v1.ReasonRoleMissing: {"False", "True", "broken"},
	} {
		object, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []any{
			condition(v1.ConditionReady, tt.ready, reason, ""), condition(v1.ConditionStalled, tt.stalled, reason, ""),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		var got string
		p.Evaluate(fmt.Sprintf(`import("/ui/core/states.js").then(({ bindingState }) => bindingState(%s).name)`, object),
			&got)
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", reason, got, tt.want)
		}
	}
}

func TestThePlaceOfABindingIsASentence(t *testing.T) {
	_, p := signedIn(t, 0)
	for spec, want := range map[string]string{
		`{"projectName": "shop"}`:                                   "project shop",
		`{"clusterName": "web"}`:                                    "cluster web",
		`{"clusterSelector": {}}`:                                   "all clusters",
		`{"clusterSelector": {"matchLabels": {"b": "", "a": "x"}}}`: "clusters with a=x, b=",
		`{"clusterSelector": {"matchExpressions": [{"key": "env", "operator": "In", "values": ["a", "b"]},
			{"key": "tier", "operator": "NotIn", "values": ["c"]}, {"key": "gpu", "operator": "Exists"},
			{"key": "old", "operator": "DoesNotExist"}]}}`: "clusters with env in (a, b), tier not in (c), any gpu, no old",
		`{}`: "no cluster",
	} {
		var got string
		p.Evaluate(fmt.Sprintf(`import("/ui/core/access.js").then(({ place }) => place(%s))`, spec), &got)
		if got != want {
			t.Errorf("%s: got %q, want %q", spec, got, want)
		}
	}
}
