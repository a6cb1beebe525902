// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
)

// maxAnswer is the maximum size of a provider's response, in bytes.
const maxAnswer = 16 << 10

// stateField is the default name of the parameter that contains the state.
const stateField = "state"

// stateOf returns the name of the parameter in which an upstream returns the state.
func stateOf(redirect connector.Redirect) string {
	if post, ok := redirect.(connector.PostCallback); ok {
		return post.StateField()
	}
	return stateField
}

// departure describes a login for which a browser was redirected to a provider. The hub seals it and sends it to the
// provider as the state.
type departure struct {
	Request  authorization `json:"a"`
	Provider types.UID     `json:"p"`
	// Private is the data that the connector needs to finish the login.
	Private []byte `json:"k"`
}

// chosen returns the provider that a request's path names, and its connector. If there is no such provider with a login
// page, chosen writes an error page and returns nil.
func (p *Pages) chosen(w http.ResponseWriter, r *http.Request) (*v1.AuthProvider, connector.Redirect) {
	provider, err := p.Accounts.Provider(r.Context(), p.Accounts.Cache, r.PathValue("provider"))
	if errors.Is(err, account.ErrNotStanding) {
		page.WriteError(w, http.StatusNotFound,
			"The hub has no such provider, or it is disabled. Start again in the terminal.")
		return nil, nil
	}
	if err == nil {
		var made connector.Connector
		if made, err = p.Connectors.Get(r.Context(), provider); err == nil {
			if redirect, ok := made.(connector.Redirect); ok {
				return provider, redirect
			}
			page.WriteError(w, http.StatusNotFound, "The provider has no login page. Start again in the terminal.")
			return nil, nil
		}
	}
	p.unavailable(w, err)
	return nil, nil
}

// leave redirects the browser to a provider. The hub does not store any data, because the state contains the sealed
// authorization request.
func (p *Pages) leave(w http.ResponseWriter, r *http.Request) {
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	var a authorization
	from := browserOf(r, keys)
	if keys.Open(keyring.PurposePage, r.URL.Query().Get("request"), &a) != nil || !from.opened(a, p.Now()) {
		page.WriteError(w, http.StatusBadRequest,
			"The page has expired, or was opened in another browser. Start again in the terminal.")
		return
	}
	provider, redirect := p.chosen(w, r)
	if provider == nil || p.failsTooOften(w, r, from) {
		return
	}
	ctx, done, err := p.upstreams.enter(r.Context(), from.source, provider.Name)
	if err != nil {
		p.unavailable(w, err)
		return
	}
	defer done()
	d := departure{Request: a, Provider: provider.UID}
	address, err := d.begin(ctx, redirect, p.Issuer+PathCallback+provider.Name, keys)
	if err != nil {
		p.upstreams.failed.Of(from.counted()).AllowN(p.Now(), 1)
		p.Log.Complain(err, "provider "+provider.Name+" not asked")
		page.WriteError(w, http.StatusBadGateway, "The provider does not respond at the moment. Try again.")
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	// The address comes from the provider's configuration and does not depend on the request.
	w.Header().Set("Location", address)
	w.WriteHeader(http.StatusSeeOther)
}

// begin returns the address of the provider's login page. Because the state also contains the private data from the
// connector, begin adds the state to the address after the connector has returned both.
func (d departure) begin(
	ctx context.Context, redirect connector.Redirect, callback string, keys *keyring.Keys,
) (string, error) {
	address, private, err := redirect.Begin(ctx, callback, "-")
	if err != nil {
		return "", err
	}
	d.Private = private
	state, err := keys.Seal(keyring.PurposeCallback, d)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("the address of the provider's login is malformed: %w", err)
	}
	query := u.Query()
	query.Set(stateOf(redirect), state)
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// failsTooOften reports whether too many logins from a browser or address have failed with providers. If so, it writes
// an error page. Each forged response from a provider makes the hub query the provider, and a provider might block a
// hub that queries it too often.
func (p *Pages) failsTooOften(w http.ResponseWriter, r *http.Request, from browser) bool {
	if p.upstreams.failed.Of(from.counted()).TokensAt(p.Now()) >= 1 {
		return false
	}
	audit.From(r.Context()).Refused("TooManyAttempts")
	w.Header().Set("Retry-After", strconv.Itoa(int(1/failuresPerSecond)))
	page.WriteError(w, http.StatusTooManyRequests, "Too many logins from your address have failed at providers. "+
		"Wait for a minute, and start again in the terminal.")
	return true
}

// callback handles a provider's response in the URL of a request.
func (p *Pages) callback(w http.ResponseWriter, r *http.Request) {
	if len(r.URL.RawQuery) > maxAnswer {
		page.WriteError(w, http.StatusBadRequest, "The provider's response is too long. Start again in the terminal.")
		return
	}
	answer, err := url.ParseQuery(r.URL.RawQuery)
	twice := func(name string) bool { return len(answer[name]) > 1 }
	if err != nil || slices.ContainsFunc([]string{"state", "code", "iss", "error"}, twice) {
		page.WriteError(w, http.StatusBadRequest, "The provider's response is malformed. Start again in the terminal.")
		return
	}
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	p.take(w, r, keys, answer, answer.Get(stateField))
}

// postedCallback handles a provider's response that the browser posts as a form. Browsers do not send cookies with a
// form from another site, so the hub returns its own form with the same fields for the user to submit.
func (p *Pages) postedCallback(w http.ResponseWriter, r *http.Request) {
	provider, redirect := p.chosen(w, r)
	if provider == nil {
		return
	}
	post, ok := redirect.(connector.PostCallback)
	if !ok {
		w.Header().Set("Allow", http.MethodGet)
		page.WriteError(w, http.StatusMethodNotAllowed,
			"The provider does not use forms. Start again in the terminal.")
		return
	}
	answer, err := oauth.Form(w, r)
	if err != nil {
		page.WriteError(w, http.StatusBadRequest, "The provider's response is malformed. Start again in the terminal.")
		return
	}
	keys := p.keys(w, r)
	if keys == nil {
		return
	}
	var d departure
	state := answer.Get(post.StateField())
	if r.Header.Get("Origin") != p.Issuer && keys.Open(keyring.PurposeCallback, state, &d) == nil {
		page.WriteContinue(w, PathCallback+url.PathEscape(provider.Name), answer, d.Request.Redirect)
		return
	}
	p.take(w, r, keys, answer, state)
}

// take finishes a login after a provider's response. It accepts the response only from the browser that was redirected
// to the provider.
func (p *Pages) take(w http.ResponseWriter, r *http.Request, keys *keyring.Keys, answer url.Values, state string) {
	var d departure
	from := browserOf(r, keys)
	if keys.Open(keyring.PurposeCallback, state, &d) != nil || !from.opened(d.Request, p.Now()) {
		audit.From(r.Context()).Refused("ForeignAnswer")
		page.WriteError(w, http.StatusBadRequest,
			"The login has expired, or was started in another browser. Start again in the terminal.")
		return
	}
	provider, redirect := p.chosen(w, r)
	if provider == nil {
		return
	}
	if provider.UID != d.Provider { // this also refuses a response that was sent to another provider's path
		page.WriteError(w, http.StatusBadRequest,
			"The login was started at another provider. Start again in the terminal.")
		return
	}
	if p.failsTooOften(w, r, from) {
		return
	}
	a := attempt{keys: keys, request: d.Request, browser: from, record: audit.From(r.Context())}
	p.answer(w, r, a, p.finish(r.Context(), a, provider, func(ctx context.Context) (connector.User, error) {
		return redirect.Finish(ctx, p.Issuer+PathCallback+provider.Name, d.Private, answer)
	}))
}

// finish queries a provider for the user, and finishes the login.
func (p *Pages) finish(
	ctx context.Context, a attempt, provider *v1.AuthProvider, ask func(context.Context) (connector.User, error),
) outcome {
	ctx, done, err := p.upstreams.enter(ctx, a.browser.source, provider.Name)
	if err != nil {
		return unavailable(err)
	}
	defer done()
	user, err := ask(ctx)
	claims, err := p.Accounts.Welcome(ctx, provider, user, err)
	if err != nil {
		p.upstreams.failed.Of(a.browser.counted()).AllowN(p.Now(), 1)
		return turnedAway(provider, err)
	}
	name := claims.Principal()
	known := cmp.Or(a.browser.knownTo(name, provider.UID), randomID())
	return outcome{claims: claims, browser: knownBrowser{ID: known, User: name, UID: provider.UID}}
}
