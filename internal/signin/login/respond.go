// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/page"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/usercode"
)

// wrong is the message for every problem with a name or password. The message is always the same, so that it reveals
// nothing about users.
const wrong = "The user name or the password is wrong, or the user may not sign in."

// failure describes why an attempt failed, and how the hub responds.
type failure struct {
	status  int
	message string
	// reason is written to the audit log.
	reason string
	// page is the kind of page that shows the message.
	page pageKind
	// user is the user name to fill in on the login page.
	user string
	// provider is the name of the provider that refused the user.
	provider string
	// cause is logged with the message in log, unless the failure comes from a provider.
	cause error
	log   string
	// wait is the time in seconds that the user has to wait.
	wait int
}

type pageKind int

const (
	loginPage pageKind = iota
	errorPage
	// unavailablePage has its own message. The cause is logged.
	unavailablePage
)

func wrongPassword(user string) outcome {
	return outcome{failure: &failure{status: http.StatusForbidden, message: wrong, reason: "WrongPassword", user: user}}
}

func tooManyAttempts(user string, wait time.Duration) outcome {
	seconds := int((wait + time.Second - 1) / time.Second)
	return outcome{failure: &failure{
		status: http.StatusTooManyRequests, reason: "TooManyAttempts", user: user, wait: seconds,
		message: fmt.Sprintf("Too many attempts. Try again in %d seconds.", seconds),
	}}
}

// turnedAway returns the outcome for a user whom a provider refused, or whose provider failed.
func turnedAway(provider *v1.AuthProvider, err error) outcome {
	f := failure{
		status: http.StatusBadGateway, reason: "Unavailable",
		message:  "The provider " + provider.Name + " is not available at the moment. Try again.",
		provider: provider.Name, cause: err,
	}
	if errors.Is(err, connector.ErrRefused) {
		f.status, f.reason = http.StatusForbidden, "RefusedByProvider"
		f.message = "The provider " + provider.Name + " or the hub does not let you in. " +
			"An administrator of the hub can find the reason in the hub's log."
	}
	return outcome{failure: &f}
}

// unavailable returns the outcome for an attempt that the hub cannot serve.
func unavailable(err error) outcome {
	return outcome{failure: &failure{page: unavailablePage, cause: err, log: "sign-in request not served"}}
}

// answer writes the response to an attempt. If the user has signed in, answer sets knownCookie. Then it sends a code to
// the client, or starts the session of the device.
func (p *Pages) answer(w http.ResponseWriter, r *http.Request, a attempt, o outcome) {
	if o.failure != nil {
		p.fail(w, r, a, *o.failure)
		return
	}
	known, err := a.keys.Seal(keyring.PurposeBrowser, o.browser)
	if err != nil {
		p.unavailable(w, err)
		return
	}
	setCookie(w, knownCookie, known, knownLifetime)
	if a.request.Device == "" {
		p.giveCode(w, r, a, o.claims)
		return
	}
	p.approve(w, r, a, o.claims)
}

// giveCode redirects the browser to the client's redirect URI with a code.
func (p *Pages) giveCode(w http.ResponseWriter, r *http.Request, a attempt, claims account.Claims) {
	code, err := a.keys.Seal(keyring.PurposeCode, session.Code{
		Claims: claims, ID: randomID(), Redirect: a.request.Redirect, Nonce: a.request.Nonce,
		Challenge: a.request.Challenge, At: p.Now(), Offline: a.request.Offline,
	})
	if err != nil {
		p.unavailable(w, err)
		return
	}
	p.redirect(w, r, a.request, url.Values{"code": {code}})
}

func (p *Pages) fail(w http.ResponseWriter, r *http.Request, a attempt, f failure) {
	switch {
	case f.provider != "":
		p.Log.Remark("a provider refused a user", "provider", f.provider, "reason", f.cause.Error())
	case f.cause != nil || f.log != "":
		p.Log.Complain(f.cause, f.log)
	}
	if f.reason != "" {
		a.record.Refused(f.reason)
	}
	if f.wait > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(f.wait))
	}
	switch f.page {
	case errorPage:
		page.WriteError(w, f.status, f.message)
	case unavailablePage:
		page.WriteUnavailable(w)
	case loginPage:
		p.show(r.Context(), w, a.keys, a.request, f)
	}
}

// show writes the login page for a request. The page includes the message of the failure.
func (p *Pages) show(
	ctx context.Context, w http.ResponseWriter, keys *keyring.Keys, a authorization, f failure,
) {
	sealed, err := keys.Seal(keyring.PurposePage, a)
	if err != nil {
		p.unavailable(w, err)
		return
	}
	shown := page.Login{
		Request: sealed, Asks: p.asks(a), User: f.user, Message: f.message, Redirect: a.Redirect,
	}
	if err := p.choose(ctx, &shown); err != nil {
		p.unavailable(w, err)
		return
	}
	shown.Write(w, f.status)
}

// choose adds the providers to a login page. Some providers accept a password, and others have their own login page.
func (p *Pages) choose(ctx context.Context, shown *page.Login) error {
	var all v1.AuthProviderList
	if err := p.Accounts.Cache.List(ctx, &all); err != nil {
		return fmt.Errorf("list the providers: %w", err)
	}
	var forms, links []string
	for i := range all.Items {
		provider := &all.Items[i]
		kind, err := p.Connectors.TypeOf(provider)
		if err != nil || provider.Spec.Disabled || !provider.DeletionTimestamp.IsZero() {
			continue
		}
		switch kind.Connector.(type) {
		case connector.Password:
			forms = append(forms, provider.Name)
		case connector.Redirect:
			links = append(links, provider.Name)
		}
	}
	slices.Sort(forms)
	slices.Sort(links)
	if len(forms) > 0 {
		shown.Accounts = append([]string{account.Local}, forms...)
	}
	for _, name := range links {
		address := PathProvider + url.PathEscape(name) + "?" + url.Values{"request": {shown.Request}}.Encode()
		shown.Links = append(shown.Links, page.Link{Provider: name, Address: address})
	}
	return nil
}

// asks returns HTML that names the client that requested the login.
func (p *Pages) asks(a authorization) string {
	switch {
	case a.Device != "":
		return page.AsksForDevice(a.Device)
	case a.Redirect == p.Issuer+oauth.PathPage:
		return "<p>Sign in to see your clusters in this browser.</p>"
	case a.Offline:
		return "<p>kubectl on this computer asks to act as you, for up to " +
			duration.HumanDuration(p.Sessions.Lifetime) + ".</p>"
	}
	return "<p>kubectl on this computer asks to act as you.</p>"
}

// redirect redirects the browser to the client's redirect URI. The result includes the client's state and the issuer
// (RFC 9207).
func (p *Pages) redirect(w http.ResponseWriter, r *http.Request, a authorization, result url.Values) {
	result.Set("state", a.State)
	result.Set("iss", p.Issuer)
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	http.Redirect(w, r, a.Redirect+"?"+result.Encode(), http.StatusSeeOther)
}

// approve starts the session that a device is waiting for, after the user has signed in on a page that showed the code.
func (p *Pages) approve(w http.ResponseWriter, r *http.Request, a attempt, claims account.Claims) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), session.WriteLimit)
	defer cancel()
	now := p.Now()
	s := p.Sessions.New(usercode.Session(a.request.Device), claims, now, now.Add(usercode.Lifetime))
	s.Data[session.KeyAwaited], s.Data[session.KeyClient] = []byte("true"), []byte(session.ClientDevice)
	s.Data[session.KeyKeys], s.Data[session.KeyPassword] = []byte(a.keys.UID), []byte(claims.Password)
	err := p.Sessions.Store(ctx, s)
	var wait *oauth.Later
	switch {
	case errors.As(err, &wait):
		audit.From(ctx).Refused(oauth.TooMany)
		w.Header().Set("Retry-After", strconv.Itoa(int(wait.After/time.Second)))
		page.WriteError(w, http.StatusTooManyRequests,
			fmt.Sprintf("You have signed in too often. Wait for %s, and start again on the device.", wait.After))
	case apierrors.IsAlreadyExists(err):
		audit.From(ctx).Refused("CodeUsed")
		page.WriteError(w, http.StatusConflict, "The code was used before. Start again on the device.")
	case err != nil:
		p.unavailable(w, err)
	default:
		page.WriteDevice(w, http.StatusOK,
			"The device is signed in as "+claims.Principal()+". You can close this page.", false)
	}
}
