// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rights answers who may do what in a member, and why: from the objects of the hub, and from the member itself.
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

// options are the flags of a question.
type options struct {
	*cli.Options

	cluster       string
	memberContext string
	namespace     string
	subresource   string
	groups        []string
	kind          string
}

// bind adds the flags that say where something is done, and in which form the answer is printed.
func (o *options) bind(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.cluster, "cluster", "", "The member: the name of a Cluster in the workspace (required)")
	flags.StringVarP(&o.namespace, "namespace", "n", "",
		"A namespace of the member; without it, all namespaces, or what is in none")
	flags.StringVar(&o.subresource, "subresource", "", "The subresource, such as log or scale")
	flags.StringVar(&o.memberContext, "member-context", "",
		"A context of the kubeconfig that leads to the member, through the hub or not")
	o.BindWorkspace(c)
	o.BindOutput(c)
	c.MarkFlagsOneRequired("cluster")                                     // makes shells offer it
	c.PreRunE = func(*cobra.Command, []string) error { return o.check() } // before cobra's own message about it
	cli.Complete(c, "namespace", o.completeNamespaces)
	cli.Complete(c, "subresource", cli.Offer("log", "exec", "scale", "status"))
	cli.Complete(c, "member-context", o.CompleteContexts)
	cli.Complete(c, "cluster", o.CompleteNames("Cluster"))
}

// check rejects invalid values of flags.
func (o *options) check() error {
	if o.cluster == "" {
		return errors.New("it is not said in which member: " +
			"give --cluster NAME, a Cluster of the workspace as \"kubectl get clusters\" lists them")
	}
	return o.CheckOutput()
}

// completeNamespaces offers the namespaces of the member that --cluster names.
func (o *options) completeNamespaces(c *cobra.Command, _ []string, start string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(c.Context(), cli.CompletionLimit)
	defer cancel()
	return cli.Beginning(start, o.memberNamespaces(ctx))
}

func (o *options) memberNamespaces(ctx context.Context) []string {
	h, err := o.Hub()
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

// completeAction offers verbs for one argument, and resources for the next.
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
