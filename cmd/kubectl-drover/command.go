// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// options are the values of the flags.
type options struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides

	workspace     string
	selector      string
	cluster       string
	memberContext string
	output        string

	namespace   string
	subresource string
	groups      []string
	kind        string

	issuer string // the URL of a hub where the user is signed in
	direct bool   // a token for the own address of the Cluster is meant
}

// newCommand is "kubectl drover".
func newCommand() *cobra.Command {
	o := &options{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-drover",
		Short: "Sign in at a hub, use its member clusters, and say who may do what in them, and why, and how plans and agents go",
		Long: `Sign in at a hub, use its member clusters, and say who may do what in them, and why, and how plans and agents go.

The hub is the cluster of your kubeconfig. The workspace is the context's namespace, or --workspace. A member is asked too, if an entry of your
kubeconfig leads to a member through the hub (a server that ends in /k8s/clusters/NAMESPACE/NAME) or --member-context names one that leads to it.`,
		Version: version,

		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl drover"},
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fmt.Errorf("%w: see \"%s --help\"", err, c.CommandPath())
	})
	o.bindConnection(root)
	root.AddCommand(newWhy(o), newWhoCan(o), newPlan(o), newAgents(o), newUninstall(o), newAdopt(o), newRestored(o), newRevoked(o), newUser(o), newLogin(o), newLogout(o), newGetToken(o), newCredential(o), newWhoAmI(o),
		newClusters(o), newUse(o), newKubeconfig(o), newToken(o), newImport(o), newHost(o), newExec(o), newRancher(o), &cobra.Command{
			Use: "version", Short: "Print the version of this plugin", Args: cobra.NoArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				_, err := fmt.Fprintln(c.OutOrStdout(), version)
				return err
			},
		})
	return root
}

// bindConnection adds kubectl's flags, but for two: --cluster is a member here, and --namespace one of its namespaces.
func (o *options) bindConnection(root *cobra.Command) {
	flags := root.PersistentFlags()
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.ClusterName.LongName = ""
	names.ContextOverrideFlags.Namespace.LongName = ""
	names.AuthOverrideFlags.Username.LongName = ""
	names.AuthOverrideFlags.Password.LongName = ""
	names.ClusterOverrideFlags.APIVersion.LongName = ""
	clientcmd.BindOverrideFlags(&o.overrides, flags, names)
	flags.StringVar(&o.loading.ExplicitPath, "kubeconfig", "", "Path to the kubeconfig file for the hub")
	complete(root, "context", o.completeContexts)
}

// bindQuestion adds the flags that say where something is done, and how the answer is printed.
func (o *options) bindQuestion(c *cobra.Command) {
	flags := c.Flags()
	flags.StringVar(&o.cluster, "cluster", "", "The member: the name of a Cluster in the workspace (required)")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "A namespace of the member; without it, all namespaces, or what is in none")
	flags.StringVarP(&o.workspace, "workspace", "w", "", "The workspace: a namespace of the hub (default: that of the kubeconfig's context)")
	flags.StringVar(&o.subresource, "subresource", "", "The subresource, such as log or scale")
	flags.StringVar(&o.memberContext, "member-context", "", "A context of the kubeconfig that leads to the member, through the hub or not")
	flags.StringVarP(&o.output, "output", "o", outputText, "The output: text, json or yaml")
	c.MarkFlagsOneRequired("cluster")                                     // has shells offer it
	c.PreRunE = func(*cobra.Command, []string) error { return o.check() } // before cobra reports it in its own words
	complete(c, "output", offer(outputText, outputJSON, outputYAML))
	complete(c, "namespace", o.completeNamespaces)
	complete(c, "workspace", o.completeWorkspaces)
	complete(c, "subresource", offer("log", "exec", "scale", "status"))
	complete(c, "member-context", o.completeContexts)
	complete(c, "cluster", o.completeClusters)
}

// arguments refuses another number of them, and says what they are.
func arguments(count int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != count {
			return fmt.Errorf("%s takes %s, and got %d arguments: see \"%s --help\"", c.CommandPath(), names, len(args), c.CommandPath())
		}
		return nil
	}
}

// check rejects invalid values of flags.
func (o *options) check() error {
	if o.cluster == "" {
		return errors.New("it is not said in which member: give --cluster NAME, a Cluster of the workspace as \"kubectl get clusters\" lists them")
	}
	return o.checkOutput()
}

// checkOutput rejects an output that does not exist.
func (o *options) checkOutput() error {
	if slices.Contains([]string{outputText, outputJSON, outputYAML}, o.output) {
		return nil
	}
	return fmt.Errorf("output %q is unknown: use %s, %s or %s", o.output, outputText, outputJSON, outputYAML)
}

// bounded gives one command a minute: a member that is away must not hold up a terminal.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, commandLimit)
}
