// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package oidc queries an OpenID provider for a user and the user's groups.
package oidc

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	askTimeout = 8 * time.Second
	// discoverEvery is how long the provider's metadata is cached.
	discoverEvery = 10 * time.Minute
	maxCode       = 4 << 10
	maxState      = 4 << 10
	maxGroups     = 20_000
)

// Config is the configuration of a provider.
type Config struct {
	// URL is the issuer URL.
	URL string
	// ClientID and ClientSecret are the hub's credentials with the provider.
	ClientID, ClientSecret string
	// Roots is used to verify the provider's certificates. If Roots is nil, the system's roots are used.
	Roots *x509.CertPool
	// Scopes are requested in addition to openid. If Scopes is nil, the hub requests profile. If the provider supports
	// offline_access, the hub also requests offline_access.
	Scopes []string
	// Prompt is the prompt parameter of a login. If Prompt is nil, logins that request refresh tokens use "consent",
	// because providers do not issue refresh tokens without the user's consent (OpenID Connect Core, section 11).
	Prompt *string
	// LowercaseNames converts capital letters in names to lower case.
	LowercaseNames bool
	// NameClaim and GroupsClaim are the claims that contain a user's name and groups. The defaults are
	// preferred_username and groups.
	NameClaim, GroupsClaim string
	// AllowedGroups lists the groups whose members may sign in. A user must be in at least one of them. If the list is
	// empty, every user may sign in.
	AllowedGroups []string
}

// Connector queries one provider.
type Connector struct {
	Config
	client *http.Client
	now    func() time.Time
	limit  time.Duration // the timeout of all requests of one login, refresh or check

	mu    sync.Mutex // guards the fields below
	known *provider
}

var (
	_ connector.Redirect  = (*Connector)(nil)
	_ connector.Refresher = (*Connector)(nil)
)

// provider holds the metadata of a provider.
type provider struct {
	*oidc.Provider
	namesIssuer bool // whether responses name the issuer (RFC 9207)
	style       oauth2.AuthStyle
	scopes      []string // nil if the metadata lists no supported scopes
	google      bool     // whether access_type=offline replaces the scope offline_access
	at          time.Time
}

// New returns the connector for a provider. It sends no requests to the provider.
func New(c Config) (*Connector, error) {
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery ||
		u.Fragment != "" {
		return nil, errors.New("the URL of the provider must be https://<host>, with a path at most")
	}
	if c.ClientID == "" || c.ClientSecret == "" {
		return nil, errors.New("the client ID or the client secret is empty")
	}
	if c.NameClaim == "" {
		c.NameClaim = "preferred_username"
	}
	if c.GroupsClaim == "" {
		c.GroupsClaim = "groups"
	}
	return &Connector{Config: c, client: HTTPClient(c.Roots), now: time.Now, limit: askTimeout}, nil
}

// private is the data that Finish needs about a login.
type private struct {
	Nonce    string `json:"n"`
	Verifier string `json:"v"`
}

// Begin returns the address of the provider's login page.
func (c *Connector) Begin(ctx context.Context, callback, state string) (address string, kept []byte, err error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	p, err := c.discover(ctx)
	if err != nil {
		return "", nil, err
	}
	own := private{Nonce: rand.Text() + rand.Text(), Verifier: oauth2.GenerateVerifier()}
	if kept, err = json.Marshal(own); err != nil {
		return "", nil, fmt.Errorf("keep a login: %w", err)
	}
	options := []oauth2.AuthCodeOption{oauth2.S256ChallengeOption(own.Verifier), oidc.Nonce(own.Nonce)}
	app, offline := c.app(p, callback)
	if offline && p.google {
		options = append(options, oauth2.AccessTypeOffline)
	}
	if prompt := c.prompt(offline); prompt != "" {
		options = append(options, oauth2.SetAuthURLParam("prompt", prompt))
	}
	return app.AuthCodeURL(state, options...), kept, nil
}

// Finish redeems the code in the provider's response and returns the user.
func (c *Connector) Finish(ctx context.Context, callback string, kept []byte, answer url.Values) (connector.User,
	error) {
	ctx, cancel := c.context(ctx)
	defer cancel()
	var own private
	if err := untrusted.JSON(kept, &own, untrusted.Small()); err != nil || own.Nonce == "" || own.Verifier == "" {
		return connector.User{}, errors.New("the stored state of the login is malformed")
	}
	p, err := c.discover(ctx)
	if err != nil {
		return connector.User{}, err
	}
	if iss := answer.Get("iss"); iss != c.URL && (answer.Has("iss") || p.namesIssuer) {
		return connector.User{}, errors.New("the response does not name the provider as its issuer (RFC 9207)")
	}
	switch code := answer.Get("error"); code {
	case "":
	case "access_denied", "login_required", "consent_required", "interaction_required":
		return connector.User{}, fmt.Errorf("%w: %s", connector.ErrRefused, code)
	default:
		if !errorForm.MatchString(code) {
			code = "unknown"
		}
		return connector.User{}, fmt.Errorf("the provider responds with the error %s", code)
	}
	code := answer.Get("code")
	if code == "" || len(code) > maxCode {
		return connector.User{}, errors.New("the provider's response has no code")
	}
	app, _ := c.app(p, callback)
	tokens, err := app.Exchange(ctx, code, oauth2.VerifierOption(own.Verifier))
	if err != nil {
		return connector.User{}, describe("redeem the code", err)
	}
	raw, _ := tokens.Extra("id_token").(string)
	idToken, claims, err := c.verify(ctx, p, raw, tokens.AccessToken)
	if err != nil {
		return connector.User{}, err
	}
	if subtle.ConstantTimeCompare([]byte(idToken.Nonce), []byte(own.Nonce)) != 1 {
		return connector.User{}, errors.New("the ID token belongs to another login: its nonce differs")
	}
	return c.user(ctx, p, idToken.Subject, claims, tokens)
}

// Refresh uses the provider's refresh token to query the user again.
func (c *Connector) Refresh(ctx context.Context, last connector.User) (connector.User, error) {
	if len(last.State) == 0 {
		return connector.User{}, fmt.Errorf("%w: the provider gave no refresh token", connector.ErrRefused)
	}
	ctx, cancel := c.context(ctx)
	defer cancel()
	p, err := c.discover(ctx)
	if err != nil {
		return connector.User{}, err
	}
	app, _ := c.app(p, "")
	tokens, err := app.TokenSource(ctx, &oauth2.Token{RefreshToken: string(last.State)}).Token()
	if retrieve := (*oauth2.RetrieveError)(nil); errors.As(err, &retrieve) && retrieve.ErrorCode == "invalid_grant" {
		return connector.User{}, fmt.Errorf("%w: the refresh token is no longer valid", connector.ErrRefused)
	} else if err != nil {
		return connector.User{}, describe("refresh", err)
	}
	var claims map[string]json.RawMessage
	if raw, ok := tokens.Extra("id_token").(string); ok {
		idToken, all, err := c.verify(ctx, p, raw, tokens.AccessToken)
		if err != nil {
			return connector.User{}, err
		}
		if idToken.Subject != last.ID {
			return connector.User{}, fmt.Errorf("%w: the refresh token now belongs to another user", connector.ErrRefused)
		}
		claims = all
	}
	return c.user(ctx, p, last.ID, claims, tokens)
}

// Check reports whether the provider returns its metadata.
func (c *Connector) Check(ctx context.Context) error {
	ctx, cancel := c.context(ctx)
	defer cancel()
	_, err := c.ask(ctx)
	return err
}

// app returns the OAuth client that the hub uses with a provider, and reports whether the client requests refresh
// tokens.
func (c *Connector) app(p *provider, callback string) (app oauth2.Config, offline bool) {
	endpoint := p.Endpoint()
	endpoint.AuthStyle = p.style
	scopes, offline := c.scopes(p)
	return oauth2.Config{
		ClientID: c.ClientID, ClientSecret: c.ClientSecret, RedirectURL: callback, Endpoint: endpoint, Scopes: scopes,
	}, offline
}

// scopes returns the scopes that a login requests, and reports whether the login requests refresh tokens. It omits
// unsupported scopes, because a provider may refuse a login that requests one.
func (c *Connector) scopes(p *provider) (scopes []string, offline bool) {
	wanted := c.Scopes
	if wanted == nil {
		wanted = []string{"profile"}
		if p.google || p.scopes == nil || slices.Contains(p.scopes, oidc.ScopeOfflineAccess) {
			wanted = append(wanted, oidc.ScopeOfflineAccess)
		}
	}
	offline = slices.Contains(wanted, oidc.ScopeOfflineAccess)
	return append([]string{oidc.ScopeOpenID}, slices.DeleteFunc(slices.Clone(wanted), func(s string) bool {
		return s == oidc.ScopeOpenID || s == oidc.ScopeOfflineAccess && p.google
	})...), offline
}

func (c *Connector) prompt(offline bool) string {
	switch {
	case c.Prompt != nil:
		return *c.Prompt
	case offline:
		return "consent"
	}
	return ""
}

func (c *Connector) context(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(oidc.ClientContext(ctx, c.client), c.limit)
}

// discover returns the provider's metadata, from the cache if possible.
func (c *Connector) discover(ctx context.Context) (*provider, error) {
	c.mu.Lock()
	known := c.known
	c.mu.Unlock()
	if known != nil && c.now().Sub(known.at) < discoverEvery {
		return known, nil
	}
	return c.ask(ctx)
}

func (c *Connector) ask(ctx context.Context) (*provider, error) {
	found, err := oidc.NewProvider(ctx, c.URL)
	if err != nil {
		return nil, fmt.Errorf("ask the provider for its configuration: %w", outline(err))
	}
	endpoints := found.Endpoint()
	var more struct { // the metadata that oidc.Provider does not expose
		NamesIssuer bool     `json:"authorization_response_iss_parameter_supported"`
		Keys        string   `json:"jwks_uri"`
		Methods     []string `json:"token_endpoint_auth_methods_supported"`
		Scopes      []string `json:"scopes_supported"`
	}
	if err := found.Claims(&more); err != nil {
		return nil, errors.New("the provider's configuration is malformed")
	}
	for name, endpoint := range map[string]string{"authorization_endpoint": endpoints.AuthURL,
		"token_endpoint": endpoints.TokenURL, "jwks_uri": more.Keys, "userinfo_endpoint": found.UserInfoEndpoint()} {
		u, err := url.Parse(endpoint)
		if endpoint == "" && name == "userinfo_endpoint" {
			continue
		}
		if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil {
			return nil, fmt.Errorf("the provider's configuration has a %s that is not an https URL", name)
		}
	}
	p := &provider{
		Provider: found, namesIssuer: more.NamesIssuer, style: style(more.Methods),
		scopes: more.Scopes, google: ofGoogle(endpoints.AuthURL), at: c.now(),
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known = p
	return p, nil
}

// style returns how the hub authenticates to a provider. If the metadata lists no methods, x/oauth2 may try two methods
// with the same code or refresh token. A provider that accepts a code or token only once may refuse the second attempt
// or end the session.
func style(methods []string) oauth2.AuthStyle {
	switch {
	case slices.Contains(methods, "client_secret_basic"):
		return oauth2.AuthStyleInHeader
	case slices.Contains(methods, "client_secret_post"):
		return oauth2.AuthStyleInParams
	}
	return oauth2.AuthStyleAutoDetect
}

// ofGoogle reports whether an authorization endpoint belongs to Google. Google issues refresh tokens for
// access_type=offline.
func ofGoogle(authorization string) bool {
	u, err := url.Parse(authorization)
	return err == nil && u.Host == "accounts.google.com"
}
