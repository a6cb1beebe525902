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

	v1 "github.com/drover-dev/drover/api/v1"
)

// options are the values of the flags.
type options struct {
	loading   *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides

	workspace     string
	cluster       string
	memberContext string
	output        string

	namespace   string
	subresource string
	groups      []string
	kind        string
}

// newCommand is "kubectl drover".
func newCommand() *cobra.Command {
	o := &options{loading: clientcmd.NewDefaultClientConfigLoadingRules()}
	root := &cobra.Command{
		Use:   "kubectl-drover",
		Short: "Say who may do what in which member cluster, and why, and how plans go",
		Long: `Say who may do what in which member cluster, and why, and how plans go.

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
	root.AddCommand(newWhy(o), newWhoCan(o), newPlan(o), newUninstall(o), &cobra.Command{
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

func newWhy(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "why NAME VERB RESOURCE[/OBJECT] | URL",
		Short: "Say why a user or group may do something in a member, or what is missing",
		Long: `Say why a user or group may do something in a member, or what is missing.

NAME is the principal as the member sees it: github:alice, hub:carol, hub:system:serviceaccount:ci:deployer.
Groups of a user are not known to the hub: name them with --group. For a group itself use --kind Group.
VERB and RESOURCE are as in "kubectl auth can-i": get pods, create deployments.apps, get pods/web-0 --subresource log, get /metrics.

The answer is the member's own word. Where the member is not asked, since it is away, has never joined, or nothing leads to it, the answer is that it
cannot be told: what the hub grants may not have arrived, and the member may grant more. What the hub grants is printed all the same.

Exit codes: 0 yes, 1 no, 2 an error, or it cannot be told.`,
		Example: `  kubectl drover why github:alice create deployments.apps --cluster prod-eu -n web
  kubectl drover why hub:system:serviceaccount:ci:deployer get secrets/registry --cluster prod-eu -n web -w team-a
  kubectl drover why github:acme/web delete pods --kind Group --cluster prod-eu -n web -o json`,
		Args: arguments(3, "NAME VERB RESOURCE"),
		RunE: func(c *cobra.Command, args []string) error {
			who, err := newPrincipal(args[0], v1.SubjectKind(o.kind), o.groups)
			if err != nil {
				return err
			}
			return o.why(c.Context(), c.OutOrStdout(), who, args[1], args[2])
		},
		ValidArgsFunction: completeAction(1),
	}
	o.bindQuestion(c)
	c.Flags().StringArrayVar(&o.groups, "group", nil, "A group that the user is in; can be repeated")
	c.Flags().StringVar(&o.kind, "kind", string(v1.SubjectUser), "What NAME is: User or Group")
	complete(c, "kind", offer(string(v1.SubjectUser), string(v1.SubjectGroup)))
	return c
}

func newWhoCan(o *options) *cobra.Command {
	c := &cobra.Command{
		Use:   "who-can VERB RESOURCE[/OBJECT] | URL",
		Short: "List who may do something in a member, and by what",
		Long: `List who may do something in a member, and by what: bindings on the hub, and those that the member has of its own.

Where the member is not asked it cannot be told who may. Whom the hub grants it to is printed all the same.

Exit codes: 0 there is at least one who may, 1 no one may, 2 an error, or it cannot be told.`,
		Example: `  kubectl drover who-can delete pods --cluster prod-eu -n web
  kubectl drover who-can get secrets --cluster prod-eu`,
		Args: arguments(2, "VERB RESOURCE"),
		RunE: func(c *cobra.Command, args []string) error {
			return o.whoCan(c.Context(), c.OutOrStdout(), args[0], args[1])
		},
		ValidArgsFunction: completeAction(0),
	}
	o.bindQuestion(c)
	return c
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
	if slices.Contains([]string{outputText, outputJSON, outputYAML}, o.output) {
		return nil
	}
	return fmt.Errorf("output %q is unknown: use %s, %s or %s", o.output, outputText, outputJSON, outputYAML)
}

// bounded gives one command a minute: a member that is away must not hold up a terminal.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, commandLimit)
}
