// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"cmp"
	"context"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/connector"
)

// Paths of providers: where a browser leaves for one, and where it comes back to.
const (
	PathProvider = "/v1/auth/provider/"
	PathCallback = "/v1/auth/callback/"
)

// purposeCallback is that of what a provider sends back.
const purposeCallback = "callback"

// maxAnswer bounds the answer of a provider, in bytes.
const maxAnswer = 16 << 10

// loginLimit bounds how long a login waits for a provider.
const loginLimit = 10 * time.Second

// How many logins of an address may fail at providers at one replica: so many in a second, and so many at once.
const failuresPerSecond, failuresAtOnce = 0.2, 20

// away is a browser that was sent to a provider. It is sealed, and comes back as the state.
type away struct {
	Request  authorization `json:"a"`
	Provider types.UID     `json:"p"`
	Private  []byte        `json:"k"`
}

// choices returns the providers that a login page shows: those that take a password, and those with a page of their own.
func (s *Server) choices(ctx context.Context) (forms, links []string, err error) {
	var all v1.AuthProviderList
	if err := s.client.List(ctx, &all); err != nil {
		return nil, nil, fmt.Errorf("list the providers: %w", err)
	}
	for i := range all.Items {
		p := &all.Items[i]
		switch {
		case p.Spec.Disabled || !p.DeletionTimestamp.IsZero() || p.Spec.JWT != nil:
		case p.Spec.LDAP != nil:
			forms = append(forms, p.Name)
		default:
			links = append(links, p.Name)
		}
	}
	slices.Sort(forms)
	slices.Sort(links)
	return forms, links, nil
}

// ours reports whether a request was begun in this browser, not long ago.
func (s *Server) ours(r *http.Request, a authorization) bool {
	cookie, err := r.Cookie(cookieName)
	return err == nil && s.now().Sub(a.At) <= pageLifetime && subtle.ConstantTimeCompare([]byte(digest(cookie.Value)), []byte(a.Browser)) == 1
}

// chosen returns the provider of a path and its connector, if that has a page of its own. Else it writes the response.
func (s *Server) chosen(w http.ResponseWriter, r *http.Request) (*v1.AuthProvider, connector.Redirect) {
	p, err := s.provider(r.Context(), s.client, r.PathValue("provider"))
	if errors.Is(err, errStanding) {
		writeError(w, http.StatusNotFound, "The hub has no such provider, or it is disabled. Begin again in the terminal.")
		return nil, nil
	}
	if err == nil {
		var made connector.Refresher
		if made, err = s.providers.connectors.Of(r.Context(), p); err == nil {
			if upstream, ok := made.(connector.Redirect); ok {
				return p, upstream
			}
			writeError(w, http.StatusNotFound, "The provider has no login page. Begin again in the terminal.")
			return nil, nil
		}
	}
	s.unavailable(w, err)
	return nil, nil
}

// leave sends the browser to a provider. What was asked for goes with it, sealed: the hub keeps nothing.
func (s *Server) leave(w http.ResponseWriter, r *http.Request) {
	current, err := s.keys(r.Context())
	if err != nil {
		s.unavailable(w, err)
		return
	}
	var a authorization
	if current.sealer.Open(purposePage, r.URL.Query().Get("request"), &a) != nil || !s.ours(r, a) {
		writeError(w, http.StatusBadRequest, "The page has expired, or was opened in another browser. Begin again in the terminal.")
		return
	}
	p, upstream := s.chosen(w, r)
	if p == nil || s.failsTooOften(w, r, current) {
		return
	}
	ctx, done, err := s.admitted(r, p)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	defer done()
	address, err := away{Request: a, Provider: p.UID}.begin(ctx, upstream, s.issuer+PathCallback+p.Name, current)
	if err != nil {
		s.failures(r, current).AllowN(s.now(), 1)
		s.complain(err, "provider "+p.Name+" not asked")
		writeError(w, http.StatusBadGateway, "The provider does not answer at the moment. Try again.")
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("Location", address) // of the provider that an administrator has configured, whatever the request says
	w.WriteHeader(http.StatusSeeOther)
}

// begin returns the address of the provider's login. What the connector keeps of the login is sealed into the state, which it names before: so the state is put
// into the address afterwards.
func (a away) begin(ctx context.Context, upstream connector.Redirect, callback string, current *loaded) (string, error) {
	address, private, err := upstream.Begin(ctx, callback, "-")
	if err != nil {
		return "", err
	}
	a.Private = private
	state, err := current.sealer.Seal(purposeCallback, a)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(address)
	if err != nil {
		return "", fmt.Errorf("the address of the provider's login is malformed: %w", err)
	}
	query := u.Query()
	query.Set("state", state)
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// failures counts the logins at providers that fail: those of a browser that a user has signed in with before, else those of its address.
func (s *Server) failures(r *http.Request, current *loaded) *rate.Limiter {
	var d device
	if cookie, err := r.Cookie(deviceCookie); err == nil && current.sealer.Open(purposeDevice, cookie.Value, &d) == nil && d.ID != "" {
		return s.providers.failed.of("device " + d.ID)
	}
	return s.providers.failed.of(limit.Source(r.RemoteAddr))
}

// failsTooOften reports whether so many logins have failed that no provider is asked for another now, and writes the response then. Answers of a provider can be
// invented without end, and a provider that the hub asks about them again and again would refuse the hub itself.
func (s *Server) failsTooOften(w http.ResponseWriter, r *http.Request, current *loaded) bool {
	if s.failures(r, current).TokensAt(s.now()) >= 1 {
		return false
	}
	audit.From(r.Context()).Refused("TooManyAttempts")
	w.Header().Set("Retry-After", strconv.Itoa(int(1/failuresPerSecond)))
	writeError(w, http.StatusTooManyRequests, "Too many logins from your address have failed at providers. Wait for a minute, and begin again in the terminal.")
	return true
}

// admitted returns a context in which a provider may be asked, once it is the turn of the address that asks, and of that provider: one that is slow leaves room for
// logins at others.
func (s *Server) admitted(r *http.Request, p *v1.AuthProvider) (context.Context, func(), error) {
	seat, err := s.providers.gate.Enter(r.Context(), limit.Requester{User: limit.Source(r.RemoteAddr), Member: p.Name})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), loginLimit)
	return ctx, func() { cancel(); seat.Release() }, nil
}

// callback takes the answer of a provider. Only the browser that was sent there may bring it.
func (s *Server) callback(w http.ResponseWriter, r *http.Request) {
	if len(r.URL.RawQuery) > maxAnswer {
		writeError(w, http.StatusBadRequest, "The provider's answer is too long. Begin again in the terminal.")
		return
	}
	answer, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || slices.ContainsFunc([]string{"state", "code", "iss", "error"}, func(name string) bool { return len(answer[name]) > 1 }) {
		writeError(w, http.StatusBadRequest, "The provider's answer is malformed. Begin again in the terminal.")
		return
	}
	current, err := s.keys(r.Context())
	if err != nil {
		s.unavailable(w, err)
		return
	}
	var a away
	if current.sealer.Open(purposeCallback, answer.Get("state"), &a) != nil || !s.ours(r, a.Request) {
		audit.From(r.Context()).Refused("ForeignAnswer")
		writeError(w, http.StatusBadRequest, "The login has expired, or was begun in another browser. Begin again in the terminal.")
		return
	}
	p, upstream := s.chosen(w, r)
	if p == nil {
		return
	}
	if p.UID != a.Provider { // also an answer of one provider at the path of another
		writeError(w, http.StatusBadRequest, "The login was begun at another provider. Begin again in the terminal.")
		return
	}
	if s.failsTooOften(w, r, current) {
		return
	}
	ctx, done, err := s.admitted(r, p)
	if err != nil {
		s.unavailable(w, err)
		return
	}
	defer done()
	user, err := upstream.Finish(ctx, s.issuer+PathCallback+p.Name, a.Private, answer)
	found, err := s.welcome(ctx, p, user, err)
	if err != nil {
		s.failures(r, current).AllowN(s.now(), 1)
		s.turnAway(w, r, a.Request, p, err)
		return
	}
	known := cmp.Or(deviceOf(r, current, found.principal(), p.UID), randomID())
	if s.remember(w, current, device{ID: known, User: found.principal(), UID: p.UID}) {
		s.complete(w, r, current, a.Request, found)
	}
}

// welcome makes a user of what a provider answered, unless they are refused.
func (s *Server) welcome(ctx context.Context, p *v1.AuthProvider, user connector.User, err error) (who, error) {
	if err != nil {
		return who{}, err
	}
	u, err := s.identified(p, user)
	if err != nil {
		return who{}, err
	}
	audit.From(ctx).Identified(audit.User{Name: u.principal(), UID: string(u.UID)}, nil)
	if err := s.notSwitchedOff(ctx, u.principal()); errors.Is(err, errStanding) {
		return who{}, fmt.Errorf("%w: the hub refuses the user", connector.ErrRefused)
	} else if err != nil {
		return who{}, err
	}
	return u, nil
}

// turnAway writes the login page again for a user whom a provider did not let in.
func (s *Server) turnAway(w http.ResponseWriter, r *http.Request, a authorization, p *v1.AuthProvider, err error) {
	record := audit.From(r.Context())
	s.complaints.Do(func() { s.log.Info("a provider let no user in", "provider", p.Name, "reason", err.Error()) })
	if errors.Is(err, connector.ErrRefused) {
		record.Refused("RefusedByProvider")
		s.show(r.Context(), w, a, "", "The provider "+p.Name+" or the hub does not let you in. An administrator of the hub finds the reason in its log.", http.StatusForbidden)
		return
	}
	record.Refused("Unavailable")
	s.show(r.Context(), w, a, "", "The provider "+p.Name+" cannot be asked at the moment. Try again.", http.StatusBadGateway)
}

// folded returns a name as directories compare it: without case, and some without accents. Each way to write a name would have attempts of its own otherwise.
func folded(name string) string {
	return strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Mn, c) {
			return -1
		}
		return c
	}, norm.NFKD.String(strings.ToLower(name)))
}

// loginAt checks a name and a password at a provider, and writes the response if they are not accepted.
func (s *Server) loginAt(w http.ResponseWriter, r *http.Request, current *loaded, a authorization, fields url.Values) (who, bool) {
	record, name := audit.From(r.Context()), fields.Get("user")
	p, err := s.provider(r.Context(), s.client, fields.Get("provider"))
	var made connector.Refresher
	if err == nil {
		made, err = s.providers.connectors.Of(r.Context(), p)
	}
	upstream, ok := made.(connector.Password)
	if err != nil || !ok {
		record.Refused("Unavailable")
		s.complain(err, "provider not asked")
		s.show(r.Context(), w, a, "", "The provider cannot be asked at the moment, or is disabled. Try again.", http.StatusServiceUnavailable)
		return who{}, false
	}
	if len(name) > 256 || len(fields.Get("password")) > maxField {
		record.Refused("WrongPassword")
		s.show(r.Context(), w, a, "", wrong, http.StatusForbidden)
		return who{}, false
	}
	account := p.Name + ":" + folded(name)
	try := attempts.Attempt{User: account, Source: limit.Source(r.RemoteAddr), Device: deviceOf(r, current, account, p.UID)}
	if wait := s.passwords.attempts.Begin(try, s.now()); wait > 0 {
		record.Refused("TooManyAttempts")
		s.showWait(w, r, a, name, wait)
		return who{}, false
	}
	ctx, done, err := s.admitted(r, p)
	if err != nil {
		s.passwords.attempts.Withdrawn(try, s.now())
		s.unavailable(w, err)
		return who{}, false
	}
	defer done()
	user, err := upstream.Login(ctx, name, fields.Get("password"))
	u, err := s.welcome(ctx, p, user, err)
	switch {
	case errors.Is(err, connector.ErrRefused):
		record.Refused("WrongPassword")
		s.complaints.Do(func() { s.log.Info("a provider let no user in", "provider", p.Name, "reason", err.Error()) })
		s.show(r.Context(), w, a, name, wrong, http.StatusForbidden)
		return who{}, false
	case err != nil:
		s.passwords.attempts.Withdrawn(try, s.now())
		s.turnAway(w, r, a, p, err)
		return who{}, false
	}
	s.passwords.attempts.Succeeded(try, s.now())
	if try.Device == "" {
		try.Device = randomID()
	}
	return u, s.remember(w, current, device{ID: try.Device, User: account, UID: p.UID})
}
