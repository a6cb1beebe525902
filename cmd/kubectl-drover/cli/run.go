// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
)

// Exit codes. A denied action counts as a result, not as an error.
const (
	ExitAllowed     = 0
	ExitDenied      = 1
	ExitError       = 2   // also the exit code of a command that has no answer
	ExitInterrupted = 130 // the exit code of a shell after Ctrl-C
)

// ErrDenied makes a command exit with ExitDenied. The command has already printed its answer.
var ErrDenied = errors.New("denied")

// Run runs a command line and returns the exit code.
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
		return ExitInterrupted // the user interrupted the command, so no error needs to be printed
	default:
		fmt.Fprintln(complaints, "error:", strings.ReplaceAll(Unreached(explain(err)).Error(), "\n", "\n  "))
		return ExitError
	}
}

// newRoot returns the command "kubectl drover".
func newRoot(version string, commands func(*Options) []*cobra.Command) *cobra.Command {
	o := &Options{Loading: clientcmd.NewDefaultClientConfigLoadingRules(), version: version}
	root := &cobra.Command{
		Use:   "kubectl-drover",
		Short: "Sign in to a hub, use its member clusters, explain access to them, and follow plans and agents",
		Long: `Sign in to a hub, use its member clusters, explain access to them, and follow plans and
agents.

"login" and "use" remember the hub in your kubeconfig, so that commands reach it from the contexts
of its members. If the current context belongs to no hub that is known, commands that only read use
the hub of the last "login" or "use", and commands that change something require --hub or
--context. If no hub is known, it is the cluster of the current context. The workspace is the
namespace of the hub's context, or the value of --workspace. Commands that explain access also
query the member if your kubeconfig has an entry for it: a server whose URL ends in
/k8s/clusters/NAMESPACE/NAME, or the context that --member-context names.`,
		Version: version,

		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl drover"},
		SilenceErrors: true, SilenceUsage: true,
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	o.bindConnection(root)
	root.PersistentPreRunE = func(c *cobra.Command, _ []string) error {
		if c.Name() != cobra.ShellCompRequestCmd && c.Name() != cobra.ShellCompNoDescRequestCmd {
			o.says = c.ErrOrStderr()
		}
		if o.HubName != "" && (o.Overrides.CurrentContext != "" || o.Overrides.ClusterInfo.Server != "") {
			return errors.New("--hub cannot be combined with --context or --server: each of them selects the hub")
		}
		return nil
	}
	root.AddCommand(commands(o)...)
	finish(root)
	return root
}

// Unreached converts an error from net/http or client-go into a message that names the unreachable server and gives
// advice. It returns other errors unchanged.
func Unreached(err error) error {
	return unreached(err, "check the network, HTTPS_PROXY, and the server in the kubeconfig (select another one with "+
		"--kubeconfig or --context)", "check the certificate-authority-data of that server in the kubeconfig")
}

// UnreachedHub does the same as Unreached for the URL of a hub that the user has signed in to or is signing in to.
// Unreached is for the servers in a kubeconfig.
func UnreachedHub(err error) error {
	return unreached(err, "check the URL of the hub, the network, and HTTPS_PROXY",
		"sign in again with \"kubectl drover login URL --ca FILE\"")
}

// unreached adds advice to an error. If the error is about an untrusted certificate, it adds onCertificate instead.
func unreached(err error, advice, onCertificate string) error {
	failed, untrusted := (*url.Error)(nil), (*tls.CertificateVerificationError)(nil)
	if !errors.As(err, &failed) {
		return err
	}
	server := "the server"
	if u, err := url.Parse(failed.URL); err == nil {
		server = u.Scheme + "://" + u.Host
	}
	switch {
	case errors.As(failed, &untrusted):
		advice = onCertificate
	case failed.Timeout():
		advice = "check the network, or set a longer --request-timeout"
	}
	return fmt.Errorf("%s was not reached: %w: %s", server, failed.Err, advice)
}
