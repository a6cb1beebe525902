// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

const (
	// answerLimit is how long a Cluster's own address may take to respond. If it takes longer, the hub is preferred.
	answerLimit = 2 * time.Second
	// renewLimit is how long the hub may take to renew a token that is still valid. If it takes longer, the next
	// attempt starts after renewPause.
	renewLimit, renewPause = 3 * time.Second, 30 * time.Second
)

// directAccess is a Cluster's own address, which users can reach without going through the hub.
type directAccess struct {
	Server string `json:"server"`
	// CA is PEM-encoded. If it is empty, the computer's own CAs are trusted.
	CA string `json:"caBundle,omitempty"`
	// Mode is APIServer if the address belongs to the Cluster's API server rather than to its agent.
	Mode v1.AuthorizedEndpointMode `json:"mode,omitempty"`
}

// answers reports whether a Cluster's own address currently serves the user. For an agent, answers sends a request
// without a token, which a working agent rejects. An API server rejects such a request even if it does not accept the
// hub's tokens. answers therefore also sends it a request with the token that kubectl would send.
func (c reachableCluster) answers(ctx context.Context, token func(context.Context) (string, error)) bool {
	if c.Direct == nil {
		return false
	}
	client, err := login.Client([]byte(c.Direct.CA))
	if err != nil {
		return false
	}
	defer client.CloseIdleConnections()
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	if code := c.Direct.ask(ctx, client, ""); c.Direct.Mode != v1.AuthorizedEndpointAPIServer {
		return code == http.StatusUnauthorized
	} else if code == 0 { // no server responded, or a different server responded
		return false
	}
	own, err := token(ctx)
	if err != nil {
		return false
	}
	code := c.Direct.ask(ctx, client, own)
	return code == http.StatusOK || code == http.StatusForbidden
}

// ask sends a request and returns the status code of the response, or 0 if there is no response. The request carries
// the token, unless the token is empty.
func (d *directAccess) ask(ctx context.Context, client *http.Client, token string) int {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.Server+"/version", nil)
	if err != nil {
		return 0
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// directToken returns a function that uses the session to obtain a token for a Cluster's own address.
func directToken(session *login.Session, c reachableCluster) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		ctx, cancel := context.WithTimeout(ctx, renewLimit)
		defer cancel()
		at, err := login.Discover(ctx, session.Issuer, session.CA)
		if err != nil {
			return "", err
		}
		token, _, err := at.ForAudience(ctx, session, directAudience(session.Issuer, c.String()))
		return token, err
	}
}

// directAudience returns the audience of tokens for a Cluster's own address. The audience is the Cluster's URL on the
// hub.
func directAudience(issuer, cluster string) string { return issuer + "/k8s/clusters/" + cluster }

// addDirect adds a context with the Cluster's own address to a kubeconfig. This context supplements the context for
// access through the hub. It returns the name of the new context, or "" if the Cluster has no address of its own.
func addDirect(config *clientcmdapi.Config, session *login.Session, c reachableCluster, hub string) string {
	if c.Direct == nil || session.User != "" {
		return ""
	}
	name := hub + "-direct"
	isNew := config.Contexts[name] == nil
	setContext(config, name, entry{
		user: name, server: c.Direct.Server, ca: []byte(c.Direct.CA),
		exec: execCredential("get-token", "--hub", session.Issuer, "--cluster", c.String(), "--direct"),
	})
	if isNew {
		config.Contexts[name].Namespace = config.Contexts[hub].Namespace
	}
	return name
}

// getDirectToken prints a token for a Cluster's own address. It stores the token and renews it after half of its
// lifetime, because a valid token is needed while the hub is down.
func (o *options) getDirectToken(c *cobra.Command, s signing, store login.Store, issuer string) error {
	now := store.Now()
	kept, there := login.DirectToken{}, false
	if session, err := store.Load(issuer); err == nil {
		kept, there = session.Direct[o.cluster]
	}
	there = there && kept.Usable(now)
	if there && (now.Before(kept.Half()) || now.Before(kept.Tried.Add(renewPause))) {
		return printDirect(c, kept, now)
	}
	limit := s.timeout + cli.CommandLimit
	if there {
		limit = renewLimit
	}
	ctx, cancel := context.WithTimeout(c.Context(), limit)
	defer cancel()
	s.quiet = there
	next, err := o.fetchDirect(ctx, c, s, store, issuer)
	if err == nil || !there || errors.Is(err, login.ErrSignedOut) {
		if err != nil {
			return err
		}
		return printDirect(c, next, now)
	}
	kept.Tried = now
	ctx, cancel = context.WithTimeout(context.WithoutCancel(c.Context()), renewLimit)
	defer cancel()
	if err := store.KeepDirect(ctx, issuer, o.cluster, kept); err != nil {
		fmt.Fprintln(c.ErrOrStderr(), "The token was not renewed; the next command tries again:", cli.Plain(err.Error()))
	}
	return printDirect(c, kept, now)
}

// fetchDirect requests a token from the hub and stores it.
func (o *options) fetchDirect(
	ctx context.Context, c *cobra.Command, s signing, store login.Store, issuer string,
) (login.DirectToken, error) {
	session, err := o.freshSession(ctx, c, s, store, issuer)
	if err != nil {
		return login.DirectToken{}, err
	}
	at, err := login.Discover(ctx, issuer, session.CA)
	if err != nil {
		return login.DirectToken{}, untrustedHub(err)
	}
	from := store.Now()
	token, until, err := at.ForAudience(ctx, session, directAudience(issuer, o.cluster))
	if err != nil {
		return login.DirectToken{}, err
	}
	next := login.DirectToken{Token: token, From: from, Until: until}
	return next, store.KeepDirect(ctx, issuer, o.cluster, next)
}

// printDirect prints a token. It reports the time of the next renewal as the expiration time, so that a long-running
// program requests a new token early enough.
func printDirect(c *cobra.Command, t login.DirectToken, now time.Time) error {
	until := t.Half()
	if !now.Before(until) {
		until = now.Add(renewPause)
	}
	if last := t.Last(); last.Before(until) {
		until = last
	}
	return printCredential(c, t.Token, metav1.NewTime(until))
}
