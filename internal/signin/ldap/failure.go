// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	goldap "github.com/go-ldap/ldap/v3"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// failure describes an operation that failed on a server. It does not contain the search filter, because the filter
// contains user input.
type failure struct {
	server, what string
	err          error
	secrets      []string
}

// Error returns the server, the operation, and the server's response. The message contains no secrets.
func (f *failure) Error() string {
	text := fmt.Sprintf("%s: %s: %s", f.server, f.what, f.reason())
	if advice := f.advice(); advice != "" {
		text += ": " + advice
	}
	return text
}

// Unwrap returns the cause, so that callers can detect a timeout.
func (f *failure) Unwrap() error { return f.err }

func (f *failure) reason() string {
	var answer *goldap.Error
	text := f.err.Error()
	switch {
	case errors.Is(f.err, context.DeadlineExceeded):
		return "no response in time"
	case errors.As(f.err, &answer) && answer.ResultCode < goldap.ErrorNetwork:
		text = fmt.Sprintf("%s (%d)", goldap.LDAPResultCodeMap[answer.ResultCode], answer.ResultCode)
		if said := answer.Err.Error(); said != "" {
			text += ", " + said
		}
	}
	for _, secret := range f.secrets {
		if strings.Contains(text, secret) {
			return "the response is omitted, because it repeats a password"
		}
	}
	return bounded(text)
}

// advice returns a hint on how to fix the problem that a server's error response describes.
func (f *failure) advice() string {
	switch f.code() {
	case goldap.LDAPResultNoSuchObject:
		return "the entry does not exist, or the service account may not read it"
	case goldap.LDAPResultInvalidCredentials:
		return "check its name and its Secret"
	case goldap.LDAPResultSizeLimitExceeded, goldap.LDAPResultAdminLimitExceeded:
		return "the server limits how much the service account may read: raise its limits, or narrow base and filter"
	case goldap.LDAPResultReferral:
		return "the entry is on another server, and referrals are not followed: name that server"
	case goldap.LDAPResultTimeLimitExceeded:
		return "index the attributes in the filter"
	}
	return ""
}

// code returns the result code from the server, or 0 if there is none.
func (f *failure) code() uint16 {
	var answer *goldap.Error
	if errors.As(f.err, &answer) && answer.ResultCode < goldap.ErrorNetwork {
		return answer.ResultCode
	}
	return 0
}

// failed returns a failure of the given operation, or nil if err is nil.
func (s *session) failed(what string, err error, secrets ...string) error {
	if err == nil {
		return nil
	}
	if s.ctx.Err() != nil {
		err = s.ctx.Err()
	}
	return &failure{server: s.server, what: what, err: err, secrets: secrets}
}

// unavailable reports whether another server should be tried, because this server did not respond or currently cannot
// serve requests.
func unavailable(err error) bool {
	var f *failure
	if !errors.As(err, &f) {
		return false
	}
	switch f.code() {
	case 0, goldap.LDAPResultBusy, goldap.LDAPResultUnavailable:
		return true
	}
	return false
}

// refusesUser reports whether a bind failed because of the user or the password. Directories return several different
// codes for a locked user.
func refusesUser(err error) bool {
	return goldap.IsErrorAnyOf(err, goldap.LDAPResultInvalidCredentials, goldap.LDAPResultUnwillingToPerform,
		goldap.LDAPResultConstraintViolation,
		goldap.LDAPResultInappropriateAuthentication, goldap.LDAPResultNoSuchObject, goldap.LDAPResultInsufficientAccessRights)
}

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{connector.ErrRefused}, args...)...)
}

// joined returns an error that lists the failures of several servers on one line.
func joined(failures []error) error {
	if len(failures) == 1 {
		return failures[0]
	}
	texts := make([]string, len(failures))
	for i, err := range failures {
		texts[i] = err.Error()
	}
	return fmt.Errorf("no server of the directory serves: %s", strings.Join(texts, "; "))
}

// bounded truncates text that may come from users or servers, and makes it safe for a single log line.
func bounded(text string) string {
	const most = 200
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '.'
		}
		return r
	}, strings.TrimRight(text, "\x00"))
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}
