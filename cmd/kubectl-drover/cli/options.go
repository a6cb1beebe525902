// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli is shared by all commands of the plugin: the flags, the client of the hub, the forms of output, the exit
// codes, and text that is safe to print.
package cli

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// CommandLimit is how long a command may take: a member that is away must not hold up a terminal.
	CommandLimit = time.Minute
	// requestLimit is how long a request of a command may take without --request-timeout.
	requestLimit = 15 * time.Second
	// LookInterval is the pause of a command that waits before it looks again.
	LookInterval = 500 * time.Millisecond
)

// Options are the values of the flags that several subjects have.
type Options struct {
	// Loading and Overrides lead to the hub, as in kubectl.
	Loading   *clientcmd.ClientConfigLoadingRules
	Overrides clientcmd.ConfigOverrides

	// Workspace is empty for that of the kubeconfig's context.
	Workspace string
	Output    string

	version string
}

// bindConnection adds kubectl's flags except two: here, --cluster is a member and --namespace one of its namespaces.
func (o *Options) bindConnection(root *cobra.Command) {
	flags := root.PersistentFlags()
	names := clientcmd.RecommendedConfigOverrideFlags("")
	names.ContextOverrideFlags.ClusterName.LongName = ""
	names.ContextOverrideFlags.Namespace.LongName = ""
	names.AuthOverrideFlags.Username.LongName = ""
	names.AuthOverrideFlags.Password.LongName = ""
	names.ClusterOverrideFlags.APIVersion.LongName = ""
	clientcmd.BindOverrideFlags(&o.Overrides, flags, names)
	flags.StringVar(&o.Loading.ExplicitPath, "kubeconfig", "", "Path to the kubeconfig file for the hub")
	Complete(root, "context", o.CompleteContexts)
}

// BindWorkspace adds the flag that names the workspace.
func (o *Options) BindWorkspace(c *cobra.Command) {
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "", WorkspaceUsage)
	Complete(c, "workspace", o.CompleteWorkspaces)
}

// WorkspaceUsage describes the flag --workspace.
const WorkspaceUsage = "The workspace: a namespace of the hub (default: that of the kubeconfig's context)"

// BindOutput adds the flag that chooses the form of the output.
func (o *Options) BindOutput(c *cobra.Command) { o.BindOutputAs(c, "The output: text, json or yaml") }

// BindOutputAs is BindOutput with another description.
func (o *Options) BindOutputAs(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&o.Output, "output", "o", OutputText, usage)
	Complete(c, "output", Offer(OutputText, OutputJSON, OutputYAML))
}

// CheckOutput rejects an output that does not exist.
func (o *Options) CheckOutput() error {
	if slices.Contains([]string{OutputText, OutputJSON, OutputYAML}, o.Output) {
		return nil
	}
	return fmt.Errorf("output %q is unknown: use %s, %s or %s", o.Output, OutputText, OutputJSON, OutputYAML)
}

// Arguments requires a number of arguments, and otherwise says what they are.
func Arguments(count int, names string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) != count {
			return fmt.Errorf("%s takes %s, and got %d arguments: see \"%s --help\"", c.CommandPath(), names, len(args),
				c.CommandPath())
		}
		return nil
	}
}

// Bounded gives a command CommandLimit to end.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, CommandLimit)
}

// Kubeconfig returns the kubeconfig with the flags applied to it.
func (o *Options) Kubeconfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.Loading, &o.Overrides)
}

// ConfigOf returns the client configuration of a kubeconfig's context. Whose says which server the context should lead
// to, such as "hub" or "member".
func ConfigOf(loaded clientcmd.ClientConfig, whose string) (*rest.Config, error) {
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("read kubeconfig: there is none, or it names no cluster: "+
			"give the %s's with --kubeconfig or KUBECONFIG", whose)
	} else if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w: name the %s's with --kubeconfig or --context", err, whose)
	}
	return config, nil
}

// Patient limits how long each request may take, but not how many requests there are.
func (o *Options) Patient(config *rest.Config) {
	config.QPS = -1
	config.UserAgent = o.UserAgent()
	if config.Timeout == 0 {
		config.Timeout = requestLimit
	}
}

// UserAgent is how the plugin names itself to servers.
func (o *Options) UserAgent() string { return "kubectl-drover/" + o.version }
