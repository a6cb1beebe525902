// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agents contains the commands that import clusters, list agents, print their logs, show the state of the hub,
// and uninstall an agent that the hub cannot reach.
package agents

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// States of an agent.
const (
	agentCurrent   = "current"
	agentWaiting   = "waiting"
	agentUpgrading = "upgrading"
	agentFailed    = "failed"
	agentDegraded  = "degraded"
	agentUnmanaged = "unmanaged"
	agentAway      = "away"
	agentAbsent    = "absent"
)

// agentList is the output of the command "agents".
type agentList struct {
	Agents []agentRow `json:"agents"`
	// Counts contains the number of agents in each state.
	Counts map[string]int `json:"counts"`
	// Warning is set if no manager is the leader, because the states are out of date in that case.
	Warning string `json:"warning,omitempty"`
}

// agentRow is the agent of one Cluster.
type agentRow struct {
	Workspace string `json:"workspace"`
	Cluster   string `json:"cluster"`
	Version   string `json:"version,omitempty"`
	Image     string `json:"image,omitempty"`
	// WantedImage is the image that the agent should run, if it differs from the current image.
	WantedImage string `json:"wantedImage,omitempty"`
	State       string `json:"state"`
	// Message explains why the agent is not up to date.
	Message string `json:"message,omitempty"`
	// Wave is the wave in which the agent's last upgrade started.
	Wave string `json:"wave,omitempty"`
}

// NewList returns the command "agents".
func NewList(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "agents", Short: "List agents and the progress of their upgrade",
		Long: `List agents and the progress of their upgrade.

The state of an agent is one of:

  current    the agent has the wanted Deployment
  waiting    the agent is not yet due to be upgraded
  upgrading  the upgrade is in progress
  failed     the upgrade failed: the agent restored its previous Deployment, or did not reconnect
  degraded   the agent is connected, but some pods of its Deployment are not ready
  unmanaged  the hub cannot change the agent
  away       the agent is not connected; the last known values are shown
  absent     no agent has joined`,
		Example: "  kubectl drover agents -A\n  kubectl drover agents -w team-a -o json",
	}
	c.AddCommand(newPause(o), newResume(o))
	namespace := ""
	c.Flags().StringVar(&namespace, "manager-namespace", "drover-system", "The namespace of the manager")
	cli.Complete(c, "manager-namespace", o.CompleteWorkspaces)
	return o.Listing(c, func(ctx context.Context, h *cli.Hub) (cli.List, error) {
		list, err := readAgents(ctx, h)
		if err == nil {
			list.Warning = staleness(ctx, h, namespace)
		}
		return list, err
	})
}

// staleness returns a warning if no manager is the leader. If the user's rights do not allow the plugin to determine
// this, staleness returns no warning.
func staleness(ctx context.Context, h *cli.Hub, namespace string) string {
	lease := &coordinationv1.Lease{}
	if coordinationv1.AddToScheme(h.Scheme()) != nil ||
		h.Get(ctx, client.ObjectKey{Namespace: namespace, Name: managerName}, lease) != nil {
		return ""
	}
	if leader := leaderOf(lease, clockOf(ctx, h.Config)); !leader.Alive {
		return "no manager leads: these states are out of date: see \"kubectl drover status\""
	}
	return ""
}

// readAgents reads the agents of a workspace, or of all workspaces if h.Workspace is empty.
func readAgents(ctx context.Context, h *cli.Hub) (agentList, error) {
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, client.InNamespace(h.Workspace)); err != nil {
		return agentList{}, fmt.Errorf("list clusters of %s: %w", cmp.Or(h.Workspace, "all workspaces"), err)
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
		row.State, row.Message = agentFailed, "The agent did not reconnect in time after its Deployment was changed"
	}
	if connected := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionConnected); connected != nil && connected.Status == "False" && row.State != agentFailed {
		row.State, row.Message = agentAway, connected.Message
	}
	if row.State == agentCurrent {
		row.Message = ""
	}
	row.State = cmp.Or(row.State, agentUpgrading) // a newer hub may report other reasons
	return row
}

// agentStates maps the reasons of the condition AgentUpToDate to states.
var agentStates = map[string]string{
	v1.ReasonAgentUpdated: agentCurrent, v1.ReasonAgentWaiting: agentWaiting, v1.ReasonAgentUpdating: agentUpgrading, v1.ReasonAgentRolledBack: agentFailed,
	v1.ReasonAgentRejected: agentFailed, v1.ReasonAgentNotReady: agentDegraded, v1.ReasonAgentProfileDiffers: agentUnmanaged, v1.ReasonAgentUnmanaged: agentUnmanaged,
	v1.ReasonNodeAgentsMissing: agentUnmanaged,
}

// Names returns the names of the agents' Clusters.
func (l agentList) Names() []string {
	return cli.Map(l.Agents, func(a agentRow) string { return a.Workspace + "/" + a.Cluster })
}

// Text formats a table for users, followed by the number of agents in each state.
func (l agentList) Text() string {
	line := strings.NewReplacer("\t", " ", "\n", " ")
	var rows [][]string
	for _, a := range l.Agents {
		cells := []string{a.Workspace, a.Cluster, a.Version, a.Image, a.WantedImage, a.State, a.Wave, a.Message}
		for i, cell := range cells {
			cells[i] = line.Replace(cell)
		}
		rows = append(rows, cells)
	}
	var b strings.Builder
	b.WriteString(cli.Table("WORKSPACE\tCLUSTER\tVERSION\tIMAGE\tWANTED\tSTATE\tWAVE\tMESSAGE", rows))
	cli.Say(&b, "\n%s\n", counted(l.Counts, agentStateOrder()))
	if l.Warning != "" {
		cli.Say(&b, "Warning: %s\n", l.Warning)
	}
	return b.String()
}
