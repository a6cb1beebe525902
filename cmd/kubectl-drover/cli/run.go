// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// Exit codes. A denied action is an answer, not an error.
const (
	ExitAllowed     = 0
	ExitDenied      = 1
	ExitError       = 2   // also when there is no answer
	ExitInterrupted = 130 // as shells do after Ctrl-C
)

// ErrDenied ends a command whose answer is no. The command has printed everything.
var ErrDenied = errors.New("denied")

// Run runs one command line and returns the exit code.
func Run(ctx context.Context, version string, commands func(*Options) []*cobra.Command, args []string,
	out, complaints io.Writer) int {
	out, complaints = Terminal{Out: out}, Terminal{Out: complaints}
	root := newRoot(version, commands)
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(complaints)
	switch err := root.ExecuteContext(ctx); {
	case err == nil:
		return ExitAllowed
	case errors.Is(err, ErrDenied):
		return ExitDenied
	case ctx.Err() != nil:
		return ExitInterrupted // the user knows why
	default:
		fmt.Fprintln(complaints, "error:", strings.ReplaceAll(Unreached(err).Error(), "\n", "\n  "))
		return ExitError
	}
}

// newRoot makes the command "kubectl drover".
func newRoot(version string, commands func(*Options) []*cobra.Command) *cobra.Command {
	o := &Options{Loading: clientcmd.NewDefaultClientConfigLoadingRules(), version: version}
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
	root.AddCommand(commands(o)...)
	return root
}
