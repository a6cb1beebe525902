// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/password"
)

const (
	// codeLifetime is how long a code can be redeemed.
	codeLifetime = time.Minute
	// hashWait is how long a login waits for its turn to be checked.
	hashWait = 5 * time.Second
)

// wrong is the one message for all that is wrong with a name and a password, so that it tells nothing about users.
const wrong = "The user name or the password is wrong, or the user may not sign in."

// local is the provider of Users in the form.
const local = "local"

// code is what an authorization code holds. It is sealed: before it is redeemed it leaves no object.
type code struct {
	who
	ID        string    `json:"i"`
	Redirect  string    `json:"r"`
	Nonce     string    `json:"n"`
	Challenge string    `json:"c"`
	At        time.Time `json:"t"`
	// Offline reports whether the session has refresh tokens.
	Offline bool `json:"o,omitempty"`
}

// login takes the form of the login page.
func (s *Server) login(w http.ResponseWriter, r *http.Request) {
	if site := r.Header.Get("Sec-Fetch-Site"); r.Header.Get("Origin") != s.issuer || site != "" && site != "same-origin" {
		writeError(w, http.StatusForbidden, "The form was not sent by the hub's own page. Begin again in the terminal.")
		return
	}
	fields, err := form(w, r)
	if err != nil {
		writeError(w, http.StatusBadRequest, "The form is malformed. Begin again in the terminal.")
		return
	}
	current, err := s.keys(r.Context())
	if err != nil {
		s.unavailable(w, err)
		return
	}
	var a authorization
	if current.sealer.Open(purposePage, fields.Get("request"), &a) != nil || !s.ours(r, a) {
		writeError(w, http.StatusBadRequest, "The page has expired, or was opened in another browser. Begin again in the terminal.")
		return
	}
	if provider := fields.Get("provider"); provider != "" && provider != local {
		if found, ok := s.loginAt(w, r, current, a, fields); ok {
			s.complete(w, r, current, a, found)
		}
		return
	}
	if found, ok := s.attempt(w, r, current, a, fields); ok {
		s.complete(w, r, current, a, found)
	}
}

// complete gives the one who asked what they asked for, once a user has signed in.
func (s *Server) complete(w http.ResponseWriter, r *http.Request, current *loaded, a authorization, found who) {
	if a.Device != "" {
		s.approve(w, r, current, a.Device, found)
		return
	}
	sealed, err := current.sealer.Seal(purposeCode, code{
		who: found, ID: randomID(), Redirect: a.Redirect, Nonce: a.Nonce, Challenge: a.Challenge, At: s.now(), Offline: a.Offline,
	})
	if err != nil {
		s.unavailable(w, err)
		return
	}
	s.redirect(w, r, a, url.Values{"code": {sealed}})
}

// showWait writes the login page for a user who has to wait.
func (s *Server) showWait(w http.ResponseWriter, r *http.Request, a authorization, name string, wait time.Duration) {
	seconds := int((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", fmt.Sprint(seconds))
	s.show(r.Context(), w, a, name, fmt.Sprintf("Too many attempts. Try again in %d seconds.", seconds), http.StatusTooManyRequests)
}

// attempt checks name and password, and writes the response if they are not accepted. A name that no user has may be a password in the wrong field: it
// is written into no log.
func (s *Server) attempt(w http.ResponseWriter, r *http.Request, current *loaded, a authorization, fields url.Values) (who, bool) {
	record, name := audit.From(r.Context()), fields.Get("user")
	if len(name) > validation.DNS1123LabelMaxLength {
		name = name[:validation.DNS1123LabelMaxLength] + "…" // no user has this name
	}
	user, hash, err := s.stored(r.Context(), name)
	found := who{}
	if user != nil {
		found = who{User: user.Name, UID: user.UID, Password: digest(hash)} // of the hash that is checked: the User may get another one meanwhile
		record.Claimed(found.principal())
	}
	try := attempts.Attempt{User: name, Source: limit.Source(r.RemoteAddr), Device: deviceOf(r, current, name, found.UID)}
	if wait := s.passwords.attempts.Begin(try, s.now()); wait > 0 {
		record.Refused("TooManyAttempts")
		s.showWait(w, r, a, name, wait)
		return who{}, false
	}
	matches := false
	if err == nil {
		matches, err = s.check(r.Context(), try, hash, fields.Get("password"))
	}
	switch {
	case err != nil:
		s.passwords.attempts.Withdrawn(try, s.now())
		s.complain(err, "password not checked")
		record.Refused("Unavailable")
		s.show(r.Context(), w, a, name, "The hub cannot check the password at the moment. Try again.", http.StatusServiceUnavailable)
		return who{}, false
	case !matches || user == nil || user.Spec.Disabled || !user.DeletionTimestamp.IsZero():
		record.Refused("WrongPassword")
		s.show(r.Context(), w, a, name, wrong, http.StatusForbidden)
		return who{}, false
	}
	record.Identified(audit.User{Name: found.principal(), UID: string(found.UID)}, nil)
	s.passwords.attempts.Succeeded(try, s.now())
	if try.Device == "" {
		try.Device = randomID()
	}
	return found, s.remember(w, current, device{ID: try.Device, User: name, UID: found.UID})
}

// check reports whether a password has a hash. It takes the same time for a user who does not exist. Who guesses elsewhere does not hold up a browser that
// the user has signed in with before.
func (s *Server) check(ctx context.Context, try attempts.Attempt, hash, secret string) (bool, error) {
	gate, who := s.passwords.strangers, limit.Requester{User: try.Source}
	if try.Device != "" {
		gate, who = s.passwords.known, limit.Requester{User: try.User}
	}
	seat, err := gate.Enter(ctx, who)
	if err != nil {
		return false, err
	}
	defer seat.Release()
	matches, err := password.Verify(hash, secret)
	if err != nil { // the User's status says so; the one who signs in is told nothing of users
		matches, err = password.Verify(password.Nothing(), secret)
	}
	return matches, err
}

// stored returns a User with the hash of their password, or a hash that no password has.
func (s *Server) stored(ctx context.Context, name string) (*v1.User, string, error) {
	if len(validation.IsDNS1123Label(name)) > 0 {
		return nil, password.Nothing(), nil
	}
	user, secret := &v1.User{}, &corev1.Secret{}
	for key, object := range map[types.NamespacedName]client.Object{{Name: name}: user, s.name(v1.UserSecretPrefix + name): secret} {
		if err := s.client.Get(ctx, key, object); apierrors.IsNotFound(err) {
			return nil, password.Nothing(), nil
		} else if err != nil {
			return nil, "", fmt.Errorf("read a user: %w", err)
		}
	}
	if user.Spec.Principal != "" || !HoldsPassword(secret, user) {
		return nil, password.Nothing(), nil
	}
	return user, string(secret.Data[v1.UserSecretKey]), nil
}

// HoldsPassword reports whether a Secret is meant to hold the password of a User, and not of another one that had the name before.
func HoldsPassword(secret *corev1.Secret, user *v1.User) bool {
	return secret.Labels[v1.LabelSecretKind] == v1.SecretKindUser && user.UID != "" && string(secret.Data[v1.UserSecretUID]) == string(user.UID)
}
