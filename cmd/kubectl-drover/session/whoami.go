// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

// NewWhoAmI returns the command "whoami".
func NewWhoAmI(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use: "whoami", Short: "Print the user that you are signed in as, according to the hub",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error { return o.whoAmI(c) },
	}
	return c
}

func (o *options) whoAmI(c *cobra.Command) error {
	ctx, cancel := cli.Bounded(c.Context())
	defer cancel()
	session, p, err := sessionOrPlain(ctx, o)
	if err != nil {
		return err
	}
	if p != nil {
		return p.whoAmI(ctx, c.OutOrStdout())
	}
	var review authenticationv1.SelfSubjectReview
	if err := askHub(ctx, session, "/v1/whoami", &review); err != nil {
		return err
	}
	user := review.Status.UserInfo
	var b strings.Builder
	sayUser(&b, user, session.Issuer)
	if said := session.Claims().Subject; said != user.Username {
		cli.Say(&b, "  token:   says %s\n", said)
	}
	then := "then you have to sign in again"
	if session.Refresh != "" {
		then = "then it is renewed without a question"
	}
	cli.Say(&b, "  until:   %s; %s\n", session.Expires.Local().Format(time.RFC3339), then)
	_, err = c.OutOrStdout().Write([]byte(b.String()))
	return err
}

func sayUser(b *strings.Builder, user authenticationv1.UserInfo, hub string) {
	cli.Say(b, "%s\n  hub:     %s\n", user.Username, hub)
	if len(user.Groups) > 0 {
		cli.Say(b, "  groups:  %s\n", strings.Join(user.Groups, ", "))
	}
}

// signedIn returns the session for the hub, with a token that is not about to expire. It does not ask the user to sign
// in.
func (o *options) signedIn(ctx context.Context) (*login.Session, error) {
	store, issuer, err := o.session()
	if err != nil {
		return nil, err
	}
	session, err := store.Fresh(ctx, issuer, func(ctx context.Context, before *login.Session) (*login.Session, error) {
		if before == nil {
			return nil, signedOut(fmt.Errorf("%w at %s", login.ErrSignedOut, issuer), issuer)
		}
		next, err := renew(ctx, before)
		if errors.Is(err, login.ErrRefused) {
			return nil, signedOut(err, issuer)
		}
		return next, untrustedHub(err)
	})
	if err != nil {
		return nil, err
	}
	session.UserAgent = o.UserAgent()
	return session, nil
}

// askHub sends a GET request as the user of a session.
func askHub(ctx context.Context, s *login.Session, path string, into any) error {
	return callHub(ctx, s, http.MethodGet, path, nil, into)
}

// callHub sends a request as the user of a session and reads the response. It sends content as JSON, or no body if
// content is nil.
func callHub(ctx context.Context, s *login.Session, method, path string, content, into any) error {
	client, err := s.Client, error(nil)
	if client == nil {
		client, err = login.Client(s.CA)
	}
	if err != nil {
		return err
	}
	body := []byte{}
	if content != nil {
		if body, err = json.Marshal(content); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, s.Issuer+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if s.Client == nil {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	req.Header.Set("User-Agent", s.UserAgent)
	if content != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := client.Do(req)
	switch {
	case err != nil && s.Client == nil:
		return untrustedHub(err)
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated {
		if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
			return fmt.Errorf("read the response of %s: %w", s.Issuer, err)
		}
		return nil
	}
	var status metav1.Status
	_ = json.NewDecoder(resp.Body).Decode(&status) // bodies in other formats contain no message
	switch {
	case resp.StatusCode == http.StatusUnauthorized && s.Client != nil:
		return fmt.Errorf("the hub %s does not accept the credentials of user %s of the kubeconfig: %s: sign in with "+
			"\"kubectl drover login %s\"", s.Issuer, s.User, status.Message, cli.Quoted(s.Issuer))
	case resp.StatusCode == http.StatusUnauthorized:
		return signedOut(fmt.Errorf("the hub %s rejected your token: %s", s.Issuer, status.Message), s.Issuer)
	case resp.StatusCode == http.StatusNotFound && (method == http.MethodGet || status.Message == ""):
		return fmt.Errorf("the version of %s does not support %s: ask its administrator to upgrade it", s.Issuer, path)
	case status.Message == "":
		return fmt.Errorf("%s responded with %s", s.Issuer, resp.Status)
	}
	return fmt.Errorf("%s: %s", s.Issuer, status.Message)
}
