// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	maxBody    = 2 << 20 // the maximum size of one page after decompression, in bytes
	maxMessage = 200
)

// bounds returns the limits for one page of a response. A page with 100 teams contains 16,000 values.
func bounds() untrusted.Bounds {
	return untrusted.Bounds{Bytes: maxBody, Nodes: 64 << 10, Depth: 16}
}

// bounded limits the size of the token response, because the library decodes it into a map. The functions that read
// other responses limit their size.
type bounded struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(r)
	if err != nil || r.Method != http.MethodPost {
		return response, err
	}
	defer response.Body.Close()
	small := untrusted.Small()
	raw, err := io.ReadAll(http.MaxBytesReader(nil, response.Body, int64(small.Bytes)))
	if err == nil {
		err = untrusted.Check(raw, small)
	}
	if err != nil {
		return nil, fmt.Errorf("read the answer: %w", err)
	}
	response.Body = io.NopCloser(bytes.NewReader(raw))
	return response, nil
}

// errorForm matches OAuth error codes. Errors contain no other part of a response, because an error page may repeat the
// request.
var errorForm = regexp.MustCompile(`^[a-z_]{1,64}$`)

// statusError is an error response from the API. Its Error method returns no text from GitHub.
type statusError struct {
	path    string
	code    int
	message string // text from GitHub, used only for comparisons
	wait    string // how long to wait, if a rate limit was exceeded
	sso     bool   // whether an organization requires single sign-on
}

func (e *statusError) Error() string {
	switch {
	case e.wait != "":
		return fmt.Sprintf("GitHub's rate limit is reached (%d at %s): %s", e.code, e.path, e.wait)
	case e.sso:
		return fmt.Sprintf("GitHub forbids the request at %s (%d): an organization requires SAML single sign-on: "+
			"the user has to sign in there, and authorize the app", e.path, e.code)
	case e.code == http.StatusUnauthorized:
		return "GitHub refuses the request at " + e.path + " (401)"
	case e.code == http.StatusForbidden || e.code == http.StatusNotFound:
		return fmt.Sprintf("GitHub forbids the request at %s (%d): the app needs the scope %s, and an organization may "+
			"restrict apps or client addresses", e.path, e.code, scope)
	case e.code >= 300 && e.code < 400:
		return fmt.Sprintf("GitHub redirects the request at %s (%d), which is not followed: is the URL the one that users "+
			"sign in at?", e.path, e.code)
	default:
		return fmt.Sprintf("GitHub responds to the request at %s with %d: see its status page, and try again", e.path, e.code)
	}
}

// suspended reports whether GitHub's message says that the account is suspended. GitHub has no code for this case, only
// the text "Sorry. Your account was suspended".
func (e *statusError) suspended() bool {
	return e.code == http.StatusForbidden && e.wait == "" && strings.Contains(strings.ToLower(e.message),
		"account was suspended")
}

// bearer returns a function that adds a user's token to a request.
func bearer(token string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) }
}

// get sends a request to the API and decodes the response into value. It returns ErrRefused if GitHub no longer accepts
// the token.
func (c *Connector) get(ctx context.Context, path string, authenticate func(*http.Request), value any) (http.Header,
	error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.api+path, nil)
	if err != nil {
		return nil, err
	}
	authenticate(req)
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("User-Agent", "drover")
	req.Header.Set("X-GitHub-Api-Version", "2022-11-28")
	shown, _, _ := strings.Cut(c.api+path, "?")
	resp, err := c.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("GitHub does not respond: %w", err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err == nil {
		err = ctx.Err() // the body may be incomplete because the request was canceled
	}
	switch {
	case err != nil:
		return nil, fmt.Errorf("GitHub's response at %s is incomplete: %w", shown, err)
	case len(raw) > maxBody:
		return nil, fmt.Errorf("GitHub's response at %s has more than %d MiB", shown, maxBody>>20)
	case resp.StatusCode != http.StatusOK:
		return nil, c.failed(req, resp, raw, shown)
	}
	if kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); kind != "application/json" ||
		untrusted.JSON(raw, value, bounds()) != nil {
		return nil, fmt.Errorf("the server at %s is not the API of a GitHub: check the URL of the provider, and look "+
			"for a proxy in between", shown)
	}
	return resp.Header, nil
}

func (c *Connector) failed(req *http.Request, resp *http.Response, raw []byte, shown string) error {
	e := &statusError{
		path: shown, code: resp.StatusCode, wait: c.limited(resp),
		sso: strings.HasPrefix(resp.Header.Get(headerSSO), "required"),
	}
	var said struct {
		Message string `json:"message"`
	}
	if untrusted.JSON(raw, &said, bounds()) == nil {
		e.message = strings.Clone(said.Message[:min(len(said.Message), maxMessage)])
	}
	if e.wait == "" && strings.Contains(strings.ToLower(e.message), "secondary rate limit") {
		e.wait = "try again in a few minutes"
	}
	// An intermediate proxy may respond with 401 and an HTML page. Only a response from the API itself ends the login.
	if e.code == http.StatusUnauthorized && e.message != "" &&
		strings.HasPrefix(req.Header.Get("Authorization"), "Bearer ") {
		return fmt.Errorf("%w: GitHub no longer accepts the token of the login: the user or an administrator revoked it, or "+
			"it was not used for a year", connector.ErrRefused)
	}
	return e
}

// limited returns how long to wait according to a response's headers. It returns "" if no limit was exceeded.
func (c *Connector) limited(resp *http.Response) string {
	if resp.StatusCode != http.StatusForbidden && resp.StatusCode != http.StatusTooManyRequests {
		return ""
	}
	if after, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && after >= 0 && after < 1<<20 {
		return fmt.Sprintf("try again in %s", time.Duration(after)*time.Second)
	}
	if resp.Header.Get("X-RateLimit-Remaining") == "0" {
		if reset, err := strconv.ParseInt(resp.Header.Get("X-RateLimit-Reset"), 10, 64); err == nil && reset > 0 &&
			reset < 1<<40 {
			return fmt.Sprintf("try again in %s", time.Unix(reset, 0).Sub(c.now()).Round(time.Second))
		}
		return "try again in an hour"
	}
	if resp.StatusCode == http.StatusTooManyRequests {
		return "try again in a few minutes"
	}
	return ""
}

// redeem exchanges a code for the user's token.
func (c *Connector) redeem(ctx context.Context, callback, verifier, code string) (string, error) {
	app := c.app
	app.RedirectURL = callback
	token, err := app.Exchange(context.WithValue(ctx, oauth2.HTTPClient, c.client), code, oauth2.VerifierOption(verifier))
	if err != nil {
		return "", c.unredeemed(err)
	}
	// GitHub grants only the scopes that the user left selected. The token of a GitHub App has no scopes, and can read
	// only organizations that have installed the app.
	granted, _ := token.Extra("scope").(string)
	readable := func(s string) bool {
		return slices.Contains([]string{scope, "write:org", "admin:org"}, strings.TrimSpace(s))
	}
	if !slices.ContainsFunc(strings.FieldsFunc(granted, func(r rune) bool { return r == ',' || r == ' ' }), readable) {
		return "", fmt.Errorf("GitHub gave a token without the scope %s: the app has to be an OAuth app, not a GitHub App, "+
			"and the user has to grant what it asks for", scope)
	}
	if !strings.EqualFold(token.TokenType, "bearer") || len(token.AccessToken) > maxState/2 {
		return "", errors.New("GitHub gave no token of a known form")
	}
	return token.AccessToken, nil
}

// unredeemed returns an error that explains why GitHub did not redeem a code. The error contains no text from the
// response.
func (c *Connector) unredeemed(err error) error {
	if answered, ok := errors.AsType[*oauth2.RetrieveError](err); ok {
		if answered.ErrorCode != "" {
			return c.answered(answered.ErrorCode)
		}
		return &statusError{path: c.app.Endpoint.TokenURL, code: answered.Response.StatusCode,
			wait: c.limited(answered.Response)}
	}
	if network, ok := errors.AsType[*url.Error](err); ok {
		return fmt.Errorf("GitHub does not respond: %w", network)
	}
	return fmt.Errorf("the server at %s is not GitHub: check the URL of the provider, and look for a proxy in "+
		"between", c.app.Endpoint.TokenURL)
}

// answered returns the error for one of GitHub's OAuth error codes.
func (c *Connector) answered(code string) error {
	if !errorForm.MatchString(code) {
		code = "an unknown error"
	}
	switch code {
	case "access_denied":
		return fmt.Errorf("%w: the user did not authorize the app at GitHub", connector.ErrRefused)
	case "unverified_user_email":
		return fmt.Errorf("%w: the user has to verify their primary email address at GitHub first", connector.ErrRefused)
	case "bad_verification_code":
		return errors.New("GitHub no longer accepts the code of this login (bad_verification_code): sign in again")
	case "incorrect_client_credentials":
		return errors.New("GitHub refuses the client ID or the client secret of the OAuth app " +
			"(incorrect_client_credentials): an administrator has to correct them")
	case "redirect_uri_mismatch":
		return errors.New("the OAuth app on GitHub has a different callback URL (redirect_uri_mismatch): an " +
			"administrator has to correct it there")
	case "application_suspended":
		return errors.New("GitHub suspended the OAuth app (application_suspended): an administrator has to ask GitHub")
	default:
		return fmt.Errorf("GitHub responds to the login with %s: sign in again", code)
	}
}
