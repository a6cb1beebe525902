// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package login serves the login pages, and issues codes to clients.
package login

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
	"github.com/drover-dev/drover/internal/signin/quietlog"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/upstream"
	"github.com/drover-dev/drover/internal/signin/usercode"
)

// Paths of the pages. PathProvider redirects the browser to a provider, and the provider redirects the browser back to
// PathCallback.
const (
	PathAuthorize = "/v1/auth/authorize"
	PathLogin     = "/v1/auth/login"
	PathProvider  = "/v1/auth/provider/"
	PathCallback  = "/v1/auth/callback/"
)

// Options configures Pages. All fields are required.
type Options struct {
	Issuer     string
	Keyring    *keyring.Keyring
	Accounts   *account.Accounts
	Sessions   *session.Store
	Connectors *upstream.Connectors
	Now        func() time.Time
	Log        *quietlog.Log
}

// Pages serves the login pages of one replica. It is safe for concurrent use.
type Pages struct {
	Options

	passwords  passwords
	upstreams  upstreams
	wrongCodes *attempts.Log // wrong device codes, by address
}

// New returns the login pages of one replica.
func New(o Options) *Pages {
	return &Pages{Options: o, passwords: newPasswords(), upstreams: newUpstreams(), wrongCodes: attempts.New()}
}

// Register adds the pages to a mux.
func (p *Pages) Register(mux *http.ServeMux) {
	mux.HandleFunc("GET "+PathAuthorize, p.authorize)
	mux.HandleFunc("POST "+PathLogin, p.login)
	mux.HandleFunc("GET "+PathProvider+"{provider}", p.leave)
	mux.HandleFunc("GET "+PathCallback+"{provider}", p.callback)
	mux.HandleFunc("POST "+PathCallback+"{provider}", p.postedCallback)
	mux.HandleFunc("GET "+oauth.PathDevice, p.device)
}

// keys returns the issuer's keys. If the keys cannot be read, it writes an error page and returns nil.
func (p *Pages) keys(w http.ResponseWriter, r *http.Request) *keyring.Keys {
	keys, err := p.Keyring.Current(r.Context())
	if err != nil {
		p.unavailable(w, err)
		return nil
	}
	return keys
}

// unavailable logs why the hub cannot serve a request, and writes an error page.
func (p *Pages) unavailable(w http.ResponseWriter, err error) {
	p.Log.Complain(err, "sign-in request not served")
	page.WriteUnavailable(w)
}

// device shows the page for a user code. Without a code, the page is a form in which the user enters the code. With a
// code, it is the login page. The user approves the device by signing in.
func (p *Pages) device(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(query["user_code"]) > 1 || len(query.Get("user_code")) > oauth.MaxField {
		page.WriteError(w, http.StatusBadRequest, "The address is malformed.")
		return
	}
	typed := query.Get("user_code")
	if typed == "" {
		page.WriteDevice(w, http.StatusOK, "", true)
		return
	}
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	source := limit.Source(r.RemoteAddr)
	try := attempts.Attempt{User: source, Source: source}
	if wait := p.wrongCodes.Begin(try, p.Now()); wait > 0 {
		seconds := int((wait + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		page.WriteDevice(w, http.StatusTooManyRequests,
			fmt.Sprintf("Too many wrong codes. Try again in %d seconds.", seconds), true)
		return
	}
	code, ok := usercode.Parse(typed, p.Now(), keys.Sealing...)
	if !ok {
		page.WriteDevice(w, http.StatusNotFound, "The code is wrong or has expired. "+
			"Compare it with the one on the device, or start again there.", true)
		return
	}
	p.wrongCodes.Succeeded(try, p.Now())
	p.open(w, r, authorization{Device: code, Browser: bind(w, r), At: p.Now()})
}
