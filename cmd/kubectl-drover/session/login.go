// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package session contains the commands that sign users in to a hub, provide kubectl with the users' tokens, and give
// users access to their Clusters.
package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/homedir"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// signInLimit is the default value of --timeout. The login page is valid for 10 minutes.
const signInLimit = 5 * time.Minute

// options holds the flags of the commands in this package.
type options struct {
	*cli.Options

	cluster   string
	direct    bool // request a token for the Cluster's own address
	selector  string
	namespace string
	caFile    string // the CA file for --hub=URL with --context
	changes   bool   // the command may change something, so the hub must not be guessed
	fansOut   bool   // the current context must determine the session, even if there is only one session
}

// signing holds the flags for signing in.
type signing struct {
	device    bool
	noBrowser bool
	timeout   time.Duration
	caFile    string
	quiet     bool // never asks the user to sign in
}

// NewLogin returns the command "login".
func NewLogin(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	var s signing
	c := &cobra.Command{
		Use: "login URL", Short: "Sign in to a hub with a browser",
		Long: `Sign in to a hub with a browser.

URL is the value of signIn.issuer in the hub's configuration, or the address of the hub's page. The
tokens are stored in ~/.kube/cache/drover, readable only by you, and never in your kubeconfig.
"kubectl drover use" and "kubectl drover kubeconfig" write contexts to it that make kubectl get
tokens from "kubectl drover get-token".

There is one session per hub: if you sign in as another user, the session before is replaced. With
the environment variable ` + cacheDir + `, as in kubectl, sessions are in another folder. It must be an
absolute path. A terminal with another value acts as another user, with the same kubeconfig.

If the hub's API server accepts these tokens, your kubeconfig gets a context for the hub, which the
other commands of this plugin use. The current context stays.`,
		Example: `  kubectl drover login https://hub.example.com
  kubectl drover login https://hub.example.com --ca hub-ca.crt
  kubectl drover login https://hub.example.com --device
  ` + cacheDir + `=~/.kube/cache-bob kubectl drover login https://hub.example.com`,
		Args: cli.Arguments(1, "the URL of a hub"), ValidArgsFunction: cli.First(o.CompleteHubURLs),
		RunE: func(c *cobra.Command, args []string) error { return o.login(c, args[0], s) },
	}
	flags := c.Flags()
	flags.StringVar(&s.caFile, "ca", "", "A file with the CA of the hub, in PEM (default: the CA of the last sign-in "+
		"there, or the CAs that this computer trusts)")
	flags.BoolVar(&s.device, "device", false, "Sign in with a code and a browser on any computer")
	cli.Complete(c, "ca", cli.CompleteFiles)
	s.bind(c)
	return c
}

// bind adds the flags that all commands for signing in share.
func (s *signing) bind(c *cobra.Command) {
	c.Flags().BoolVar(&s.noBrowser, "no-browser", false, "Do not open a browser; the address is printed in any case")
	c.Flags().DurationVar(&s.timeout, "timeout", signInLimit, "How long to wait for the sign-in in the browser")
}

// cacheDir is the environment variable that sets kubectl's cache folder.
const cacheDir = "KUBECACHEDIR"

// sessions returns the store of the user's sessions for all hubs.
func sessions() (login.Store, error) {
	store := login.Store{Now: time.Now, Waiting: waiting}
	if cache := os.Getenv(cacheDir); cache != "" {
		if !filepath.IsAbs(cache) { // another user may have put sessions in the working directory
			return login.Store{}, fmt.Errorf("%s is %q: it must be an absolute path", cacheDir, cache)
		}
		store.Dir = filepath.Join(cache, "drover")
		return store, nil
	}
	home := homedir.HomeDir()
	if home == "" {
		return login.Store{}, errors.New("your home directory is not known: set HOME")
	}
	store.Dir = filepath.Join(home, ".kube", "cache", "drover")
	return store, nil
}

func waiting(issuer string) {
	fmt.Fprintf(os.Stderr, "Waiting for another command that signs in to %s. Its sign-in may be waiting for a browser.\n",
		cli.Plain(issuer))
}

func (o *options) login(c *cobra.Command, raw string, s signing) error {
	issuer, err := login.ParseURL(raw)
	if err != nil {
		return err
	}
	store, err := sessions()
	if err != nil {
		return err
	}
	var ca []byte
	if s.caFile != "" {
		if ca, err = os.ReadFile(s.caFile); err != nil {
			return fmt.Errorf("read the CA of the hub: %w", err)
		}
	}
	ctx, cancel := context.WithTimeout(c.Context(), s.timeout+cli.CommandLimit) // another command may be signing in
	defer cancel()
	var session *login.Session
	err = store.Change(ctx, issuer, func(before *login.Session) (*login.Session, error) {
		if ca == nil && before != nil {
			ca = before.CA
		}
		at, err := login.Discover(ctx, issuer, ca)
		if err != nil {
			return nil, untrustedHub(err)
		}
		session, err = s.signIn(ctx, c.ErrOrStderr(), at, before)
		return session, err
	})
	if err != nil {
		return err
	}
	o.rememberLogin(ctx, c.ErrOrStderr(), session)
	return nil
}

// rememberLogin records a hub in the kubeconfig. If this fails, it only prints a warning, because the user has already
// signed in.
func (o *options) rememberLogin(ctx context.Context, out io.Writer, session *login.Session) {
	if err := o.loginContext(ctx, session); err != nil {
		fmt.Fprintf(out, "Warning: your kubeconfig did not get a context for the hub: %s.\n", cli.Plain(err.Error()))
	}
}

// untrustedHub explains what to do if a hub cannot be reached, or if the hub's certificate is not trusted. It returns
// other errors unchanged.
func untrustedHub(err error) error {
	if untrusted := (*tls.CertificateVerificationError)(nil); errors.As(err, &untrusted) {
		return errors.New("this computer does not trust the hub's certificate: " + untrusted.Error() +
			": pass the hub's CA with \"kubectl drover login URL --ca FILE\"; ask the hub's administrator for it")
	}
	return cli.UnreachedHub(err)
}

// signIn signs the user in. It writes instructions for the user to out. before is the session that the new session
// replaces, or nil.
func (s signing) signIn(
	ctx context.Context, out io.Writer, at *login.Issuer, before *login.Session,
) (*login.Session, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, fmt.Errorf("timed out after %s: start again, with a longer --timeout if necessary", s.timeout))
	defer cancel()
	session, err := s.ask(ctx, out, at)
	if err != nil {
		return nil, err
	}
	fmt.Fprint(out, welcome(session, before))
	return session, nil
}

// welcome returns the message that is shown after a user has signed in. before is the session that s replaces, or nil.
func welcome(s, before *login.Session) string {
	is, was := s.Claims().Subject, ""
	if before != nil {
		was = before.Claims().Subject
	}
	text := fmt.Sprintf("Signed in to %s as %s.\n", s.Issuer, cli.Plain(is))
	if was != "" && was != is {
		text = fmt.Sprintf("Signed in to %s as %s; the session of %s on this hub is replaced, in all contexts of this hub. "+
			"To keep both sessions, set another %s for one of them.\n", s.Issuer, cli.Plain(is), cli.Plain(was), cacheDir)
	}
	if s.Notice != "" {
		text += fmt.Sprintf("Warning: %s.\n", cli.Plain(s.Notice))
	}
	return text
}

func (s signing) ask(ctx context.Context, out io.Writer, at *login.Issuer) (*login.Session, error) {
	if s.device {
		return at.Device(ctx, func(url, code string) {
			fmt.Fprintf(out, "On any computer, open\n\n  %s\n\nand enter the code\n\n  %s\n\nWaiting …\n", cli.Plain(url),
				cli.Plain(code))
		})
	}
	return at.Code(ctx, func(url string) {
		fmt.Fprintf(out, "Sign in with the browser on this computer at\n\n  %s\n\n", cli.Plain(url))
		if !s.noBrowser {
			if err := login.OpenBrowser(ctx, url); err != nil {
				fmt.Fprintf(out, "No browser could be opened (%v): open the address yourself, or use --device to sign in on "+
					"another computer.\n", err)
			}
		}
		fmt.Fprintf(out, "Waiting for up to %s …\n", s.timeout)
	})
}

// NewLogout returns the command "logout".
func NewLogout(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	var local bool
	c := &cobra.Command{
		Use: "logout", Short: "End your session at a hub",
		Long: `End your session at a hub: its tokens are revoked there, for new requests at once and for open ones within 30 s, and removed from this computer.`,
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error { return o.logout(c, local) },
	}
	c.Flags().BoolVar(&local, "local", false, "Only remove the tokens from this computer, for a hub that cannot be "+
		"reached")
	return c
}

func (o *options) logout(c *cobra.Command, local bool) error {
	store, issuer, err := o.session()
	if err != nil {
		return err
	}
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	return store.Change(ctx, issuer, func(before *login.Session) (*login.Session, error) {
		if before == nil {
			return nil, signedOut(fmt.Errorf("%w at %s", login.ErrSignedOut, issuer), issuer)
		}
		if !local {
			if err := revoke(ctx, before); err != nil {
				return before, fmt.Errorf("%w; you are still signed in: try again, or remove only the tokens on this "+
					"computer with \"kubectl drover logout --local\"", err)
			}
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "Signed out of %s as %s.\n", issuer, cli.Plain(before.Claims().Subject))
		return nil, err
	})
}

func revoke(ctx context.Context, s *login.Session) error {
	at, err := login.Discover(ctx, s.Issuer, s.CA)
	if err != nil {
		return err
	}
	return at.Revoke(ctx, s)
}
