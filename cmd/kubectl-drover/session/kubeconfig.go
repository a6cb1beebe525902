// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// namesOf returns the names that arguments can use for a Cluster.
func namesOf(c reachableCluster) []string { return []string{c.Name, c.String()} }

// withReachable calls do with the reachable Clusters that the arguments may refer to. If no arguments are given, it
// calls do with all reachable Clusters.
func (o *options) withReachable(c *cobra.Command, names []string, do func(*login.Session, reachable) error) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	session, err := o.signedInOrPlain(ctx)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		names = []string{""}
	}
	list, err := reachableOf(ctx, session, names)
	if err != nil {
		return err
	}
	return do(session, list)
}

// target holds the flags of "kubeconfig".
type target struct {
	all   bool
	merge bool
	file  string
	// static adds a script token to each context. The token is valid only for the context's Cluster, and expires after
	// ttl.
	static bool
	ttl    time.Duration
}

// NewKubeconfig returns the command "kubeconfig".
func NewKubeconfig(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared, changes: true}
	var to target
	c := &cobra.Command{
		Use: "kubeconfig [CLUSTER…]", Short: "Print a kubeconfig for Clusters, without a token unless you ask for one",
		Long: `Print a kubeconfig for Clusters, or merge it into yours. CLUSTER is a name, or
WORKSPACE/NAME.

The kubeconfig contains no token, so you can pass it on to others. kubectl gets a token from
"kubectl-drover get-token", which asks the user to sign in if necessary.

With --static-token, the kubeconfig contains a token for scripts for each Cluster, which is only
valid for that Cluster. Use it for programs that cannot run the plugin. Protect such a file like a
password. "kubectl drover token list" lists the tokens, and "kubectl drover token revoke" revokes
them.`,
		Example: `  kubectl drover kubeconfig prod > prod.kubeconfig
  kubectl drover kubeconfig prod --static-token --ttl 24h -o ci.kubeconfig
  kubectl drover kubeconfig --all --merge`,
		RunE: func(c *cobra.Command, args []string) error {
			if to.all == (len(args) > 0) {
				return errors.New("no Clusters are given: name Clusters, or use --all to select all that you can reach")
			}
			if to.ttl != 0 && !to.static {
				return errors.New("--ttl requires --static-token")
			}
			return o.withReachable(c, args, func(session *login.Session, list reachable) error {
				return o.writeKubeconfig(c, to, session, list, args)
			})
		},
	}
	flags := c.Flags()
	flags.BoolVar(&to.all, "all", false, "Add all Clusters that you can reach")
	flags.BoolVar(&to.merge, "merge", false, "Merge the contexts into your kubeconfig, without changing the current "+
		"context")
	flags.StringVarP(&to.file, "output", "o", "", "The file to write to, which must not exist")
	flags.BoolVar(&to.static, "static-token", false, "Add a token for scripts for each Cluster")
	flags.DurationVar(&to.ttl, "ttl", 0, "With --static-token, how long the tokens are valid (default: 720h, or the "+
		"hub's limit if that is shorter)")
	cli.Complete(c, "output", cli.CompleteFiles)
	c.MarkFlagsMutuallyExclusive("merge", "output")
	c.MarkFlagsMutuallyExclusive("merge", "static-token")
	c.ValidArgsFunction = o.completeReachable(namesOf)
	return c
}

func (o *options) writeKubeconfig(c *cobra.Command, to target, session *login.Session, list reachable, names []string) error {
	chosen, err := list.Items, error(nil)
	if !to.all {
		chosen, err = list.choose(names)
	}
	if err != nil {
		return err
	}
	if list.Incomplete && to.all {
		fmt.Fprintln(c.ErrOrStderr(), "The list of Clusters may be incomplete: name the missing ones.")
	}
	if to.merge {
		_, err := o.merge(c.Context(), session, chosen, false)
		if err == nil {
			_, err = fmt.Fprintf(c.OutOrStdout(), "Merged %d contexts.\n", countContexts(chosen))
		}
		return err
	}
	if session.User != "" && !to.static {
		return fmt.Errorf("a kubeconfig for others would contain the credentials of your user %s: use --merge, or sign in "+
			"with \"kubectl drover login %s\"", cli.Plain(session.User), cli.Quoted(session.Issuer))
	}
	file, err := to.open(c)
	if err != nil {
		return err
	}
	var made []scriptToken
	config := clientcmdapi.NewConfig()
	for _, cluster := range chosen {
		name := addContext(config, session, cluster)
		if len(chosen) == 1 {
			config.CurrentContext = name
		}
		if !to.static {
			if direct := addDirect(config, session, cluster, name); len(chosen) == 1 && cluster.answers(c.Context(), directToken(session, cluster)) {
				config.CurrentContext = direct
			}
			continue
		}
		token, failed := tokenFor(c.Context(), session, cluster, to.ttl)
		if failed != nil {
			err = failed
			break
		}
		made = append(made, token)
		delete(config.AuthInfos, config.Contexts[name].AuthInfo)
		config.AuthInfos[name], config.Contexts[name].AuthInfo = &clientcmdapi.AuthInfo{Token: token.Token}, name
	}
	if err == nil {
		err = file.write(config)
	}
	if err != nil {
		return errors.Join(err, file.remove(), revokeAll(c.Context(), session, made))
	}
	return nil
}

// kubeconfigFile is the file that a kubeconfig is written to, or standard output.
type kubeconfigFile struct {
	*os.File
	out io.Writer
}

// open creates the file. It is called before tokens are created, so that no tokens are created if the file already
// exists.
func (to target) open(c *cobra.Command) (kubeconfigFile, error) {
	if to.file == "" {
		return kubeconfigFile{out: c.OutOrStdout()}, nil
	}
	file, err := os.OpenFile(to.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(err, fs.ErrExist) && to.static:
		return kubeconfigFile{}, fmt.Errorf("%s already exists: use another file", to.file)
	case errors.Is(err, fs.ErrExist):
		return kubeconfigFile{}, fmt.Errorf("%s already exists: add to it with --kubeconfig %s --merge", to.file, to.file)
	}
	return kubeconfigFile{File: file, out: file}, err
}

func (f kubeconfigFile) write(config *clientcmdapi.Config) error {
	raw, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	if _, err = f.out.Write(raw); f.File != nil {
		err = errors.Join(err, f.Close())
	}
	return err
}

// remove removes the file if no kubeconfig was written to it.
func (f kubeconfigFile) remove() error {
	if f.File == nil {
		return nil
	}
	_ = f.Close() // the file may already be closed
	return os.Remove(f.Name())
}

// revokeAll revokes the tokens for a kubeconfig that could not be written.
func revokeAll(ctx context.Context, session *login.Session, tokens []scriptToken) error {
	ctx, cancel := cli.Bounded(context.WithoutCancel(ctx)) // also after an interrupt
	defer cancel()
	var all []error
	for _, token := range tokens {
		if err := revokeOne(ctx, session, pathTokens, token.ID); err != nil {
			all = append(all, fmt.Errorf("the token %s for cluster %s was not revoked: %w", token.ID, token.Cluster, err))
		}
	}
	return errors.Join(all...)
}

// tokenFor returns a new script token for a Cluster.
func tokenFor(
	ctx context.Context, session *login.Session, cluster reachableCluster, ttl time.Duration,
) (scriptToken, error) {
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	wanted := wantedToken{Description: "a kubeconfig", Cluster: cluster.String()}
	if ttl != 0 {
		wanted.TTL = ttl.String()
	}
	made, err := makeToken(ctx, session, wanted)
	if err != nil {
		return made, fmt.Errorf("create a token for cluster %s: %w", cluster, err)
	}
	return made, nil
}

// countContexts returns the number of contexts for the Clusters. Access through the hub and a Cluster's own address
// each need one context.
func countContexts(clusters []reachableCluster) int {
	n := len(clusters)
	for _, c := range clusters {
		if c.Direct != nil {
			n++
		}
	}
	return n
}

// addContext adds a context to a kubeconfig, and returns the context's name. The context gives access to a Cluster
// through the hub.
func addContext(config *clientcmdapi.Config, session *login.Session, c reachableCluster) string {
	host := strings.TrimPrefix(session.Issuer, "https://")
	name := c.String() + "@" + host
	at := entry{user: session.User, server: session.Issuer + cli.MemberPath(c.Namespace, c.Name), ca: session.CA}
	if session.User == "" {
		at.user, at.exec = "drover@"+host, execCredential("get-token", "--hub", session.Issuer)
	}
	setContext(config, name, at)
	return name
}

// entry is the content of a context, with its cluster entry and its user entry.
type entry struct {
	user, server string
	ca           []byte
	// exec is how the user entry gets tokens. If it is nil, the user entry is not changed.
	exec *clientcmdapi.ExecConfig
}

// setContext sets a context in a kubeconfig, together with its cluster entry and its user entry. An existing context
// keeps its other settings, such as its namespace. Each entry stays in the file that it was read from.
func setContext(config *clientcmdapi.Config, name string, to entry) {
	cluster, auth, context := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo(), clientcmdapi.NewContext()
	if was := config.Clusters[name]; was != nil {
		cluster.LocationOfOrigin = was.LocationOfOrigin
	}
	if was := config.AuthInfos[to.user]; was != nil {
		auth.LocationOfOrigin = was.LocationOfOrigin
	}
	if was := config.Contexts[name]; was != nil {
		context = was
	}
	cluster.Server, cluster.CertificateAuthorityData = to.server, to.ca
	auth.Exec, context.Cluster, context.AuthInfo = to.exec, name, to.user
	config.Clusters[name], config.Contexts[name] = cluster, context
	if to.exec != nil {
		config.AuthInfos[to.user] = auth
	}
}

// execCredential returns a configuration that makes kubectl run this plugin with the given arguments to get tokens.
func execCredential(args ...string) *clientcmdapi.ExecConfig {
	return &clientcmdapi.ExecConfig{
		APIVersion: clientauthenticationv1.SchemeGroupVersion.String(), Command: cli.PluginCommand, Args: args,
		InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode, ProvideClusterInfo: true,
		InstallHint: "kubectl-drover is kubectl's plugin for Drover: install it in a directory of the PATH.",
	}
}
