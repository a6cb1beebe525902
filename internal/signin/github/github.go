// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package github queries GitHub, or a GitHub Enterprise Server, for a user and the user's organizations and teams.
//
// It uses only three endpoints of the REST API. It therefore does not use go-github v88, which would add 0.7 MB and two
// modules to the binary and does not limit the size of responses. golang.org/x/oauth2 builds the login URL and redeems
// the code.
package github

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// scope lets the app read the user's organizations and teams, but no other non-public information.
	scope      = "read:org"
	maxCode    = 256
	maxState   = 1 << 10
	askTimeout = 40 * time.Second // timeout for all requests of one login or refresh
)

// Connector queries one GitHub instance.
type Connector struct {
	api, host   string
	orgs, teams []string
	app         oauth2.Config
	client      *http.Client
	now         func() time.Time
}

var (
	_ connector.Redirect  = (*Connector)(nil)
	_ connector.Refresher = (*Connector)(nil)
)

// state is the data that Refresh needs.
type state struct {
	Token string `json:"token"`
}

// Begin returns the address of GitHub's login page. private is the PKCE verifier.
func (c *Connector) Begin(_ context.Context, callback, state string) (address string, private []byte, err error) {
	app, verifier := c.app, oauth2.GenerateVerifier()
	app.RedirectURL = callback
	return app.AuthCodeURL(state, oauth2.S256ChallengeOption(verifier),
		oauth2.SetAuthURLParam("allow_signup", "false")), []byte(verifier), nil
}

// Finish redeems the code in GitHub's response and returns the user.
func (c *Connector) Finish(ctx context.Context, callback string, private []byte, answer url.Values) (connector.User,
	error) {
	if code := answer.Get("error"); code != "" {
		return connector.User{}, c.answered(code)
	}
	code := answer.Get("code")
	if code == "" || len(code) > maxCode {
		return connector.User{}, errors.New("GitHub's response has no code: sign in again")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	token, err := c.redeem(ctx, callback, string(private), code)
	if err != nil {
		return connector.User{}, err
	}
	return c.user(ctx, token)
}

// Refresh looks up the user again, using the token from the login. If the user's login name has changed, Refresh
// returns the new name with the same ID.
func (c *Connector) Refresh(ctx context.Context, last connector.User) (connector.User, error) {
	var s state
	if len(last.State) > maxState || untrusted.JSON(last.State, &s, untrusted.Small()) != nil || s.Token == "" {
		return connector.User{}, errors.New("the stored state of the user is not from GitHub: the user has to sign in again")
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	u, err := c.user(ctx, s.Token)
	if err != nil {
		return connector.User{}, err
	}
	if u.ID != last.ID {
		return connector.User{}, fmt.Errorf("%w: the login %s now belongs to another account of GitHub", connector.ErrRefused,
			u.Name)
	}
	return u, nil
}

// Check reports whether GitHub responds and accepts the app's credentials. Requests to /rate_limit do not count against
// any limit.
func (c *Connector) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var limits struct{}
	_, err := c.get(ctx, "/rate_limit", func(r *http.Request) { r.SetBasicAuth(c.app.ClientID, c.app.ClientSecret) },
		&limits)
	if status, ok := errors.AsType[*statusError](err); ok {
		switch {
		case status.code == http.StatusUnauthorized:
			return fmt.Errorf("GitHub refuses the client ID or the client secret of the OAuth app: compare them with the app's "+
				"page at %s", c.host)
		// an administrator of the server has disabled rate limits
		case status.code == http.StatusNotFound && status.message != "":
			return nil
		}
	}
	return err
}

// user returns the user that a token belongs to, including the user's groups.
func (c *Connector) user(ctx context.Context, token string) (connector.User, error) {
	a, err := c.account(ctx, token)
	if err != nil {
		return connector.User{}, err
	}
	groups, notice, err := c.groups(ctx, token)
	if err != nil {
		return connector.User{}, err
	}
	if err := c.admit(a.name, groups); err != nil && notice != "" {
		return connector.User{}, fmt.Errorf("%w; %s", err, notice)
	} else if err != nil {
		return connector.User{}, err
	}
	kept, err := json.Marshal(state{Token: token})
	return connector.User{ID: a.id, Name: a.name, Groups: groups, Notice: notice, State: kept}, err
}

// admit refuses a user who is in none of the allowed organizations, or in none of the allowed teams. groups must
// contain only groups from the allowed organizations.
func (c *Connector) admit(name string, groups []string) error {
	in := func(allowed []string) bool {
		return slices.ContainsFunc(allowed, func(one string) bool { return slices.Contains(groups, one) })
	}
	if len(c.orgs) > 0 && !in(c.orgs) {
		return fmt.Errorf("%w: GitHub does not list %s as an active member of any of the organizations %s (an organization that restricts apps has to approve this one)",
			connector.ErrRefused, name, strings.Join(c.orgs, ", "))
	}
	if len(c.teams) > 0 && !in(c.teams) {
		return fmt.Errorf("%w: GitHub does not list %s in any of the teams %s", connector.ErrRefused, name,
			strings.Join(c.teams, ", "))
	}
	return nil
}

// account holds fields from the response of GitHub's /user endpoint.
type account struct{ id, name string }

func (c *Connector) account(ctx context.Context, token string) (account, error) {
	var answer struct {
		ID          int64   `json:"id"`
		Login       string  `json:"login"`
		Type        string  `json:"type"`
		SuspendedAt *string `json:"suspended_at"` // set only by a GitHub Enterprise Server
	}
	_, err := c.get(ctx, "/user", bearer(token), &answer)
	var status *statusError
	switch {
	case errors.As(err, &status) && status.suspended():
		return account{}, fmt.Errorf("%w: GitHub suspended the account", connector.ErrRefused)
	case err != nil:
		return account{}, err
	}
	name := strings.ToLower(answer.Login)
	switch {
	case answer.ID <= 0 || !loginForm.MatchString(name):
		return account{}, fmt.Errorf("%s/user is not an account of GitHub: is this the URL of a GitHub?", c.api)
	case answer.Type != "User":
		return account{}, fmt.Errorf("%w: the GitHub account %s does not belong to a person", connector.ErrRefused, name)
	case answer.SuspendedAt != nil:
		return account{}, fmt.Errorf("%w: GitHub suspended the account %s", connector.ErrRefused, name)
	}
	return account{id: strconv.FormatInt(answer.ID, 10), name: name}, nil
}
