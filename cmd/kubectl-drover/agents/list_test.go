// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestTheStateOfAnAgent(t *testing.T) {
	at := metav1.NewTime(time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC))
	agent := &v1.AgentStatus{Version: "v1", Image: "drover:one"}
	upgrade := func(up v1.AgentUpgrade) *v1.AgentStatus {
		up.Wave = "tenth"
		return &v1.AgentStatus{Version: "v1", Image: "drover:one", WantedImage: "drover:two", Upgrade: &up}
	}
	said := func(reason string) []metav1.Condition {
		return []metav1.Condition{{Type: v1.ConditionAgentUpToDate, Status: metav1.ConditionFalse, Reason: reason, Message: "because"}}
	}
	lost := metav1.Condition{Type: v1.ConditionConnected, Status: metav1.ConditionFalse, Reason: v1.ReasonTunnelLost, Message: "lost"}
	for name, tt := range map[string]struct {
		agent         *v1.AgentStatus
		conditions    []metav1.Condition
		state, detail string
	}{
		"no agent has joined":             {nil, nil, agentAbsent, ""},
		"nothing is known yet":            {agent, nil, agentCurrent, ""},
		"as it should be":                 {agent, said(v1.ReasonAgentUpdated), agentCurrent, ""},
		"its turn has not come":           {agent, said(v1.ReasonAgentWaiting), agentWaiting, "because"},
		"it is being upgraded":            {upgrade(v1.AgentUpgrade{Since: at}), said(v1.ReasonAgentUpdating), agentUpgrading, "because"},
		"it restored its Deployment":      {upgrade(v1.AgentUpgrade{Since: at, Failed: &at}), said(v1.ReasonAgentRolledBack), agentFailed, "because"},
		"it did not come back":            {upgrade(v1.AgentUpgrade{Since: at, Failed: &at}), append(said(v1.ReasonAgentUpdating), lost), agentFailed, "The agent did not reconnect in time after its Deployment was changed"},
		"not all of its pods are ready":   {agent, said(v1.ReasonAgentNotReady), agentDegraded, "because"},
		"it is away, with such pods":      {agent, append(said(v1.ReasonAgentNotReady), lost), agentAway, "lost"},
		"it is away, whatever it was":     {agent, append(said(v1.ReasonAgentUpdated), lost), agentAway, "lost"},
		"the hub cannot change it":        {agent, said(v1.ReasonAgentUnmanaged), agentUnmanaged, "because"},
		"a reason that is not known here": {agent, said("Later"), agentUpgrading, "because"},
	} {
		t.Run(name, func(t *testing.T) {
			got := agentOf(&v1.Cluster{Status: v1.ClusterStatus{Agent: tt.agent, Conditions: tt.conditions}})
			if got.State != tt.state || got.Message != tt.detail {
				t.Errorf("it is %s: %s, want %s: %s", got.State, got.Message, tt.state, tt.detail)
			}
		})
	}
}

func TestTheTableOfAgents(t *testing.T) {
	list := agentList{Counts: map[string]int{agentCurrent: 1, agentFailed: 1}, Agents: []agentRow{
		{Workspace: "team-a", Cluster: "edge", Version: "v1", Image: "drover:one", WantedImage: "drover:two", State: agentFailed, Wave: "tenth", Message: "two\tlines\nof it"},
		{Workspace: "team-a", Cluster: "prod", Version: "v2", Image: "drover:two", State: agentCurrent, Wave: "first"},
	}}
	want := strings.Join([]string{
		"WORKSPACE   CLUSTER   VERSION   IMAGE        WANTED       STATE     WAVE    MESSAGE",
		"team-a      edge      v1        drover:one   drover:two   failed    tenth   two lines of it",
		"team-a      prod      v2        drover:two                current   first",
		"", "1 current, 1 failed", "",
	}, "\n")
	if got := list.Text(); got != want {
		t.Errorf("it is\n%s\nwant\n%s", got, want)
	}
	if got := (agentList{}).Text(); !strings.HasSuffix(got, "\nno Cluster\n") {
		t.Errorf("without Clusters it is %q", got)
	}
}
