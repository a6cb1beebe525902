// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// reachable is the list of the Clusters that the user may reach, as the hub's /v1/clusters returns it.
type reachable struct {
	Items []reachableCluster `json:"items"`
	// Incomplete reports whether there may be others.
	Incomplete bool `json:"incomplete,omitempty"`
}

type reachableCluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Ready     string `json:"ready"`
	Reason    string `json:"reason,omitempty"`
	Version   string `json:"version,omitempty"`
	// Direct is the address at which the Cluster is reached without the hub, or nil.
	Direct *directAccess `json:"direct,omitempty"`
}

func (c reachableCluster) String() string { return c.Namespace + "/" + c.Name }

// NewClusters makes the command "clusters".
func NewClusters(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use: "clusters", Short: "List the Clusters that you may reach",
		Long: `List the Clusters that you may reach, in all workspaces or in one. It takes no right on the hub but that to reach them: a binding, or get on clusters/proxy.`,
		Args: cobra.NoArgs, PreRunE: func(*cobra.Command, []string) error { return o.CheckOutput() },
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := cli.Bounded(c.Context())
			defer cancel()
			session, err := o.signedIn(ctx)
			if err != nil {
				return err
			}
			list, err := clustersOf(ctx, session, o.Workspace, o.selector)
			if err != nil {
				return err
			}
			return o.Print(c.OutOrStdout(), list, func() string { return list.text(o.Workspace, o.selector) })
		},
	}
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "", "One workspace only: a namespace of the hub")
	o.bindSelector(c)
	o.BindOutput(c)
	cli.Complete(c, "workspace", o.completeReachable(func(c reachableCluster) []string { return []string{c.Namespace} }))
	o.bindHub(c)
	return c
}

// bindSelector adds the flag that chooses Clusters by their labels.
func (o *options) bindSelector(c *cobra.Command) {
	c.Flags().StringVarP(&o.selector, "selector", "l", "", "Only Clusters with these labels, for example env=prod")
}

// clustersOf asks a hub for the Clusters that its user may reach, in one workspace or all, and with some labels or any.
func clustersOf(ctx context.Context, session *login.Session, workspace, selector string) (reachable, error) {
	list, query := reachable{}, url.Values{}
	if workspace != "" {
		query.Set("namespace", workspace)
	}
	if selector != "" {
		query.Set("labelSelector", selector)
	}
	if err := askHub(ctx, session, strings.TrimSuffix("/v1/clusters?"+query.Encode(), "?"), &list); err != nil {
		return list, err
	}
	for _, c := range list.Items { // they become part of URLs and of the kubeconfig
		if len(validation.IsDNS1123Label(c.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(c.Name)) > 0 {
			return list, fmt.Errorf("the hub %s names a Cluster %q, which cannot be: tell its administrator", session.Issuer, c)
		}
	}
	return list, nil
}

// text is the table for a person.
func (l reachable) text(workspace, selector string) string {
	var rows [][]string
	for _, c := range l.Items {
		rows = append(rows, cli.PlainCells(c.Namespace, c.Name, c.Ready, c.Reason, c.Version))
	}
	table := cli.Table("WORKSPACE\tNAME\tREADY\tREASON\tVERSION", rows)
	switch {
	case len(l.Items) == 0 && !l.Incomplete && selector != "":
		return "You may reach no Cluster with the labels " + cli.Plain(selector) + ".\n"
	case len(l.Items) == 0 && !l.Incomplete:
		return "You may reach no Cluster: ask for a binding to you.\n"
	case l.Incomplete && workspace == "":
		table += "\nThere may be others: the hub could not look at all that gives you a right. Name a workspace with -w.\n"
	case l.Incomplete:
		table += "\nThere may be others: the hub could not look at all that gives you a right.\n"
	}
	return table
}

// reachableOf asks for the Clusters that arguments may name. For an argument with a workspace it asks for that
// workspace alone: the hub is more thorough then.
func reachableOf(ctx context.Context, session *login.Session, names []string) (reachable, error) {
	var all reachable
	asked := map[string]bool{}
	for _, name := range names {
		workspace, _, found := strings.Cut(name, "/")
		if !found {
			workspace = ""
		}
		if asked[workspace] {
			continue
		}
		asked[workspace] = true
		list, err := clustersOf(ctx, session, workspace, "")
		if err != nil {
			return all, err
		}
		all.Items = append(all.Items, list.Items...)
		all.Incomplete = all.Incomplete || list.Incomplete
	}
	slices.SortFunc(all.Items, func(a, b reachableCluster) int { return cmp.Compare(a.String(), b.String()) })
	all.Items = slices.CompactFunc(all.Items, func(a, b reachableCluster) bool { return a.String() == b.String() })
	return all, nil
}

// choose returns the Clusters that arguments name, as WORKSPACE/NAME, or as NAME if only one workspace has it.
func (l reachable) choose(names []string) ([]reachableCluster, error) {
	var chosen []reachableCluster
	for _, name := range names {
		var found []reachableCluster
		for _, c := range l.Items {
			if c.Name == name || c.String() == name {
				found = append(found, c)
			}
		}
		switch len(found) {
		case 0:
			problem := fmt.Errorf("you may reach no Cluster %s: \"kubectl drover clusters\" lists those that you may", cli.Visible(name))
			if l.Incomplete && !strings.Contains(name, "/") {
				problem = fmt.Errorf("%w; there may be others: name one as WORKSPACE/NAME", problem)
			}
			return nil, problem
		case 1:
			chosen = append(chosen, found[0])
		default:
			return nil, fmt.Errorf("several workspaces have a Cluster %s: name one as %s", cli.Visible(name), joined(found))
		}
	}
	return chosen, nil
}

func joined(clusters []reachableCluster) string {
	var names []string
	for _, c := range clusters {
		names = append(names, c.String())
	}
	return strings.Join(names, " or ")
}

// completeReachable offers words for each Cluster that the user may reach.
func (o *options) completeReachable(words func(reachableCluster) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
		defer cancel()
		session, err := o.signedIn(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := clustersOf(ctx, session, "", "")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var found []string
		for _, c := range list.Items {
			found = append(found, words(c)...)
		}
		return cli.Beginning(start, slices.DeleteFunc(found, func(word string) bool { return slices.Contains(args, word) }))
	}
}
