// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baselines contains the commands that show the state and the history of Baselines, and that approve, pause,
// resume and roll back Baselines.
package baselines

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// New returns the command "baseline".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "baseline",
		Short: "Show Baselines and their history, approve, pause, resume and roll them back"}
	c.AddCommand(newList(o), newStatus(o), newHistory(o), newRollback(o), newPause(o), newResume(o),
		newApprove(o))
	return c
}

// pageSize is the number of Baselines that are read at once. The manifests of a Baseline can have a size of up to 1
// MiB.
const pageSize = 20

// baselineList is the output of the command "baseline list".
type baselineList struct {
	Baselines []baselineRow `json:"baselines"`
}

type baselineRow struct {
	Workspace string          `json:"workspace"`
	Name      string          `json:"name"`
	Role      string          `json:"role"`
	Clusters  v1.ClusterCount `json:"clusters"`
	Ready     string          `json:"ready"`
	Reason    string          `json:"reason,omitempty"`
	Revision  string          `json:"revision,omitempty"`
	// Objects is the number of objects in the revision.
	Objects int32 `json:"objects"`
	// Message explains the reason.
	Message string `json:"message,omitempty"`
}

func newList(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List Baselines and their states"}
	return o.Listing(c, func(ctx context.Context, h *cli.Hub) (cli.List, error) { return listBaselines(ctx, h) })
}

// listBaselines reads the Baselines of a workspace, or of all workspaces if h.Workspace is empty.
func listBaselines(ctx context.Context, h *cli.Hub) (baselineList, error) {
	list := baselineList{Baselines: []baselineRow{}}
	for next := ""; ; {
		var page v1.BaselineList
		options := &client.ListOptions{Namespace: h.Workspace, Limit: pageSize, Continue: next}
		if err := h.List(ctx, &page, options); err != nil {
			return baselineList{}, fmt.Errorf("list baselines of %s: %w", cmp.Or(h.Workspace, "all workspaces"), err)
		}
		for i := range page.Items {
			list.Baselines = append(list.Baselines, rowOf(&page.Items[i]))
		}
		if next = page.Continue; next == "" {
			return list, nil
		}
	}
}

func rowOf(b *v1.Baseline) baselineRow {
	row := baselineRow{Workspace: b.Namespace, Name: b.Name, Role: b.Spec.RoleTemplateName, Ready: "Unknown",
		Clusters: countOf(b), Revision: b.Status.Revision, Objects: b.Status.Objects}
	if ready := meta.FindStatusCondition(b.Status.Conditions, v1.ConditionReady); ready != nil {
		row.Ready, row.Reason, row.Message = string(ready.Status), ready.Reason, ready.Message
	}
	return row
}

func countOf(b *v1.Baseline) v1.ClusterCount {
	if b.Status.Clusters == nil {
		return v1.ClusterCount{Summary: "0/0"}
	}
	return *b.Status.Clusters
}

// Names returns the names of the Baselines.
func (l baselineList) Names() []string {
	return cli.Map(l.Baselines, func(r baselineRow) string { return r.Name })
}

// Text formats a table for users.
func (l baselineList) Text() string { return l.table(false) }

// Wide formats a table with the number of objects and the message of each Baseline.
func (l baselineList) Wide() string { return l.table(true) }

func (l baselineList) table(wide bool) string {
	header, rows := "WORKSPACE\tNAME\tROLE\tCLUSTERS\tREADY\tREASON\tREVISION", [][]string{}
	if wide {
		header += "\tOBJECTS\tFAILED\tMESSAGE"
	}
	for _, r := range l.Baselines {
		cells := []string{r.Workspace, r.Name, r.Role, r.Clusters.Summary, r.Ready, r.Reason, r.Revision}
		if wide {
			cells = append(cells, strconv.Itoa(int(r.Objects)), strconv.Itoa(int(r.Clusters.Failed)), r.Message)
		}
		rows = append(rows, cli.PlainCells(cells...))
	}
	return cli.Table(header, rows)
}

func readBaseline(ctx context.Context, h *cli.Hub, name string) (*v1.Baseline, error) {
	b := &v1.Baseline{}
	err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: name}, b)
	switch {
	case apierrors.IsNotFound(err):
		return nil, fmt.Errorf("read baseline %s/%s: %w: use another workspace with -w", h.Workspace, cli.Visible(name), err)
	case meta.IsNoMatchError(err):
		return nil, fmt.Errorf("read baseline %s/%s at %s: this hub has no Baselines: select another one with "+
			"--kubeconfig or --context", h.Workspace, cli.Visible(name), h.Config.Host)
	case err != nil:
		return nil, fmt.Errorf("read baseline %s/%s: %w", h.Workspace, cli.Visible(name), err)
	}
	return b, nil
}

// named completes a command whose argument is the name of a Baseline.
func named(o *cli.Options, c *cobra.Command) *cobra.Command {
	c.Args = cli.Arguments(1, "NAME")
	c.ValidArgsFunction = cli.First(o.CompleteNames("Baseline"))
	o.BindWorkspace(c)
	return c
}

func newPause(o *cli.Options) *cobra.Command {
	return pausing(o, true, &cobra.Command{
		Use: "pause NAME", Short: "Have no further members receive a new revision of a Baseline",
		Long: `Have no further members receive a new revision of a Baseline. Members that have begun finish, and
members that join receive the last complete revision. It sets spec.paused, which has no effect
without spec.rollout.`,
		Example: "  kubectl drover baseline pause flux -w team-a",
	})
}

func newResume(o *cli.Options) *cobra.Command {
	return pausing(o, false, &cobra.Command{
		Use: "resume NAME", Short: "Have the rollout of a paused Baseline go on",
		Long:    `Have the rollout of a paused Baseline go on. It unsets spec.paused.`,
		Example: "  kubectl drover baseline resume flux -w team-a",
	})
}

// pausing completes a command that sets spec.paused in a Baseline.
func pausing(o *cli.Options, paused bool, c *cobra.Command) *cobra.Command {
	read := func(ctx context.Context, h *cli.Hub, name string) (client.Object, *bool, error) {
		b, err := readBaseline(ctx, h, name)
		if err != nil {
			return nil, nil, err
		}
		if paused && b.Spec.Rollout == nil {
			c.PrintErrf("Warning: baseline %s/%s has no rollout, so all members receive a change at once even if it is "+
				"paused.\n", b.Namespace, b.Name)
		}
		return b, &b.Spec.Paused, nil
	}
	return cli.Pausing(o, named(o, c), paused, read)
}
