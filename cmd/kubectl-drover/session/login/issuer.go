// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package login signs a user in to a hub's issuer, and stores the user's tokens in the user's home directory.
package login

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// clientID identifies the public OAuth client that every hub accepts without registration.
	clientID = "kubectl"
	// scopeOffline requests a refresh token.
	scopeOffline = "offline_access"
	// maxResponse is the maximum size of a response from the hub, in bytes. requestLimit is the time limit of a
	// request.
	maxResponse  = 8 << 20
	requestLimit = 30 * time.Second
	// maxPause is the longest pause between polls that a hub can request, in seconds.
	maxPause = 5
)

// ErrRefused is returned when the issuer refuses to renew the user's token. The user has to sign in again.
var ErrRefused = errors.New("the session has ended")

// metadata contains the fields of the issuer's metadata that oidc.Provider does not return (RFC 8414, RFC 8628, RFC
// 9207).
type metadata struct {
	Keys        string   `json:"jwks_uri"`
	Revocation  string   `json:"revocation_endpoint"`
	Scopes      []string `json:"scopes_supported"`
	Challenges  []string `json:"code_challenge_methods_supported"`
	NamesIssuer bool     `json:"authorization_response_iss_parameter_supported"`
}

// Issuer is the issuer of a hub that users sign in to. Create one with Discover.
type Issuer struct {
	// URL is the URL of the hub. CA is the hub's PEM-encoded CA. If CA is empty, the computer's own CAs are trusted.
	URL string
	CA  []byte

	metadata metadata
	verifier *oidc.IDTokenVerifier
	oauth    oauth2.Config
	client   *http.Client
}

// pagePath is the path of the hub's page under the hub's URL.
const pagePath = "/ui"

// ParseURL normalizes the URL of a hub to the format of an issuer URL, which uses https, is in lower case, and contains
// neither port 443 nor a trailing slash. ParseURL also accepts an address of the hub's page, as shown by browsers.
func ParseURL(raw string) (string, error) {
	if !strings.Contains(raw, "://") {
		raw = "https://" + raw
	}
	u, err := url.Parse(raw)
	if err == nil {
		if hub, found := strings.CutSuffix(strings.TrimRight(u.Path, "/"), pagePath); found {
			u = &url.URL{Scheme: u.Scheme, User: u.User, Host: u.Host, Path: hub}
		}
		u.Path, u.RawPath = strings.TrimRight(u.Path, "/"), strings.TrimRight(u.RawPath, "/")
	}
	if err != nil || u.Scheme != "https" || u.Host == "" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", fmt.Errorf("%q is not the URL of a hub: use a URL such as https://hub.example.com", raw)
	}
	u.Host = strings.TrimSuffix(strings.ToLower(u.Host), ":443")
	return u.String(), nil
}

// Discover reads the metadata of a hub's issuer. All endpoints must belong to the hub itself, so that no token is sent
// to another server.
func Discover(ctx context.Context, issuer string, ca []byte) (*Issuer, error) {
	client, err := Client(ca)
	if err != nil {
		return nil, err
	}
	i := &Issuer{URL: issuer, CA: ca, client: client}
	provider, err := oidc.NewProvider(i.context(ctx), issuer)
	if err != nil {
		return nil, undiscovered(issuer, err)
	}
	if err := provider.Claims(&i.metadata); err != nil {
		return nil, fmt.Errorf("read the sign-in metadata of %s: %w", issuer, err)
	}
	m, e := i.metadata, provider.Endpoint()
	for _, endpoint := range []string{e.AuthURL, e.TokenURL, m.Keys, m.Revocation, e.DeviceAuthURL} {
		if endpoint != "" && !i.own(endpoint) {
			return nil, fmt.Errorf("the hub %s has the endpoint %q, which is not its own address: contact its administrator",
				issuer, endpoint)
		}
	}
	if e.AuthURL == "" || e.TokenURL == "" || !slices.Contains(m.Challenges, "S256") {
		return nil, fmt.Errorf("%s does not support PKCE (S256): is it a hub of Drover?", issuer)
	}
	i.verifier = provider.Verifier(&oidc.Config{ClientID: clientID})
	e.AuthStyle = oauth2.AuthStyleInParams // to detect the style, x/oauth2 would redeem the code twice
	i.oauth = oauth2.Config{ClientID: clientID, Scopes: []string{oidc.ScopeOpenID}, Endpoint: e}
	if slices.Contains(m.Scopes, scopeOffline) {
		i.oauth.Scopes = append(i.oauth.Scopes, scopeOffline)
	}
	return i, nil
}

// undiscovered explains what to do if the metadata of a hub cannot be read.
func undiscovered(issuer string, err error) error {
	if other, ok := errors.AsType[*oidc.IssuerMismatchError](err); ok {
		return fmt.Errorf("users of the hub at %s sign in at %q: use that URL", issuer, other.Discovered)
	}
	if _, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("read the sign-in metadata of %s: %w", issuer, err)
	}
	return fmt.Errorf("users cannot sign in at %s: sign-in is off there, or its URL, signIn.issuer in the hub's "+
		"configuration, is another one: %s", issuer, strings.TrimSpace(err.Error()))
}

func (i *Issuer) own(endpoint string) bool { return strings.HasPrefix(endpoint, i.URL+"/") }

// context makes x/oauth2 and go-oidc use the hub's HTTP client.
func (i *Issuer) context(ctx context.Context) context.Context {
	return oidc.ClientContext(ctx, i.client)
}

// session performs the checks that OpenID Connect requires of a client, and creates a session from the issuer's
// response. nonce is empty if the request contained no nonce.
func (i *Issuer) session(ctx context.Context, token *oauth2.Token, nonce string) (*Session, error) {
	raw, _ := token.Extra("id_token").(string)
	if raw == "" {
		return nil, fmt.Errorf("%s returned no ID token: is it a hub of Drover?", i.URL)
	}
	verified, err := i.verifier.Verify(i.context(ctx), raw)
	var expired *oidc.TokenExpiredError
	switch {
	case errors.As(err, &expired):
		return nil, fmt.Errorf("the token from %s expired at %s: compare the clocks of this computer and the hub", i.URL,
			expired.Expiry.Format(time.RFC3339))
	case err != nil:
		return nil, fmt.Errorf("verify the token from %s: %w", i.URL, err)
	case verified.Nonce != nonce && nonce != "":
		return nil, fmt.Errorf("the token from %s belongs to another sign-in: its nonce differs", i.URL)
	}
	s := &Session{Issuer: i.URL, CA: i.CA, Token: raw, Refresh: token.RefreshToken, Expires: token.Expiry}
	s.Notice, _ = token.Extra("drover_notice").(string)
	if s.Expires.IsZero() {
		s.Expires = verified.Expiry
	}
	return s, nil
}

// Refresh renews a session. The new token must belong to the same user. The error matches ErrRefused if the issuer
// refuses the renewal.
func (i *Issuer) Refresh(ctx context.Context, s *Session) (*Session, error) {
	if s.Refresh == "" {
		return nil, fmt.Errorf("%w: the hub gave no refresh token", ErrRefused)
	}
	token, err := i.patiently(ctx, func() (*oauth2.Token, error) {
		return i.oauth.TokenSource(i.context(ctx), &oauth2.Token{RefreshToken: s.Refresh}).Token()
	})
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.ErrorCode == "invalid_grant":
		return nil, fmt.Errorf("%w: %s", ErrRefused, refused.ErrorDescription)
	case err != nil:
		return nil, fmt.Errorf("ask %s for another token: %w", i.URL, err)
	}
	next, err := i.session(ctx, token, "")
	if err != nil {
		return nil, err
	}
	if was, is := s.Claims().Subject, next.Claims().Subject; was != is {
		return nil, fmt.Errorf("the hub %s returned a token of %q to %q: sign in again, and contact its administrator", i.URL,
			is, was)
	}
	return next, nil
}

// patiently retries a request a few times if the hub is unavailable, because a replica may be starting or stopping.
func (i *Issuer) patiently(ctx context.Context, ask func() (*oauth2.Token, error)) (*oauth2.Token, error) {
	for pauses := 3; ; pauses-- {
		token, err := ask()
		var later *oauth2.RetrieveError
		if pauses == 0 || !errors.As(err, &later) || later.ErrorCode != "temporarily_unavailable" {
			return token, err
		}
		seconds, _ := strconv.Atoi(later.Response.Header.Get("Retry-After"))
		select {
		case <-time.After(time.Duration(min(max(seconds, 1), maxPause)) * time.Second):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Revoke ends a session at the issuer (RFC 7009).
func (i *Issuer) Revoke(ctx context.Context, s *Session) error {
	if i.metadata.Revocation == "" {
		return fmt.Errorf("%s cannot revoke tokens: they expire at %s", i.URL, s.Expires.Local().Format(time.TimeOnly))
	}
	for hint, token := range map[string]string{"refresh_token": s.Refresh, "access_token": s.Token} {
		if token == "" {
			continue
		}
		fields := url.Values{"client_id": {clientID}, "token": {token}, "token_type_hint": {hint}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.metadata.Revocation, strings.NewReader(fields.Encode()))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := i.client.Do(req)
		if err != nil {
			return fmt.Errorf("revoke the token: %w", err)
		}
		_ = resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("revoke the token: %s responded with %s", i.URL, resp.Status)
		}
	}
	return nil
}

// Client returns an HTTP client for a hub. The client trusts the CA in ca. If ca is empty, the client trusts the
// computer's own CAs. It does not follow redirects, and it limits the size of responses.
func Client(ca []byte) (*http.Client, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(ca) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(ca) {
			return nil, errors.New("the CA of the hub is not a PEM certificate")
		}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: settings, ForceAttemptHTTP2: true, IdleConnTimeout: requestLimit}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: bounded{transport}, Timeout: requestLimit, CheckRedirect: stay}, nil
}

// bounded limits responses to maxResponse.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = struct {
			io.Reader
			io.Closer
		}{http.MaxBytesReader(nil, resp.Body, maxResponse), resp.Body}
	}
	return resp, err
}

// ForAudience exchanges a session's token for a token with a different audience (RFC 8693). The audience
// cluster:<namespace>/<name> is one Cluster at the hub. The URL of a Cluster on the hub is the Cluster's own address.
// The new token for the hub becomes invalid when the session ends.
func (i *Issuer) ForAudience(ctx context.Context, s *Session, audience string) (token string, until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	form := url.Values{
		"client_id": {clientID}, "grant_type": {"urn:ietf:params:oauth:grant-type:token-exchange"},
		"subject_token": {s.Token}, "subject_token_type": {"urn:ietf:params:oauth:token-type:access_token"}, "audience": {audience},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, i.oauth.Endpoint.TokenURL, strings.NewReader(form.Encode()))
	if err != nil {
		return "", time.Time{}, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	asked := time.Now()
	resp, err := i.client.Do(req)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("ask %s for a token for %s: %w", i.URL, audience, err)
	}
	defer resp.Body.Close()
	var got struct {
		Token   string `json:"access_token"`
		Seconds int64  `json:"expires_in"`
		Error   string `json:"error"`
		Message string `json:"error_description"`
	}
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxResponse)).Decode(&got); err != nil {
		return "", time.Time{}, fmt.Errorf("ask %s for a token for %s: %s: %w", i.URL, audience, resp.Status, err)
	}
	if resp.StatusCode != http.StatusOK || got.Token == "" {
		return "", time.Time{}, fmt.Errorf("%s refused a token for %s: %s: %s", i.URL, audience, got.Error, got.Message)
	}
	return got.Token, asked.Add(time.Duration(got.Seconds) * time.Second), nil
}
