// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights contains the commands that show what users and groups may do in a member, and why.
//
// It evaluates the hub's objects and queries the member itself.
package rights

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// options holds the flags that "why" and "who-can" share.
type options struct {
	*cli.Options

	cluster       string
	memberContext string
	namespace     string
	subresource   string
	groups        []string
	kind          string
}

// bind adds the flags for the output format and for the place where the action occurs.
func (o *options) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.cluster, "cluster", "", "The member, as NAME or WORKSPACE/NAME; it can also be the last argument")
	flags.StringVarP(&o.namespace, "namespace", "n", "",
		"A namespace of the member (default: all namespaces, or none for cluster-scoped resources)")
	flags.StringVar(&o.subresource, "subresource", "", "A subresource, such as log or scale")
	o.BindMemberContext(c, &o.memberContext, "A kubeconfig context that connects to the member, directly or through the hub")
	o.BindWorkspace(c)
	o.BindOutput(c)
	cli.Complete(c, "namespace", o.completeNamespaces)
	cli.Complete(c, "subresource", cli.Offer("log", "exec", "scale", "status"))
	cli.Complete(c, "cluster", o.CompleteNames("Cluster"))
}

// require makes a command require n arguments and a member. The member is specified with --cluster or as an additional
// argument.
func (o *options) require(c *cobra.Command, n int, names string) {
	c.Args = func(c *cobra.Command, args []string) error {
		if o.cluster == "" && len(args) == n+1 && args[n] != "" {
			return nil
		}
		return cli.Arguments(n, names)(c, args)
	}
	c.PreRunE = func(c *cobra.Command, args []string) error {
		if len(args) > n {
			o.cluster = args[n]
		}
		if o.cluster == "" {
			return fmt.Errorf("no member is given: name a Cluster, as in \"%s %s --cluster CLUSTER\"; \"kubectl drover "+
				"clusters\" lists the Clusters that you can reach", c.CommandPath(), cli.Visible(strings.Join(args, " ")))
		}
		if err := o.TakeWorkspace(&o.cluster); err != nil {
			return err
		}
		return o.CheckOutput()
	}
}

// locate selects the workspace of the member. If the user names no workspace, and the workspace of the hub's context
// does not contain the Cluster, locate selects the other workspace that contains the Cluster, if there is exactly one.
func (o *options) locate(ctx context.Context, h *cli.Hub) error {
	key := client.ObjectKey{Namespace: h.Workspace, Name: o.cluster}
	if o.Workspace != "" || !apierrors.IsNotFound(h.Get(ctx, key, &v1.Cluster{})) {
		return nil
	}
	var all v1.ClusterList
	if h.List(ctx, &all, client.MatchingFields{"metadata.name": o.cluster}) != nil {
		return nil // the user may list only some workspaces; gather reports that the Cluster is not in this one
	}
	if len(all.Items) > 1 {
		names := cli.Map(all.Items, func(c v1.Cluster) string { return client.ObjectKeyFromObject(&c).String() })
		return fmt.Errorf("several workspaces have a Cluster %s: use %s", cli.Visible(o.cluster), strings.Join(names, " or "))
	}
	if len(all.Items) == 1 {
		h.Workspace = all.Items[0].Namespace
	}
	return nil
}

// completeNamespaces completes namespaces in the member that --cluster specifies.
func (o *options) completeNamespaces(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
	defer cancel()
	return cli.Beginning(start, o.memberNamespaces(ctx))
}

func (o *options) memberNamespaces(ctx context.Context) []string {
	h, err := o.HubToRead()
	if err != nil {
		return nil
	}
	g := &gathered{cluster: &v1.Cluster{}}
	if err := h.Get(ctx, client.ObjectKey{Namespace: h.Workspace, Name: o.cluster}, g.cluster); err != nil {
		return nil
	}
	m, err := o.reach(ctx, h, g)
	if err != nil {
		return nil
	}
	list, err := m.core.Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil
	}
	return cli.Map(list.Items, func(n corev1.Namespace) string { return n.Name })
}

// completeAction completes verbs for the argument at position verbAt, resources for the next argument, and then
// Clusters.
func (o *options) completeAction(verbAt int) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case verbAt:
			return cli.Beginning(start, []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})
		case verbAt + 1:
			return cli.Beginning(start, []string{"pods", "deployments.apps", "services", "secrets", "configmaps", "namespaces", "nodes"})
		case verbAt + 2:
			if o.cluster == "" {
				return o.CompleteNames("Cluster")(c, args, start)
			}
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
