// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package projects contains the commands for Projects, which group namespaces in members.
package projects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// New returns the command "project".
func New(o *cli.Options) *cobra.Command {
	c := &cobra.Command{Use: "project", Short: "Create projects, add namespaces to them, and list them"}
	c.AddCommand(newCreate(o), newAdd(o), newList(o))
	return c
}

// creating holds the flags of "project create".
type creating struct {
	cluster    string
	selector   string
	namespaces []string
}

func newCreate(o *cli.Options) *cobra.Command {
	var f creating
	c := &cobra.Command{
		Use: "create NAME {--cluster CLUSTER | --selector LABELS}", Short: "Create a project in members",
		Long: `Create a project in members. Its namespaces are created in each member, or join the project if
they exist. Quotas and other settings are fields of the Project: see "kubectl explain project.spec".`,
		Example: `  kubectl drover project create web --cluster prod-eu --namespaces web,web-db
  kubectl drover project create web -l env=prod --namespaces web --dry-run=client -o yaml`,
		Args: cli.Arguments(1, "a name for the Project"),
	}
	change := cli.BindChange(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
			p, err := f.project(h.Workspace, args[0])
			if err != nil {
				return err
			}
			err = change.Check(ctx, c, func(ctx context.Context) (cli.Checked, error) { return f.check(ctx, h) })
			if err != nil {
				return err
			}
			err = change.Make(h, p, "created", func(w client.Client) error { return w.Create(ctx, p) })
			if apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create Project %s/%s: it exists: add namespaces with \"kubectl drover project "+
					"add-namespace\"", h.Workspace, cli.Visible(args[0]))
			}
			return err
		})
	}
	o.BindWorkspace(c)
	c.Flags().StringVar(&f.cluster, "cluster", "", "The member, a Cluster of the workspace")
	c.Flags().StringVarP(&f.selector, "selector", "l", "", "All members with these labels, for example env=prod")
	c.Flags().StringSliceVar(&f.namespaces, "namespaces", nil, "Namespaces of the project, separated by commas")
	c.MarkFlagsOneRequired("cluster", "selector")
	c.MarkFlagsMutuallyExclusive("cluster", "selector")
	cli.Complete(c, "cluster", o.CompleteNames("Cluster"))
	return c
}

// project returns the Project that the flags describe.
func (f creating) project(workspace, name string) (*v1.Project, error) {
	p := &v1.Project{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}}
	p.Spec.Namespaces = f.namespaces
	if f.selector == "" {
		p.Spec.ClusterName = f.cluster
		return p, nil
	}
	chosen, err := metav1.ParseToLabelSelector(f.selector)
	if err != nil {
		return nil, fmt.Errorf("read --selector: %w", err)
	}
	p.Spec.ClusterSelector = chosen
	return p, nil
}

// check reports a Cluster that does not exist, because the hub would accept a Project that refers to a missing Cluster.
func (f creating) check(ctx context.Context, h *cli.Hub) (found cli.Checked, err error) {
	if f.cluster == "" {
		return found, nil
	}
	name := "Cluster " + h.Workspace + "/" + cli.Visible(f.cluster)
	err = h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: f.cluster}, &v1.Cluster{})
	switch {
	case apierrors.IsForbidden(err):
		found.Unread = append(found.Unread, name)
	case apierrors.IsNotFound(err):
		found.Mistakes = append(found.Mistakes, fmt.Sprintf("read %s: %v: use another workspace with -w", name, err))
	case err != nil:
		return found, fmt.Errorf("read %s: %w", name, err)
	}
	return found, nil
}

func newAdd(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "add-namespace PROJECT NAMESPACE...", Short: "Add namespaces to a project",
		Long: `Add namespaces to a project. In each member of the project, they are created, or join the project
if they exist. It requires the verb "manage-namespaces" on the Project.`,
		Example: "  kubectl drover project add-namespace web web-cache -w team-a",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("kubectl drover project add-namespace requires PROJECT and one NAMESPACE or more")
			}
			return nil
		},
		ValidArgsFunction: func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return o.CompleteNames("Project")(c, args, start)
		},
	}
	change := cli.BindChange(c)
	c.RunE = func(c *cobra.Command, args []string) error {
		return o.OnHub(c, cli.CommandLimit, func(ctx context.Context, h *cli.Hub) error {
			return addNamespaces(ctx, h, change, args)
		})
	}
	o.BindWorkspace(c)
	return c
}

func addNamespaces(ctx context.Context, h *cli.Hub, change *cli.Change, args []string) error {
	p := &v1.Project{}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: args[0]}, p); err != nil {
		return fmt.Errorf("read Project %s/%s: %w", h.Workspace, cli.Visible(args[0]), err)
	}
	before, done := p.DeepCopy(), "unchanged"
	for _, name := range args[1:] {
		if !slices.Contains(p.Spec.Namespaces, name) {
			p.Spec.Namespaces, done = append(p.Spec.Namespaces, name), "configured"
		}
	}
	return change.Make(h, p, done, func(w client.Client) error {
		return w.Patch(ctx, p, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

type projectRow struct {
	Workspace  string   `json:"workspace"`
	Name       string   `json:"name"`
	Ready      string   `json:"ready,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	Clusters   string   `json:"clusters,omitempty"`
	Namespaces []string `json:"namespaces,omitempty"`
}

type projectList struct {
	Projects []projectRow `json:"projects"`
}

// Names returns the names of the Projects.
func (l projectList) Names() []string {
	return cli.Map(l.Projects, func(p projectRow) string { return p.Name })
}

func newList(o *cli.Options) *cobra.Command {
	c := &cobra.Command{
		Use: "list", Short: "List projects", Example: "  kubectl drover project list -A",
	}
	return o.Listing(c, func(ctx context.Context, h *cli.Hub) (cli.List, error) {
		var found v1.ProjectList
		if err := h.List(ctx, &found, client.InNamespace(h.Workspace)); err != nil {
			return nil, fmt.Errorf("list Projects of %s: %w", cmp.Or(h.Workspace, "all workspaces"), err)
		}
		list := projectList{Projects: []projectRow{}}
		for i := range found.Items {
			p := &found.Items[i]
			row := projectRow{Workspace: p.Namespace, Name: p.Name, Namespaces: p.Spec.Namespaces}
			if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready != nil {
				row.Ready, row.Reason = string(ready.Status), ready.Reason
			}
			if p.Status.Clusters != nil {
				row.Clusters = p.Status.Clusters.Summary
			}
			list.Projects = append(list.Projects, row)
		}
		return list, nil
	})
}

// Text formats a table for users.
func (l projectList) Text() string {
	var rows [][]string
	for _, p := range l.Projects {
		namespaces := fmt.Sprint(len(p.Namespaces))
		if len(p.Namespaces) > 0 && len(p.Namespaces) <= maxShown {
			namespaces = strings.Join(p.Namespaces, ",")
		}
		rows = append(rows, cli.PlainCells(p.Workspace, p.Name, p.Ready, p.Reason, p.Clusters, namespaces))
	}
	return cli.Table("WORKSPACE\tNAME\tREADY\tREASON\tCLUSTERS\tNAMESPACES", rows)
}

// maxShown is the maximum number of namespaces that a table lists for a project.
const maxShown = 5
