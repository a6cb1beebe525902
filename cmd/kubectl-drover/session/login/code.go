// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os/exec"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
)

const (
	// callbackPath is the path of the redirect URI.
	callbackPath = "/callback"
	// pageLimit is how long the browser may take to load the last page.
	pageLimit = 5 * time.Second
)

// Code signs a user in with a browser on the same computer. It uses the authorization code flow with PKCE and a
// loopback redirect (RFC 8252). It calls show with the URL that the user has to open.
func (i *Issuer) Code(ctx context.Context, show func(url string)) (*Session, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "[::1]:0")
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the browser on this computer: %w", err)
	}
	c := &callback{
		issuer: i, ctx: ctx, oauth: i.oauth,
		state: rand.Text(), nonce: rand.Text(), verifier: oauth2.GenerateVerifier(), done: make(chan result, 1),
	}
	c.oauth.RedirectURL = "http://" + listener.Addr().String() + callbackPath
	server := &http.Server{Handler: c, ReadHeaderTimeout: pageLimit, ReadTimeout: pageLimit, MaxHeaderBytes: 64 << 10}
	go func() { _ = server.Serve(listener) }() // returns when the server is closed
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pageLimit)
		defer cancel()
		if server.Shutdown(ctx) != nil { // waits until the last page has been sent
			_ = server.Close()
		}
	}()
	show(c.oauth.AuthCodeURL(c.state, oauth2.S256ChallengeOption(c.verifier), oidc.Nonce(c.nonce)))
	select {
	case r := <-c.done:
		return r.session, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("the browser did not return from %s: %w", i.URL, context.Cause(ctx))
	}
}

type result struct {
	session *Session
	err     error
}

// callback handles the redirect request. It accepts only one such request.
type callback struct {
	issuer                 *Issuer
	ctx                    context.Context // the context of the command, because the command outlives the request
	oauth                  oauth2.Config
	state, nonce, verifier string
	used                   atomic.Bool
	done                   chan result
}

// ServeHTTP implements http.Handler. A request with a wrong state comes from an unrelated page and must not end the
// sign-in.
func (c *callback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Cache-Control", "no-store")
	query, err := url.ParseQuery(r.URL.RawQuery)
	if r.Method != http.MethodGet || r.URL.Path != callbackPath {
		http.NotFound(w, r)
		return
	}
	if err != nil || !once(query) || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(c.state)) != 1 {
		http.Error(w, "This page does not belong to the current sign-in. Open the address that the terminal shows.",
			http.StatusBadRequest)
		return
	}
	if !c.used.CompareAndSwap(false, true) {
		http.Error(w, "This page was already opened. See the terminal for the result.", http.StatusBadRequest)
		return
	}
	session, err := c.redeem(query)
	if err != nil {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = io.WriteString(w, "You are not signed in. See the terminal for the reason. You can close this window.\n")
	} else {
		_, _ = io.WriteString(w, "You are signed in. You can close this window and continue in the terminal.\n")
	}
	c.done <- result{session, err}
}

// redeem exchanges the code in the redirect request for a session.
func (c *callback) redeem(query url.Values) (*Session, error) {
	names := c.issuer.metadata.NamesIssuer || query.Has("iss")
	switch {
	case names && query.Get("iss") != c.issuer.URL:
		return nil, fmt.Errorf("the browser returned from %q instead of %s (RFC 9207): start again, and do not open other "+
			"links in the meantime", query.Get("iss"), c.issuer.URL)
	case query.Get("error") != "":
		return nil, fmt.Errorf("%s refused the sign-in: %s (%s)", c.issuer.URL, query.Get("error_description"),
			query.Get("error"))
	case query.Get("code") == "":
		return nil, errors.New("the browser returned without a code")
	}
	token, err := c.oauth.Exchange(c.issuer.context(c.ctx), query.Get("code"), oauth2.VerifierOption(c.verifier))
	if err != nil {
		return nil, fmt.Errorf("redeem the code at %s: %w", c.issuer.URL, err)
	}
	return c.issuer.session(c.ctx, token, c.nonce)
}

func once(query url.Values) bool {
	for _, values := range query {
		if len(values) != 1 {
			return false
		}
	}
	return true
}

// OpenBrowser opens a URL in the user's browser. It does not wait for the browser to exit.
func OpenBrowser(ctx context.Context, url string) error {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	// if the command starts a browser, the browser keeps running
	command := exec.CommandContext(context.WithoutCancel(ctx), name, args...)
	if err := command.Start(); err != nil {
		return err
	}
	go func() { _ = command.Wait() }()
	return nil
}

// Device signs a user in with a browser on any computer (RFC 8628). The user opens a URL in the browser and enters a
// code. Device calls show with the URL and the code.
func (i *Issuer) Device(ctx context.Context, show func(url, code string)) (*Session, error) {
	if i.oauth.Endpoint.DeviceAuthURL == "" {
		return nil, fmt.Errorf("%s does not support device codes: omit --device, or use a newer hub", i.URL)
	}
	asked, err := i.oauth.DeviceAuth(i.context(ctx))
	if err != nil {
		return nil, fmt.Errorf("ask %s for a device code: %w", i.URL, err)
	}
	if !i.own(asked.VerificationURI) {
		return nil, fmt.Errorf("the hub %s refers to %q, which is not its own address: contact its administrator", i.URL,
			asked.VerificationURI)
	}
	show(asked.VerificationURI, asked.UserCode)
	token, err := i.oauth.DeviceAccessToken(i.context(ctx), asked)
	var refused *oauth2.RetrieveError
	switch {
	case errors.As(err, &refused) && refused.ErrorCode == "access_denied":
		return nil, errors.New("the sign-in was refused in the browser")
	case errors.As(err, &refused) && refused.ErrorCode == "expired_token", errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("the code %s was not confirmed in time: start again", asked.UserCode)
	case err != nil:
		return nil, fmt.Errorf("wait for the code to be confirmed at %s: %w", i.URL, err)
	}
	return i.session(ctx, token, "")
}
