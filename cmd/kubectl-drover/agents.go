// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// States of an agent, in the order in which an upgrade goes through them.
const (
	agentCurrent   = "current"
	agentWaiting   = "waiting"
	agentUpgrading = "upgrading"
	agentFailed    = "failed"
	agentUnmanaged = "unmanaged"
	agentAway      = "away"
	agentAbsent    = "absent"
)

// agentList is what "agents" prints.
type agentList struct {
	Agents []agentRow `json:"agents"`
	// Counts of the states.
	Counts map[string]int `json:"counts"`
}

// agentRow is the agent of one Cluster.
type agentRow struct {
	Workspace string `json:"workspace"`
	Cluster   string `json:"cluster"`
	Version   string `json:"version,omitempty"`
	Image     string `json:"image,omitempty"`
	// WantedImage is set if the agent is to have another one.
	WantedImage string `json:"wantedImage,omitempty"`
	State       string `json:"state"`
	// Message says more of an agent that is not current.
	Message string `json:"message,omitempty"`
	// Wave in which it began with its last upgrade.
	Wave string `json:"wave,omitempty"`
}

func newAgents(o *options) *cobra.Command {
	everywhere := false
	c := &cobra.Command{
		Use: "agents", Short: "List the agents, and how far an upgrade of them is",
		Long: `List the agents, and how far an upgrade of them is.

The states: current; waiting (its turn to be upgraded has not come); upgrading; failed (it restored its Deployment, or did not come back in time);
unmanaged (the hub cannot change it); away (not connected: what was known last is shown); absent (no agent has joined).`,
		Example: "  kubectl drover agents -A\n  kubectl drover agents -w team-a -o json",
		Args:    cobra.NoArgs,
		PreRunE: func(*cobra.Command, []string) error { return o.checkOutput() },
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := bounded(c.Context())
			defer cancel()
			hub, err := o.hub()
			if err != nil {
				return err
			}
			if everywhere {
				hub.workspace = ""
			}
			list, err := hub.agents(ctx)
			if err != nil {
				return err
			}
			return o.print(c.OutOrStdout(), list, list.text)
		},
	}
	flags := c.Flags()
	flags.StringVarP(&o.workspace, "workspace", "w", "", "The workspace: a namespace of the hub (default: that of the kubeconfig's context)")
	flags.BoolVarP(&everywhere, "all-workspaces", "A", false, "All workspaces")
	flags.StringVarP(&o.output, "output", "o", outputText, "The output: text, json or yaml")
	complete(c, "workspace", o.completeWorkspaces)
	complete(c, "output", offer(outputText, outputJSON, outputYAML))
	return c
}

// agents reads the agents of a workspace, or of all if it is empty.
func (h *hubClient) agents(ctx context.Context) (agentList, error) {
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, client.InNamespace(h.workspace)); err != nil {
		return agentList{}, fmt.Errorf("list clusters of %s: %w", cmp.Or(h.workspace, "all workspaces"), err)
	}
	list := agentList{Agents: []agentRow{}, Counts: map[string]int{}}
	for i := range clusters.Items {
		row := agentOf(&clusters.Items[i])
		list.Agents = append(list.Agents, row)
		list.Counts[row.State]++
	}
	slices.SortFunc(list.Agents, func(a, b agentRow) int {
		return cmp.Or(cmp.Compare(a.Workspace, b.Workspace), cmp.Compare(a.Cluster, b.Cluster))
	})
	return list, nil
}

// agentOf returns the agent of a Cluster.
func agentOf(c *v1.Cluster) agentRow {
	row := agentRow{Workspace: c.Namespace, Cluster: c.Name, State: agentAbsent}
	agent := c.Status.Agent
	if agent == nil {
		return row
	}
	row.Version, row.Image, row.WantedImage, row.State = agent.Version, agent.Image, agent.WantedImage, agentCurrent
	up := agent.Upgrade
	if up != nil {
		row.Wave = up.Wave
	}
	said := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionAgentUpToDate)
	if said != nil {
		row.State, row.Message = agentStates[said.Reason], said.Message
	}
	if up != nil && up.Failed != nil && row.State == agentUpgrading {
		row.State, row.Message = agentFailed, "It has not come back with its new Deployment in time"
	}
	if connected := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionConnected); connected != nil && connected.Status == "False" && row.State != agentFailed {
		row.State, row.Message = agentAway, connected.Message
	}
	if row.State == agentCurrent {
		row.Message = ""
	}
	row.State = cmp.Or(row.State, agentUpgrading) // a reason of a newer hub
	return row
}

// agentStates are the states by the reason of AgentUpToDate.
var agentStates = map[string]string{
	v1.ReasonAgentUpdated: agentCurrent, v1.ReasonAgentWaiting: agentWaiting, v1.ReasonAgentUpdating: agentUpgrading, v1.ReasonAgentRolledBack: agentFailed,
	v1.ReasonAgentRejected: agentFailed, v1.ReasonAgentNotReady: agentFailed, v1.ReasonAgentProfileDiffers: agentUnmanaged, v1.ReasonAgentUnmanaged: agentUnmanaged,
	v1.ReasonNodeAgentsMissing: agentUnmanaged,
}

// text is the table for a person, with the states counted below.
func (l agentList) text() string {
	var b strings.Builder
	table := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "WORKSPACE\tCLUSTER\tVERSION\tIMAGE\tWANTED\tSTATE\tWAVE\tMESSAGE")
	line := strings.NewReplacer("\t", " ", "\n", " ")
	for _, a := range l.Agents {
		cells := []string{a.Workspace, a.Cluster, a.Version, a.Image, a.WantedImage, a.State, a.Wave, a.Message}
		for i, cell := range cells {
			cells[i] = line.Replace(cell)
		}
		fmt.Fprintln(table, strings.TrimRight(strings.Join(cells, "\t"), "\t"))
	}
	_ = table.Flush() // it writes to memory
	var counts []string
	for _, state := range []string{agentCurrent, agentWaiting, agentUpgrading, agentFailed, agentUnmanaged, agentAway, agentAbsent} {
		if n := l.Counts[state]; n > 0 {
			counts = append(counts, fmt.Sprintf("%d %s", n, state))
		}
	}
	say(&b, "\n%s\n", cmp.Or(strings.Join(counts, ", "), "no Cluster"))
	return b.String()
}
