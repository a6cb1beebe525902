// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package oidc

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Limits on data from the provider.
const (
	maxBody = 2 << 20 // the claims of a user in 20,000 groups occupy about 1 MiB
	// maxForm is the maximum size of a response that is not JSON, in bytes.
	maxForm = 16 << 10
)

func bounds() untrusted.Bounds { return untrusted.Large().WithBytes(maxBody) }

// verify checks that the provider issued an ID token for the hub. It returns the token and its claims.
func (c *Connector) verify(ctx context.Context, p *provider, raw, access string) (*oidc.IDToken,
	map[string]json.RawMessage, error) {
	if raw == "" {
		return nil, nil, errors.New("the provider gave no ID token")
	}
	var payload json.RawMessage // is bounded before go-oidc decodes it
	if untrusted.Claims(raw, &payload, bounds()) != nil {
		return nil, nil, errors.New("the ID token is malformed, or has too many claims")
	}
	token, err := p.VerifierContext(ctx, &oidc.Config{ClientID: c.ClientID, Now: c.now}).Verify(ctx, raw)
	if err != nil && strings.Contains(err.Error(), "fetching keys") { // go-oidc quotes the response from jwks_uri
		return nil, nil, errors.New("the ID token cannot be checked: there are no keys at the provider's jwks_uri, or it does not " +
			"answer")
	} else if err != nil {
		return nil, nil, fmt.Errorf("the ID token is not valid: %w", brief(err, raw, access))
	}
	claims := map[string]json.RawMessage{}
	if err := token.Claims(&claims); err != nil {
		return nil, nil, errors.New("the ID token has malformed claims")
	}
	if token.Subject == "" {
		return nil, nil, errors.New("the ID token has no sub")
	}
	if token.AccessTokenHash != "" && token.VerifyAccessToken(access) != nil {
		return nil, nil, errors.New("the ID token belongs to another access token")
	}
	// According to OpenID Connect Core with errata set 2, section 3.1.3.7, a token with several audiences does not need
	// azp. go-oidc does not check azp.
	if azp, ok := claims["azp"]; ok {
		var party string
		if untrusted.JSON(azp, &party, bounds()) != nil || party != c.ClientID {
			return nil, nil, errors.New("the ID token was issued to another client: its azp differs")
		}
	}
	return token, claims, nil
}

// user returns the user that the verified claims describe. It requests missing claims from the provider's userinfo
// endpoint.
func (c *Connector) user(ctx context.Context, p *provider, subject string, claims map[string]json.RawMessage,
	tokens *oauth2.Token) (connector.User, error) {
	_, named := claims[c.NameClaim]
	if _, grouped := claims[c.GroupsClaim]; (!named || !grouped) && p.UserInfoEndpoint() != "" {
		info, err := p.UserInfo(ctx, oauth2.StaticTokenSource(tokens))
		if err != nil {
			return connector.User{}, fmt.Errorf("ask the provider for the user's claims: %w", outline(err))
		}
		if info.Subject != subject {
			return connector.User{}, fmt.Errorf("%w: the provider's userinfo describes another user", connector.ErrRefused)
		}
		more := map[string]json.RawMessage{}
		if err := info.Claims(&more); err != nil {
			return connector.User{}, errors.New("the provider's userinfo has malformed claims")
		}
		claims = merged(claims, more)
	}
	name, groups, err := c.read(claims)
	if err != nil {
		return connector.User{}, err
	}
	notice := c.overage(claims)
	if notice != "" && len(c.AllowedGroups) > 0 {
		return connector.User{}, fmt.Errorf("%w: it is not known whether the user is in one of the allowed groups: %s",
			connector.ErrRefused, notice)
	}
	if len(c.AllowedGroups) > 0 &&
		!slices.ContainsFunc(groups, func(g string) bool { return slices.Contains(c.AllowedGroups, g) }) {
		return connector.User{}, fmt.Errorf("%w: the user is in none of the allowed groups", connector.ErrRefused)
	}
	if len(tokens.RefreshToken) > maxState {
		return connector.User{}, fmt.Errorf("the provider's refresh token is longer than %d bytes", maxState)
	}
	return connector.User{
		ID: subject, Name: name, Groups: groups, Notice: notice, State: []byte(tokens.RefreshToken),
	}, nil
}

// overage returns a notice if the provider omitted a user's groups because there are too many, as Entra ID does for
// more than 200 groups. The token then contains a distributed claim in place of the groups, or only a claim that the
// user has many groups. The hub does not follow distributed claims, because it would have to send a request to an
// address from a token. The omitted groups therefore grant no rights.
func (c *Connector) overage(claims map[string]json.RawMessage) string {
	if _, ok := claims[c.GroupsClaim]; ok {
		return ""
	}
	var elsewhere map[string]json.RawMessage
	distributed := untrusted.JSON(claims["_claim_names"], &elsewhere, bounds()) == nil && elsewhere[c.GroupsClaim] != nil
	many := false
	if _ = untrusted.JSON(claims["hasgroups"], &many, bounds()); !distributed && !many {
		return ""
	}
	return "the provider left out your groups because you are in too many, so you have only the rights that name you: " +
		"an administrator must configure it to put only the groups that are assigned to the hub into tokens"
}

// merged returns the claims of an ID token, supplemented with claims from the userinfo endpoint that the ID token
// lacks.
func merged(signed, said map[string]json.RawMessage) map[string]json.RawMessage {
	const verified = "email_verified" // applies only to the email claim from the same source
	email, ok := signed["email"]
	if ok && !bytes.Equal(email, said["email"]) {
		delete(said, verified)
	}
	signed = maps.Clone(signed)
	if !ok {
		delete(signed, verified)
	}
	maps.Copy(said, signed) // signed claims take precedence
	return said
}

// read extracts the user's name and groups from claims.
func (c *Connector) read(claims map[string]json.RawMessage) (name string, groups []string, err error) {
	if untrusted.JSON(claims[c.NameClaim], &name, bounds()) != nil || name == "" {
		return "", nil, fmt.Errorf("the provider gave no name of the user: the claim %s is not a string", c.NameClaim)
	}
	if verified := false; c.NameClaim == "email" &&
		(untrusted.JSON(claims["email_verified"], &verified, bounds()) != nil || !verified) {
		return "", nil, fmt.Errorf("%w: the provider has not verified the user's address", connector.ErrRefused)
	}
	if c.LowercaseNames {
		name = strings.Map(lower, name)
	}
	raw, ok := claims[c.GroupsClaim]
	if !ok || string(raw) == "null" {
		return name, nil, nil
	}
	var one string
	if untrusted.JSON(raw, &one, bounds()) == nil {
		return name, []string{one}, nil
	}
	if untrusted.JSON(raw, &groups, bounds()) != nil {
		return "", nil, fmt.Errorf("the claim %s is not a list of names", c.GroupsClaim)
	}
	if len(groups) > maxGroups {
		return "", nil, fmt.Errorf("the user is in more than %d groups", maxGroups)
	}
	return name, groups, nil
}

// lower converts an ASCII capital letter to lower case. It does not change other letters, because names cannot contain
// them. Some of them, such as the Kelvin sign, become ASCII letters in lower case.
func lower(r rune) rune {
	if 'A' <= r && r <= 'Z' {
		return r + ('a' - 'A')
	}
	return r
}

// describe returns an error without text from the provider, because that text may contain tokens.
func describe(what string, err error) error {
	if retrieve, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		status, code := 0, retrieve.ErrorCode
		if retrieve.Response != nil {
			status = retrieve.Response.StatusCode
		}
		if !errorForm.MatchString(code) {
			code = "unknown"
		}
		return fmt.Errorf("%s: the provider responds with the status %d and the error %s", what, status, code)
	}
	return fmt.Errorf("%s: %w", what, outline(err))
}

// errorForm matches OAuth error codes.
var errorForm = regexp.MustCompile(`^[a-z_]{1,64}$`)

// outline returns an error without text from the provider. The libraries quote whole response bodies, and an HTML page
// may repeat a token from the request.
func outline(err error) error {
	var network *url.Error
	var mismatch *oidc.IssuerMismatchError
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &network):
		return brief(network)
	case errors.As(err, &mismatch):
		return fmt.Errorf("it calls itself %.256q", mismatch.Discovered)
	case errors.As(err, &long):
		return fmt.Errorf("its response is longer than %d bytes", long.Limit)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	}
	if status, err := strconv.Atoi(err.Error()[:min(3, len(err.Error()))]); err == nil {
		return fmt.Errorf("it responds with the status %d", status)
	}
	return errors.New("its response is malformed or incomplete")
}

// brief limits the length of an error's text, and removes unprintable characters and secrets, because the libraries
// quote response bodies.
func brief(err error, secrets ...string) error {
	const most = 256
	text := err.Error()
	for _, secret := range secrets {
		if secret != "" && strings.Contains(text, secret) {
			return errors.New("the response is omitted, because it repeats a token")
		}
	}
	if len(text) > most || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
		return fmt.Errorf("%.*q", most, text)
	}
	return err
}

// HTTPClient returns a client that follows no redirects and limits the size and duration of responses.
func HTTPClient(roots *x509.CertPool) *http.Client {
	client := connector.Client(roots, askTimeout, 32)
	client.Transport = bounded{client.Transport}
	return client
}

// bounded limits the size of response bodies, the size of their decoded form, and the number of keys in them.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return boundAnswer(response)
}

// maxKeys is the maximum number of keys that a provider may publish. If a token does not name its key, its signature is
// checked with every key. No deadline interrupts these checks. go-jose limits the size of each key.
const maxKeys = 64

// boundAnswer reads the body of a response into memory. It returns an error if decoding the body would take too much
// memory. The libraries decode JSON into maps, and parse other content as a form.
func boundAnswer(response *http.Response) (*http.Response, error) {
	defer response.Body.Close()
	raw, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("read the provider's response: %w", err)
	}
	if err := untrusted.Check(raw, bounds()); err != nil {
		return nil, fmt.Errorf("the provider's response: %w", err)
	}
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	err = untrusted.JSON(raw, &set, bounds()) // content in other formats is checked below
	if len(set.Keys) > maxKeys {
		return nil, fmt.Errorf("the provider has %d keys, more than %d", len(set.Keys), maxKeys)
	}
	if err != nil && len(raw) > maxForm && !json.Valid(raw) && !isJWT(raw) {
		return nil, fmt.Errorf("the provider's response is not JSON and has more than %d bytes", maxForm)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// isJWT reports whether a response has the format of a signed userinfo response. A response in this format is small
// even when a library parses it as a form, because the form has only one value.
func isJWT(raw []byte) bool {
	return bytes.Count(raw, []byte(".")) == 2 && !bytes.ContainsAny(raw, "&=")
}
