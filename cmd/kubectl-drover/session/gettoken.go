// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// execInfo is the environment variable in which kubectl passes information to an exec plugin.
const execInfo = "KUBERNETES_EXEC_INFO"

// NewGetToken returns the command "get-token".
func NewGetToken(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	var s signing
	c := &cobra.Command{
		Use: "get-token --hub URL", Short: "Print a token; kubeconfigs run this command",
		Long: `Print a token as an ExecCredential (client.authentication.k8s.io/v1). The kubeconfigs that
"kubectl drover kubeconfig" and "kubectl drover use" write run this command.

If the last token has expired and the hub gave a refresh token, a new token is fetched without a
question. Otherwise the command opens the browser to sign in if it runs in a terminal.`,
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error { return o.getToken(c, s) },
	}
	c.Flags().StringVar(&o.cluster, "cluster", "", "Print a token that is valid for one Cluster only, WORKSPACE/NAME")
	c.Flags().BoolVar(&o.direct, "direct", false, "With --cluster, print a token for the Cluster's own address, which is "+
		"valid longer but not at the hub")
	cli.Complete(c, "cluster", o.completeReachable(func(c reachableCluster) []string { return []string{c.String()} }))
	s.bind(c)
	return c
}

// session returns the store of sessions and the hub to use. The hub is the first of the following that exists: the
// value of --hub, the hub that the kubeconfig points to, and the hub of the only session. See mayUseOnlySession.
func (o *options) session() (login.Store, string, error) {
	store, err := sessions()
	if err != nil {
		return store, "", err
	}
	if strings.Contains(o.HubName, "://") {
		issuer, err := login.ParseURL(o.HubName)
		return store, issuer, err
	}
	found, err := store.List()
	if err != nil {
		return store, "", fmt.Errorf("read your sessions: %w", err)
	}
	raw, err := o.RawConfig()
	if err != nil { // the unreadable kubeconfig may determine the hub, so the only session must not be used instead
		return store, "", fmt.Errorf("read kubeconfig: %w: correct it, or select the hub's URL with --hub", err)
	}
	if o.HubName != "" {
		base := cli.BaseOf(&raw, o.HubName)
		if raw.Contexts[o.HubName] == nil || base == "" {
			return store, "", fmt.Errorf("%w: --hub %s is not the URL of a hub, and not a context that leads to one",
				login.ErrSignedOut, cli.Visible(o.HubName))
		}
		return store, base, nil
	}
	servers := o.serversOf(&raw)
	issuer, err := chooseHub(found, servers...)
	if issuer, matches := hubOf(found, servers); matches {
		return store, issuer, nil
	}
	if refused := o.mayUseOnlySession(&raw); refused != nil && !errors.Is(err, login.ErrSignedOut) {
		return store, "", refused
	}
	return store, issuer, err
}

// mayUseOnlySession returns an error if the kubeconfig determines, or may determine, the hub. In that case, the only
// session must not be used, because it may belong to a different hub.
func (o *options) mayUseOnlySession(raw *clientcmdapi.Config) error {
	name, guessed, err := o.FindHub(raw)
	switch known := err == nil && !guessed && cli.LeadsToHub(raw, name); {
	case err != nil:
		return fmt.Errorf("%w there: %w", login.ErrSignedOut, err)
	case known || o.Overrides.CurrentContext != "" || o.Overrides.ClusterInfo.Server != "":
		return fmt.Errorf("%w at the hub of the current context, of --context or of --server, as far as is known: choose a hub "+
			"where you are signed in with --hub, or set the address of a context's hub once with \"kubectl drover use "+
			"--hub=URL --ca FILE --context CONTEXT\"", login.ErrSignedOut)
	case o.fansOut:
		return fmt.Errorf("%w at a hub that the current context belongs to: choose a hub where you are signed in with --hub, "+
			"or make one of its Clusters current with \"kubectl drover use CLUSTER\"", login.ErrSignedOut)
	}
	return nil
}

// serversOf returns URLs of the hub that the current context is known to belong to. It does not return URLs of the most
// recently selected hub, because the user may have signed in to a different hub since then.
func (o *options) serversOf(raw *clientcmdapi.Config) []string {
	current := cmp.Or(o.Overrides.CurrentContext, raw.CurrentContext)
	server := cmp.Or(strings.TrimRight(o.Overrides.ClusterInfo.Server, "/"), cli.ServerOf(raw, current))
	servers, names := []string{server}, []string{current}
	if hub, guessed, err := o.FindHub(raw); err == nil && !guessed {
		names = append(names, hub)
	}
	for _, name := range names {
		if base := cli.BaseOf(raw, name); base != "" {
			servers = append(servers, base+cli.PathLocal)
		}
	}
	return servers
}

// chooseHub returns the hub of the first matching server. If no server matches, it returns the hub of the only session.
// If a server belongs to a hub that the user has no session for, chooseHub returns an error instead of using a session
// for a different hub.
func chooseHub(sessions []*login.Session, servers ...string) (string, error) {
	if issuer, found := hubOf(sessions, servers); found {
		return issuer, nil
	}
	for _, server := range servers {
		if base, atHub := cli.HubBase(server); atHub && len(sessions) > 0 {
			return "", fmt.Errorf("%w: or choose a hub where you are signed in with --hub",
				signedOut(fmt.Errorf("%w at %s", login.ErrSignedOut, cli.Visible(base)), cli.Visible(base)))
		}
	}
	switch len(sessions) {
	case 0:
		return "", fmt.Errorf("%w, where URL is the address of the hub", signedOut(login.ErrSignedOut, "URL"))
	case 1:
		return sessions[0].Issuer, nil
	}
	all := cli.Map(sessions, func(s *login.Session) string { return s.Issuer })
	return "", fmt.Errorf("you are signed in at several hubs: choose one with --hub: %s", strings.Join(all, ", "))
}

// hubOf returns the hub of the session that the first matching server belongs to.
func hubOf(sessions []*login.Session, servers []string) (issuer string, found bool) {
	for _, server := range servers {
		for _, s := range sessions {
			if server == s.Issuer || strings.HasPrefix(server, s.Issuer+"/") {
				return s.Issuer, true
			}
		}
	}
	return "", false
}

// signedOut adds the sign-in command to an error message.
func signedOut(why error, issuer string) error {
	return fmt.Errorf("%w: run \"kubectl drover login %s\"", why, cli.Quoted(issuer))
}

func (o *options) getToken(c *cobra.Command, s signing) error {
	store, issuer, err := o.session()
	if err != nil {
		return err
	}
	if o.direct {
		if o.cluster == "" {
			return errors.New("--direct requires --cluster")
		}
		return o.getDirectToken(c, s, store, issuer)
	}
	ctx, cancel := context.WithTimeout(c.Context(), s.timeout+cli.CommandLimit)
	defer cancel()
	session, err := o.freshSession(ctx, c, s, store, issuer)
	if err != nil {
		return err
	}
	if o.cluster == "" {
		return printCredential(c, session.Token, metav1.NewTime(session.Until()))
	}
	at, err := login.Discover(ctx, issuer, session.CA)
	if err != nil {
		return untrustedHub(err)
	}
	token, until, err := at.ForAudience(ctx, session, "cluster:"+o.cluster)
	if err != nil {
		return err
	}
	return printCredential(c, token, metav1.NewTime(until))
}

// freshSession returns the session for a hub. The session's token is not about to expire. If necessary, it asks the
// user to sign in, unless s.quiet is set.
func (o *options) freshSession(
	ctx context.Context, c *cobra.Command, s signing, store login.Store, issuer string,
) (*login.Session, error) {
	asked := caller(os.Getenv(execInfo), os.Stdin)
	return store.Fresh(ctx, issuer, func(ctx context.Context, before *login.Session) (*login.Session, error) {
		if before == nil {
			before = &login.Session{Issuer: issuer, CA: asked.ca(issuer)}
		}
		next, err := renew(ctx, before)
		if err == nil || !errors.Is(err, login.ErrRefused) {
			return next, untrustedHub(err)
		}
		if !asked.Interactive || s.quiet {
			return nil, signedOut(err, issuer)
		}
		at, err := login.Discover(ctx, issuer, before.CA)
		if err != nil {
			return nil, untrustedHub(err)
		}
		return s.signIn(ctx, c.ErrOrStderr(), at, before)
	})
}

// printCredential prints a token in the format that client-go reads from exec plugins.
func printCredential(c *cobra.Command, token string, until metav1.Time) error {
	return json.NewEncoder(c.OutOrStdout()).Encode(clientauthenticationv1.ExecCredential{
		TypeMeta: metav1.TypeMeta{APIVersion: clientauthenticationv1.SchemeGroupVersion.String(), Kind: "ExecCredential"},
		Status:   &clientauthenticationv1.ExecCredentialStatus{Token: token, ExpirationTimestamp: &until},
	})
}

// renew renews a session without asking the user. The error matches login.ErrRefused if the user has to sign in again.
func renew(ctx context.Context, before *login.Session) (*login.Session, error) {
	if before.Refresh == "" {
		return nil, fmt.Errorf("%w at %s", login.ErrRefused, before.Issuer)
	}
	at, err := login.Discover(ctx, before.Issuer, before.CA)
	if err != nil {
		return nil, err
	}
	next, err := at.Refresh(ctx, before)
	if err == nil {
		next.Direct = before.Direct // the tokens belong to the same session and user
	}
	return next, err
}

// call is kubectl's description of the request for which it needs a token.
type call clientauthenticationv1.ExecCredentialSpec

// caller parses kubectl's description of a request. Without a description, the request is considered interactive if the
// input is a terminal.
func caller(info string, in *os.File) call {
	var said clientauthenticationv1.ExecCredential
	if info == "" || json.NewDecoder(io.LimitReader(strings.NewReader(info), 1<<20)).Decode(&said) != nil {
		return call{Interactive: term.IsTerminal(int(in.Fd()))}
	}
	return call(said.Spec)
}

// ca returns the hub's CA from the kubeconfig. With this CA, users can sign in even if they have never signed in on
// this computer.
func (c call) ca(issuer string) []byte {
	if c.Cluster != nil && strings.HasPrefix(c.Cluster.Server, issuer+"/") {
		return c.Cluster.CertificateAuthorityData
	}
	return nil
}
