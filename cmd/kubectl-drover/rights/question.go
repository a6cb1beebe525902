// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights contains the commands that show what users and groups may do in a member, and why.
//
// It evaluates the hub's objects and queries the member itself.
package rights

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
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
	flags.StringVar(&o.cluster, "cluster", "", "The member, a Cluster of the workspace (required)")
	flags.StringVarP(&o.namespace, "namespace", "n", "",
		"A namespace of the member (default: all namespaces, or none for cluster-scoped resources)")
	flags.StringVar(&o.subresource, "subresource", "", "A subresource, such as log or scale")
	o.BindMemberContext(c, &o.memberContext, "A kubeconfig context that connects to the member, directly or through the hub")
	o.BindWorkspace(c)
	o.BindOutput(c)
	c.MarkFlagsOneRequired("cluster") // shells offer required flags
	// check must run before cobra's check of required flags, because cobra's message is less helpful
	c.PreRunE = func(*cobra.Command, []string) error { return o.check() }
	cli.Complete(c, "namespace", o.completeNamespaces)
	cli.Complete(c, "subresource", cli.Offer("log", "exec", "scale", "status"))
	cli.Complete(c, "cluster", o.CompleteNames("Cluster"))
}

// check rejects invalid flag values.
func (o *options) check() error {
	if o.cluster == "" {
		return errors.New("no member is given: " +
			"set --cluster to a Cluster of the workspace; \"kubectl get clusters\" lists them")
	}
	return o.CheckOutput()
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
	var found []string
	for i := range list.Items {
		found = append(found, list.Items[i].Name)
	}
	return found
}

// completeAction completes verbs for the argument at position verbAt, and resources for the next argument.
func completeAction(verbAt int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case verbAt:
			return cli.Beginning(start, []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"})
		case verbAt + 1:
			return cli.Beginning(start, []string{"pods", "deployments.apps", "services", "secrets", "configmaps", "namespaces", "nodes"})
		}
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
}
