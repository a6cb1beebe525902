// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"net/http"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
)

type attempt struct {
	keys    *keyring.Keys
	request authorization
	browser browser
	record  *audit.Record
	// provider is account.Local or the name of a provider. user and password are the values from the form.
	provider, user, password string
}

// outcome is the result of an attempt.
type outcome struct {
	claims account.Claims
	// browser is the new content of knownCookie.
	browser knownBrowser
	failure *failure // nil if the user has signed in
}

// login handles the submitted form of the login page.
func (p *Pages) login(w http.ResponseWriter, r *http.Request) {
	a, failed := p.readForm(w, r)
	if failed != nil {
		p.fail(w, r, a, *failed)
		return
	}
	var o outcome
	if a.provider == account.Local {
		o = p.checkPassword(r.Context(), a)
	} else {
		o = p.askDirectory(r.Context(), a)
	}
	p.answer(w, r, a, o)
}

// readForm reads the form of a login page. It refuses a form whose page was not opened in the same browser.
func (p *Pages) readForm(w http.ResponseWriter, r *http.Request) (attempt, *failure) {
	refuse := func(status int, message string) (attempt, *failure) {
		return attempt{}, &failure{status: status, message: message, page: errorPage}
	}
	site := r.Header.Get("Sec-Fetch-Site")
	if r.Header.Get("Origin") != p.Issuer || site != "" && site != "same-origin" {
		return refuse(http.StatusForbidden, "The form was not sent by the hub's own page. Start again in the terminal.")
	}
	fields, err := oauth.Form(w, r)
	if err != nil {
		return refuse(http.StatusBadRequest, "The form is malformed. Start again in the terminal.")
	}
	keys, err := p.Keyring.Current(r.Context())
	if err != nil {
		return attempt{}, unavailable(err).failure
	}
	a := attempt{
		keys: keys, browser: browserOf(r, keys), record: audit.From(r.Context()),
		provider: fields.Get("provider"), user: fields.Get("user"), password: fields.Get("password"),
	}
	if keys.Open(keyring.PurposePage, fields.Get("request"), &a.request) != nil ||
		!a.browser.opened(a.request, p.Now()) {
		return refuse(http.StatusBadRequest,
			"The page has expired, or was opened in another browser. Start again in the terminal.")
	}
	if a.provider == "" {
		a.provider = account.Local
	}
	return a, nil
}
