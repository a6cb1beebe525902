// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"time"
	"unicode"

	"golang.org/x/text/unicode/norm"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/password"
)

// hashWait limits how long a login waits in a queue.
const hashWait = 5 * time.Second

const (
	// maxTypedName is the maximum length of the name that a provider's user enters, in bytes.
	maxTypedName = 256
	// loginLimit limits how long a login waits for a provider.
	loginLimit = 10 * time.Second
	// The rate and burst of failed logins with providers, for one browser or address on one replica.
	failuresPerSecond, failuresAtOnce = 0.2, 20
)

// passwords limits password guessing and the cost of checking passwords.
type passwords struct {
	attempts *attempts.Log
	// known is the queue for users who have signed in with the same browser before, and strangers is the queue for all
	// other logins. As a result, attackers who guess passwords do not delay users with known browsers.
	known, strangers *limit.Gate
}

func newPasswords() passwords {
	// Half of the processors remain available for other work. Checking a password takes 19 MiB of memory.
	strangers := max(1, runtime.GOMAXPROCS(0)/2)
	return passwords{attempts: attempts.New(), known: hashGate(1), strangers: hashGate(strangers)}
}

// hashGate returns a gate that limits how many passwords are checked at the same time. Only one password per user or
// address is checked at a time.
func hashGate(all int) *limit.Gate {
	return limit.NewGate(limit.Bounds{User: 1, All: all, Queue: 32, QueueUser: 2, Wait: hashWait}, limit.Observer{})
}

// checkPassword checks the name and password of a local User. A name that does not exist is never logged, because it
// may be a password that the user entered in the wrong field.
func (p *Pages) checkPassword(ctx context.Context, a attempt) outcome {
	if len(a.user) > validation.DNS1123LabelMaxLength {
		a.user = a.user[:validation.DNS1123LabelMaxLength] + "…" // no user has this name
	}
	user, hash, err := p.Accounts.Password(ctx, a.user)
	claims := account.Claims{}
	if user != nil { // the User's password may change in the meantime, so use the digest of the checked hash
		claims = account.Claims{User: user.Name, UID: user.UID, Password: oauth.Digest(hash)}
		a.record.Claimed(claims.Principal())
	}
	try := attempts.Attempt{User: a.user, Source: a.browser.source, Device: a.browser.knownTo(a.user, claims.UID)}
	if wait := p.passwords.attempts.Begin(try, p.Now()); wait > 0 {
		return tooManyAttempts(a.user, wait)
	}
	matches := false
	if err == nil {
		matches, err = p.passwords.verify(ctx, try, hash, a.password)
	}
	switch {
	case err != nil:
		p.passwords.attempts.Withdrawn(try, p.Now())
		return outcome{failure: &failure{
			status: http.StatusServiceUnavailable, reason: "Unavailable", user: a.user,
			cause: err, log: "password not checked",
			message: "The hub cannot check the password at the moment. Try again.",
		}}
	case !matches || user == nil || user.Spec.Disabled || !user.DeletionTimestamp.IsZero():
		return wrongPassword(a.user)
	}
	a.record.Identified(claims.Audited(), nil)
	p.passwords.attempts.Succeeded(try, p.Now())
	known := knownBrowser{ID: cmp.Or(try.Device, randomID()), User: a.user, UID: claims.UID}
	return outcome{claims: claims, browser: known}
}

// verify reports whether a password matches a hash. It takes the same amount of time if the user does not exist.
func (p passwords) verify(ctx context.Context, try attempts.Attempt, hash, secret string) (bool, error) {
	gate, requester := p.strangers, limit.Requester{User: try.Source}
	if try.Device != "" {
		gate, requester = p.known, limit.Requester{User: try.User}
	}
	seat, err := gate.Enter(ctx, requester)
	if err != nil {
		return false, err
	}
	defer seat.Release()
	matches, err := password.Verify(hash, secret)
	if err != nil { // the User's status shows the problem; the response must not reveal anything about users
		matches, err = password.Verify(password.Nothing(), secret)
	}
	return matches, err
}

// askDirectory checks a name and a password with a provider.
func (p *Pages) askDirectory(ctx context.Context, a attempt) outcome {
	provider, directory, err := p.directory(ctx, a.provider)
	if err != nil {
		return outcome{failure: &failure{
			status: http.StatusServiceUnavailable, reason: "Unavailable", cause: err, log: "provider not asked",
			message: "The provider is not available at the moment, or is disabled. Try again.",
		}}
	}
	if len(a.user) > maxTypedName || len(a.password) > oauth.MaxField {
		return wrongPassword("")
	}
	name := provider.Name + ":" + folded(a.user)
	try := attempts.Attempt{User: name, Source: a.browser.source, Device: a.browser.knownTo(name, provider.UID)}
	if wait := p.passwords.attempts.Begin(try, p.Now()); wait > 0 {
		return tooManyAttempts(a.user, wait)
	}
	ctx, done, err := p.upstreams.enter(ctx, a.browser.source, provider.Name)
	if err != nil {
		p.passwords.attempts.Withdrawn(try, p.Now())
		return unavailable(err)
	}
	defer done()
	user, err := directory.Login(ctx, a.user, a.password)
	claims, err := p.Accounts.Welcome(ctx, provider, user, err)
	switch {
	case errors.Is(err, connector.ErrRefused):
		o := turnedAway(provider, err)
		o.failure.reason, o.failure.message, o.failure.user = "WrongPassword", wrong, a.user
		return o
	case err != nil:
		p.passwords.attempts.Withdrawn(try, p.Now())
		return turnedAway(provider, err)
	}
	p.passwords.attempts.Succeeded(try, p.Now())
	known := knownBrowser{ID: cmp.Or(try.Device, randomID()), User: name, UID: provider.UID}
	return outcome{claims: claims, browser: known}
}

// errNoPassword is returned if a provider does not accept passwords.
var errNoPassword = errors.New("the provider does not accept passwords")

// directory returns the named AuthProvider and its connector. It returns an error if the provider does not accept
// passwords.
func (p *Pages) directory(ctx context.Context, name string) (*v1.AuthProvider, connector.Password, error) {
	provider, err := p.Accounts.Provider(ctx, p.Accounts.Cache, name)
	if err != nil {
		return nil, nil, err
	}
	made, err := p.Connectors.Get(ctx, provider)
	if err != nil {
		return nil, nil, err
	}
	directory, ok := made.(connector.Password)
	if !ok {
		return nil, nil, errNoPassword
	}
	return provider, directory, nil
}

// knownTo returns the browser's ID if the given user has signed in with the browser before, and "" otherwise.
func (b browser) knownTo(user string, uid types.UID) string {
	if b.known.User != user || b.known.UID != uid || uid == "" {
		return ""
	}
	return b.known.ID
}

// folded returns a name in the form in which directories compare names. It removes case and accents, because some
// directories ignore them. Otherwise, attempts would be counted separately for each spelling of a name.
func folded(name string) string {
	return strings.Map(func(c rune) rune {
		if unicode.Is(unicode.Mn, c) {
			return -1
		}
		return c
	}, norm.NFKD.String(strings.ToLower(name)))
}

// upstreams limits queries to providers.
type upstreams struct {
	gate   *limit.Gate    // limits concurrent logins with providers
	failed attempts.Rates // failed logins with providers
}

// newUpstreams returns limits on concurrent queries to providers. Queries from a single address, or to a single
// provider, can take up only part of the total.
func newUpstreams() upstreams {
	bounds := limit.Bounds{User: 8, Member: 16, All: 32, Queue: 64, QueueUser: 8, Wait: hashWait}
	return upstreams{limit.NewGate(bounds, limit.Observer{}), attempts.NewRates(failuresPerSecond, failuresAtOnce)}
}

// enter waits until a query to the provider is allowed. It returns a context for the query, and a function that must be
// called after the query. A slow provider does not delay logins with other providers.
func (u upstreams) enter(ctx context.Context, source, provider string) (context.Context, func(), error) {
	seat, err := u.gate.Enter(ctx, limit.Requester{User: source, Member: provider})
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, loginLimit)
	return ctx, func() { cancel(); seat.Release() }, nil
}
