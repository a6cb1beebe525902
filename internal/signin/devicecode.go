// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/refresh"
	"github.com/drover-dev/drover/internal/signin/token"
	"github.com/drover-dev/drover/internal/signin/usercode"
)

const (
	grantDevice = "urn:ietf:params:oauth:grant-type:device_code"
	// pollEvery is how often a device may ask whether its user has approved.
	pollEvery = 5 * time.Second
	// maxPolls bounds the devices whose last question is remembered.
	maxPolls = 8192
)

// deviceCode is what a device code holds. It is sealed: before a user approves it, it leaves no object.
type deviceCode struct {
	User    string    `json:"u"` // the code that the user types
	Offline bool      `json:"o,omitempty"`
	At      time.Time `json:"t"`
}

// begun is the response to a device that asks for a code.
type begun struct {
	Device   string `json:"device_code"`
	User     string `json:"user_code"`
	URI      string `json:"verification_uri"`
	Complete string `json:"verification_uri_complete"`
	Expires  int    `json:"expires_in"`
	Interval int    `json:"interval"`
}

// deviceAuthorization gives a device its codes (RFC 8628).
func (s *Server) deviceAuthorization(w http.ResponseWriter, r *http.Request) {
	answer, err := s.beginDevice(w, r)
	if err != nil {
		s.writeProblem(w, r, err)
		return
	}
	writeJSON(w, http.StatusOK, "no-store", answer)
}

func (s *Server) beginDevice(w http.ResponseWriter, r *http.Request) (begun, error) {
	fields, err := form(w, r)
	if err != nil {
		return begun{}, err
	}
	if err := checkClient(r, fields); err != nil {
		return begun{}, err
	}
	scopes := strings.Fields(fields.Get("scope"))
	if !slices.Contains(scopes, scopeOpenID) {
		return begun{}, &protocolError{"invalid_scope", "scope must have " + scopeOpenID}
	}
	if wait := s.codes.wait(limit.Source(r.RemoteAddr), s.now()); wait > 0 {
		return begun{}, &later{wait, protocolError{tooMany, "too many devices ask for a code at the moment; try again"}}
	}
	current, err := s.keys(r.Context())
	if err != nil {
		return begun{}, err
	}
	user, err := usercode.New(current.sealing[0], s.now())
	if err != nil {
		return begun{}, err
	}
	sealed, err := current.sealer.Seal(purposeDeviceCode, deviceCode{User: user, Offline: slices.Contains(scopes, scopeOffline), At: s.now()})
	if err != nil {
		return begun{}, err
	}
	uri, shown := s.issuer+PathDevice, usercode.Format(user)
	return begun{
		Device: sealed, User: shown, URI: uri, Complete: uri + "?" + url.Values{"user_code": {shown}}.Encode(),
		Expires: int(usercode.Lifetime / time.Second), Interval: int(pollEvery / time.Second),
	}, nil
}

// verification shows the page of a user code: one that asks for the code, or the login page, on which the user approves it by signing in.
func (s *Server) verification(w http.ResponseWriter, r *http.Request) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil || len(query["user_code"]) > 1 || len(query.Get("user_code")) > maxField {
		writeError(w, http.StatusBadRequest, "The address is malformed.")
		return
	}
	typed := query.Get("user_code")
	if typed == "" {
		writeDevicePage(w, http.StatusOK, "", true)
		return
	}
	current, err := s.keys(r.Context())
	if err != nil {
		s.unavailable(w, err)
		return
	}
	source := limit.Source(r.RemoteAddr)
	try := attempts.Attempt{User: source, Source: source}
	if wait := s.codes.wrong.Begin(try, s.now()); wait > 0 {
		seconds := int((wait + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.Itoa(seconds))
		writeDevicePage(w, http.StatusTooManyRequests, fmt.Sprintf("Too many wrong codes. Try again in %d seconds.", seconds), true)
		return
	}
	code, ok := usercode.Parse(typed, s.now(), current.sealing...)
	if !ok {
		writeDevicePage(w, http.StatusNotFound, "The code is wrong or has expired. Compare it with the one on the device, or begin again there.", true)
		return
	}
	s.codes.wrong.Succeeded(try, s.now())
	a := authorization{Device: code, Browser: digest(s.browser(w, r)), At: s.now()}
	s.show(r.Context(), w, a, "", "", http.StatusOK)
}

// approve begins the session that a device waits for. Its user has signed in on a page that shows the code.
func (s *Server) approve(w http.ResponseWriter, r *http.Request, current *loaded, code string, found who) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), beginLimit)
	defer cancel()
	now := s.now()
	session := found.session(s.name(SessionPrefix+usercode.Session(code)), now, now.Add(usercode.Lifetime))
	session.Data[keyAwaited], session.Data[keyKeys], session.Data[keyPassword] = []byte("true"), []byte(current.uid), []byte(found.Password)
	err := s.makeRoom(ctx, session)
	if err == nil {
		err = s.client.Create(ctx, session)
	}
	var wait *later
	switch {
	case errors.As(err, &wait):
		audit.From(ctx).Refused(tooMany)
		w.Header().Set("Retry-After", strconv.Itoa(int(wait.after/time.Second)))
		writeError(w, http.StatusTooManyRequests, fmt.Sprintf("You have signed in too often. Wait for %s, and begin again on the device.", wait.after))
	case apierrors.IsAlreadyExists(err):
		audit.From(ctx).Refused("CodeUsed")
		writeError(w, http.StatusConflict, "The code was used before. Begin again on the device.")
	case err != nil:
		s.unavailable(w, err)
	default:
		writeDevicePage(w, http.StatusOK, "The device is signed in as "+found.principal()+". You can close this page.", false)
	}
}

// redeemDevice gives tokens for a device code that a user has approved, once.
func (s *Server) redeemDevice(ctx context.Context, current *loaded, fields url.Values) (granted, error) {
	var c deviceCode
	if current.sealer.Open(purposeDeviceCode, fields.Get("device_code"), &c) != nil {
		return granted{}, refusedDevice("invalid_grant")
	}
	now := s.now()
	if age := now.Sub(c.At); age > usercode.Lifetime || age < -usercode.Lifetime {
		return granted{}, &protocolError{"expired_token", "the device code has expired; begin again"}
	}
	id := usercode.Session(c.User)
	if s.codes.tooSoon(id, now) {
		return granted{}, &protocolError{"slow_down", "ask every " + pollEvery.String() + ", and five seconds later after each such response"}
	}
	if err := s.client.Get(ctx, s.name(SessionPrefix+id), &corev1.Secret{}); apierrors.IsNotFound(err) { // before a user approves, no request reaches the API server
		return granted{}, &protocolError{"authorization_pending", "no user has approved the code yet"}
	} else if err != nil {
		return granted{}, fmt.Errorf("read the session of a device: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), beginLimit)
	defer cancel()
	for range contended {
		session, first, err := s.take(ctx, current, c, id)
		if err == nil {
			return s.grant(current, session, "", first)
		}
		if !apierrors.IsConflict(err) {
			return granted{}, err
		}
	}
	return granted{}, fmt.Errorf("redeem a device code: %d times another replica wrote session %s", contended, id)
}

// take makes an approved session that of the device, and returns its first refresh token, if the device asked for one. A device code that comes again was
// stolen, from or by the one who came first: the session is revoked.
func (s *Server) take(ctx context.Context, current *loaded, c deviceCode, id string) (*corev1.Secret, string, error) {
	session, now := &corev1.Secret{}, s.now()
	if err := s.live.Get(ctx, s.name(SessionPrefix+id), session); apierrors.IsNotFound(err) {
		return nil, "", refusedDevice("access_denied")
	} else if err != nil {
		return nil, "", fmt.Errorf("read the session of a device: %w", err)
	}
	audit.From(ctx).Identified(audit.User{Name: principalOf(session), UID: string(session.Data[keyUID])}, nil)
	switch {
	case len(session.Data[keyRevoked]) > 0 || string(session.Data[keyKeys]) != string(current.uid):
		return nil, "", refusedDevice("access_denied")
	case len(session.Data[keyAwaited]) == 0:
		s.log.Info("a device code was redeemed twice: its session is revoked", "user", principalOf(session))
		return nil, "", orRefused(s.revoke(ctx, id), refusedDevice("invalid_grant"))
	}
	if err := s.askAgain(ctx, session, false); errors.Is(err, errStanding) {
		return nil, "", orRefused(s.revoke(ctx, id), refusedDevice("access_denied"))
	} else if err != nil {
		return nil, "", err
	}
	delete(session.Data, keyAwaited)
	session.Data[keyEnds] = []byte(now.Add(token.Lifetime).UTC().Format(time.RFC3339))
	first := ""
	if c.Offline {
		given, state := refresh.New(id, now)
		if err := keep(session, state, s.bounds.until(timeOf(session, keyBegun), now), now); err != nil {
			return nil, "", err
		}
		first = given.String()
	}
	if err := s.client.Update(ctx, session); err != nil { // of the version that was read, or a conflict
		return nil, "", fmt.Errorf("write session %s: %w", id, err)
	}
	return session, first, nil
}

func refusedDevice(code string) error {
	return &protocolError{code, "the device code is not valid or was used before, or its user may not sign in; begin again"}
}
