// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli contains the code that all commands of the plugin share.
//
// It contains flags, the hub client, output formats, exit codes, and functions that make text safe to print.
package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// CommandLimit is the time limit of a command. A disconnected member must not block a terminal.
	CommandLimit = time.Minute
	// requestLimit is the time limit of a request if --request-timeout is not set.
	requestLimit = 15 * time.Second
	// LookInterval is the polling interval for commands that wait.
	LookInterval = 500 * time.Millisecond
)

// SignsInAtHub reports whether a user entry in a kubeconfig obtains tokens from this plugin.
func SignsInAtHub(exec *clientcmdapi.ExecConfig) bool {
	if exec == nil {
		return false
	}
	switch strings.TrimSuffix(filepath.Base(exec.Command), ".exe") {
	case PluginCommand:
		return true
	case "kubectl":
		return slices.Contains(exec.Args, "drover")
	}
	return false
}

// PluginCommand is the program that kubeconfigs specify for obtaining tokens.
const PluginCommand = "kubectl-drover"

// Options holds the values of the flags that several commands share.
type Options struct {
	// Loading and Overrides determine the kubeconfig and the hub in the same way as in kubectl.
	Loading   *clientcmd.ClientConfigLoadingRules
	Overrides clientcmd.ConfigOverrides

	// Workspace is the value of --workspace. If it is empty, the workspace is the namespace of the hub's context.
	Workspace string
	Output    string
	// HubName is the value of --hub: the URL of a hub, or a kubeconfig context that points to a hub's API server.
	HubName string

	version string
	// says is the writer for the line that names the hub. The line is needed only if the current context does not point
	// to the hub. says is nil during shell completion.
	says io.Writer
}

// bindConnection adds kubectl's connection flags, except for --cluster and --namespace. In this plugin, --cluster is
// the name of a member, and --namespace is a namespace in that member.
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
	flags.StringVar(&o.HubName, "hub", "", "The hub: its URL, or a context of the kubeconfig (default: the hub of the "+
		"current context; commands that change nothing also use the hub of the last \"login\" or \"use\")")
	Complete(root, "context", o.CompleteContexts)
	Complete(root, "hub", o.CompleteHubs)
	for _, file := range []string{"kubeconfig", "certificate-authority", "client-certificate", "client-key"} {
		Complete(root, file, CompleteFiles)
	}
}

// BindWorkspace adds the flag --workspace.
func (o *Options) BindWorkspace(c *cobra.Command) {
	c.Flags().StringVarP(&o.Workspace, "workspace", "w", "", WorkspaceUsage)
	Complete(c, "workspace", o.CompleteWorkspaces)
}

// TakeWorkspace removes the workspace from a name in the form WORKSPACE/NAME, and selects that workspace.
func (o *Options) TakeWorkspace(target *string) error {
	workspace, name, found := strings.Cut(*target, "/")
	if !found {
		return nil
	}
	if o.Workspace != "" && o.Workspace != workspace {
		return fmt.Errorf("%s is not in the workspace %s: omit -w", Visible(*target), Visible(o.Workspace))
	}
	o.Workspace, *target = workspace, name
	return nil
}

// WorkspaceUsage describes the flag --workspace.
const WorkspaceUsage = "The workspace, a namespace of the hub (default: the namespace of the hub's context, or the " +
	"workspace of the current Cluster)"

// BindOutput adds the flag --output.
func (o *Options) BindOutput(c *cobra.Command) {
	o.BindOutputAs(c, "The output format: text, json or yaml")
}

// BindOutputAs adds the flag --output with a different description.
func (o *Options) BindOutputAs(c *cobra.Command, usage string) {
	c.Flags().StringVarP(&o.Output, "output", "o", OutputText, usage)
	Complete(c, "output", Offer(OutputText, OutputJSON, OutputYAML))
}

// BindListOutput adds the flag --output to a command that prints a list.
func (o *Options) BindListOutput(c *cobra.Command) {
	c.Flags().StringVarP(&o.Output, "output", "o", OutputText,
		"The output format: text, wide, name, json, yaml, or jsonpath=TEMPLATE as in kubectl")
	Complete(c, "output", Offer(OutputText, OutputWide, OutputName, OutputJSON, OutputYAML, jsonPathPrefix))
}

// CheckListOutput rejects an unknown output format for a list.
func (o *Options) CheckListOutput() error {
	if template, is := strings.CutPrefix(o.Output, jsonPathPrefix); is {
		_, err := parseJSONPath(template)
		return err
	}
	if o.Output == OutputWide || o.Output == OutputName || o.CheckOutput() == nil {
		return nil
	}
	return fmt.Errorf("unknown output format %q: use %s, %s, %s, %s, %s or %sTEMPLATE", Visible(o.Output), OutputText,
		OutputWide, OutputName, OutputJSON, OutputYAML, jsonPathPrefix)
}

// CheckOutput rejects an unknown output format.
func (o *Options) CheckOutput() error {
	if slices.Contains([]string{OutputText, OutputJSON, OutputYAML}, o.Output) {
		return nil
	}
	return fmt.Errorf("unknown output format %q: use %s, %s or %s", o.Output, OutputText, OutputJSON, OutputYAML)
}

// Bounded returns a context that is canceled after CommandLimit.
func Bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, CommandLimit)
}

// Kubeconfig returns the kubeconfig with the plugin's flags applied.
func (o *Options) Kubeconfig() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.Loading, &o.Overrides)
}

// RawConfig returns the content of the kubeconfig. The value of --server replaces the server of the current context.
func (o *Options) RawConfig() (clientcmdapi.Config, error) {
	raw, err := o.Kubeconfig().RawConfig()
	if err != nil || o.Overrides.ClusterInfo.Server == "" {
		return raw, err
	}
	raw = *raw.DeepCopy()
	current := raw.Contexts[cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)]
	if current != nil && raw.Clusters[current.Cluster] != nil {
		own := *raw.Clusters[current.Cluster] // other contexts that use the same entry keep their server
		own.Server = o.Overrides.ClusterInfo.Server
		current.Cluster += "@--server"
		raw.Clusters[current.Cluster] = &own
	}
	return raw, nil
}

// ConfigOf returns the client configuration for a context in a kubeconfig. The whose parameter names the expected
// server in error messages, for example "hub" or "member".
func ConfigOf(loaded clientcmd.ClientConfig, whose string) (*rest.Config, error) {
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, fmt.Errorf("read kubeconfig: it does not exist or has no cluster: "+
			"set the kubeconfig of the %s with --kubeconfig or KUBECONFIG", whose)
	} else if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w: select the %s with --kubeconfig or --context", err, whose)
	}
	return config, nil
}

// Patient sets a time limit for each request, limits the size of responses, and removes the limit on the request rate.
func (o *Options) Patient(config *rest.Config) {
	Bound(config)
	config.QPS = -1
	config.UserAgent = o.UserAgent()
	if config.Timeout == 0 {
		config.Timeout = requestLimit
	}
}

// UserAgent returns the User-Agent header of the plugin.
func (o *Options) UserAgent() string { return "kubectl-drover/" + o.version }
