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

// reachable is the list of Clusters that the user can reach, as returned by the hub's /v1/clusters.
type reachable struct {
	Items []reachableCluster `json:"items"`
	// Incomplete reports whether the list may be incomplete.
	Incomplete bool `json:"incomplete,omitempty"`
}

type reachableCluster struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Ready     string `json:"ready"`
	Reason    string `json:"reason,omitempty"`
	Version   string `json:"version,omitempty"`
	// Direct is the Cluster's own address. Users can use it to reach the Cluster without the hub. It is nil if the
	// Cluster has no such address.
	Direct *directAccess `json:"direct,omitempty"`
}

func (c reachableCluster) String() string { return c.Namespace + "/" + c.Name }

// NewClusters returns the command "clusters".
func NewClusters(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use: "clusters", Short: "List the Clusters that you can reach",
		Long: `List the Clusters that you may reach, in all workspaces or in one. It takes no right on the hub but that to reach them: a binding, or get on clusters/proxy.`,
		Args: cli.NoArguments, PreRunE: func(*cobra.Command, []string) error { return o.CheckListOutput() },
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := cli.Bounded(c.Context())
			defer cancel()
			list, err := o.reachable(ctx, o.Workspace, o.selector)
			if err != nil {
				return err
			}
			if o.PrintsOnlyItems() && len(list.Items) == 0 {
				c.PrintErr(list.text(o.Workspace, o.selector))
			}
			return o.Print(c.OutOrStdout(), list, func() string { return list.text(o.Workspace, o.selector) })
		},
	}
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "", "List one workspace only, a namespace of the hub")
	o.bindSelector(c)
	o.BindListOutput(c)
	cli.Complete(c, "workspace", o.completeReachable(func(c reachableCluster) []string { return []string{c.Namespace} }))
	return c
}

// reachable returns the Clusters that the user can reach. The list comes from the hub's proxy. If the user has not
// signed in and the kubeconfig points to the hub's API server, the list comes from that API server.
func (o *options) reachable(ctx context.Context, workspace, selector string) (reachable, error) {
	session, p, err := sessionOrPlain(ctx, o)
	if err != nil {
		return reachable{}, err
	}
	if p != nil {
		if session, err = p.session(o.UserAgent()); err != nil {
			return p.clusters(ctx, workspace, selector)
		}
	}
	return clustersOf(ctx, session, workspace, selector)
}

// bindSelector adds the flag that selects Clusters by label.
func (o *options) bindSelector(c *cobra.Command) {
	c.Flags().StringVarP(&o.selector, "selector", "l", "", "A label selector for Clusters, for example env=prod")
}

// clustersOf asks a hub for the Clusters that the user can reach. If workspace is empty, it requests Clusters in all
// workspaces. If selector is empty, it requests all Clusters.
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
	for _, c := range list.Items { // the names become part of URLs and of the kubeconfig
		if len(validation.IsDNS1123Label(c.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(c.Name)) > 0 {
			return list, fmt.Errorf("the hub %s returned an invalid Cluster name %q: contact its administrator", session.Issuer,
				c)
		}
	}
	return list, nil
}

// Names returns the names that commands such as "use" accept.
func (l reachable) Names() []string { return cli.Map(l.Items, reachableCluster.String) }

// Text formats a table of all Clusters.
func (l reachable) Text() string { return l.text("", "") }

// Wide formats a table with the addresses for direct access.
func (l reachable) Wide() string {
	var rows [][]string
	for _, c := range l.Items {
		direct := ""
		if c.Direct != nil {
			direct = c.Direct.Server
		}
		rows = append(rows, cli.PlainCells(c.Namespace, c.Name, c.Ready, c.Reason, c.Version, direct))
	}
	return cli.Table("WORKSPACE\tNAME\tREADY\tREASON\tVERSION\tDIRECT", rows)
}

func (l reachable) text(workspace, selector string) string {
	table := cli.Table("WORKSPACE\tNAME\tREADY\tREASON\tVERSION", cli.Map(l.Items, func(c reachableCluster) []string {
		return cli.PlainCells(c.Namespace, c.Name, c.Ready, c.Reason, c.Version)
	}))
	if len(l.Items) == 0 && (!l.Incomplete || workspace != "") {
		table = noClusters(workspace, selector)
	}
	switch {
	case l.Incomplete && workspace == "":
		table += "\nThe list may be incomplete, because the hub could not check all of your rights. Select a workspace with -w.\n"
	case l.Incomplete:
		table += "\nThe list may be incomplete, because the hub could not check all of your rights.\n"
	}
	return table
}

// noClusters returns a message that no Cluster was found. It does not reveal whether the workspace exists, because
// users without rights there must not learn that.
func noClusters(workspace, selector string) string {
	what := "any Cluster"
	if selector != "" {
		what += " with the labels " + cli.Plain(selector)
	}
	if workspace != "" {
		return fmt.Sprintf("You cannot reach %s in workspace %s: it does not exist, or has none that you may reach. "+
			"\"kubectl drover clusters\" lists the Clusters of all workspaces.\n", what, cli.Plain(workspace))
	}
	if selector != "" {
		return "You cannot reach " + what + ".\n"
	}
	return "You cannot reach any Cluster: ask an administrator for a binding.\n"
}

// reachableOf requests the Clusters that the arguments may refer to. For an argument that includes a workspace, it
// queries only that workspace, because the hub then takes more of the user's rights into account.
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

// choose returns the Clusters that the arguments refer to. An argument has the form WORKSPACE/NAME, or only NAME if a
// single workspace has a Cluster with that name.
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
			problem := fmt.Errorf("you cannot reach a Cluster %s: \"kubectl drover clusters\" lists the Clusters that you can "+
				"reach", cli.Visible(name))
			if l.Incomplete && !strings.Contains(name, "/") {
				problem = fmt.Errorf("%w; the list may be incomplete: use the form WORKSPACE/NAME", problem)
			}
			return nil, problem
		case 1:
			chosen = append(chosen, found[0])
		default:
			return nil, fmt.Errorf("several workspaces have a Cluster %s: use %s", cli.Visible(name), joined(found))
		}
	}
	return chosen, nil
}

func joined(clusters []reachableCluster) string {
	return strings.Join(cli.Map(clusters, reachableCluster.String), " or ")
}

// completeReachable completes arguments. words returns the completions for each Cluster that the user can reach.
func (o *options) completeReachable(words func(reachableCluster) []string) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
		defer cancel()
		list, err := o.reachable(ctx, "", "")
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
