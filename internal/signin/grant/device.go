// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/lru"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/keyring"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/usercode"
)

// pollEvery is the minimum interval at which a device may poll.
const pollEvery = 5 * time.Second

// deviceCode is the content of a device code. The code is sealed, and no object is stored for it until a user approves
// it.
type deviceCode struct {
	User    string    `json:"u"` // the code that the user types
	Offline bool      `json:"o,omitempty"`
	At      time.Time `json:"t"`
}

// DeviceCodes is the response to a device that requested a code.
type DeviceCodes struct {
	Device   string `json:"device_code"`
	User     string `json:"user_code"`
	URI      string `json:"verification_uri"`
	Complete string `json:"verification_uri_complete"`
	Expires  int    `json:"expires_in"`
	Interval int    `json:"interval"`
}

// device issues codes to a device (RFC 8628).
func (s *Server) device(w http.ResponseWriter, r *http.Request) { serve(s, w, r, s.deviceCodes) }

func (s *Server) deviceCodes(r *http.Request, fields url.Values) (DeviceCodes, error) {
	scopes := strings.Fields(fields.Get("scope"))
	if !slices.Contains(scopes, oauth.ScopeOpenID) {
		return DeviceCodes{}, &oauth.Error{Code: "invalid_scope", Description: "scope must include " + oauth.ScopeOpenID}
	}
	if wait := s.devices.wait(limit.Source(r.RemoteAddr), s.Now()); wait > 0 {
		return DeviceCodes{}, &oauth.Later{After: wait, Err: oauth.Error{
			Code: oauth.TooMany, Description: "too many devices are asking for a code at the moment; try again",
		}}
	}
	keys, err := s.Keyring.Current(r.Context())
	if err != nil {
		return DeviceCodes{}, err
	}
	user, err := usercode.New(keys.Sealing[0], s.Now())
	if err != nil {
		return DeviceCodes{}, err
	}
	code := deviceCode{User: user, Offline: slices.Contains(scopes, oauth.ScopeOffline), At: s.Now()}
	sealed, err := keys.Seal(keyring.PurposeDeviceCode, code)
	if err != nil {
		return DeviceCodes{}, err
	}
	uri, shown := s.Issuer+oauth.PathDevice, usercode.Format(user)
	return DeviceCodes{
		Device: sealed, User: shown, URI: uri, Complete: uri + "?" + url.Values{"user_code": {shown}}.Encode(),
		Expires: int(usercode.Lifetime / time.Second), Interval: int(pollEvery / time.Second),
	}, nil
}

// redeemDevice issues tokens for a device code that a user has approved. Each code can be redeemed only once.
func (s *Server) redeemDevice(ctx context.Context, keys *keyring.Keys, fields url.Values) (Granted, error) {
	var c deviceCode
	if keys.Open(keyring.PurposeDeviceCode, fields.Get("device_code"), &c) != nil {
		return Granted{}, refusedDevice("invalid_grant")
	}
	now := s.Now()
	if age := now.Sub(c.At); age > usercode.Lifetime || age < -usercode.Lifetime {
		return Granted{}, &oauth.Error{Code: "expired_token", Description: "the device code has expired; begin again"}
	}
	id := usercode.Session(c.User)
	if s.devices.tooSoon(id, now) {
		return Granted{}, &oauth.Error{Code: "slow_down", Description: "poll every " + pollEvery.String() +
			", and wait five seconds longer after each such response"}
	}
	_, err := s.Sessions.Cached(ctx, id) // until a user approves, polls do not reach the API server
	if apierrors.IsNotFound(err) {
		return Granted{}, &oauth.Error{
			Code: "authorization_pending", Description: "no user has approved the code yet",
		}
	} else if err != nil {
		return Granted{}, fmt.Errorf("read the session of a device: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), session.WriteLimit)
	defer cancel()
	for range contended {
		taken, first, err := s.take(ctx, keys, c, id)
		if err == nil {
			return s.give(keys, taken, "", first)
		}
		if !apierrors.IsConflict(err) {
			return Granted{}, err
		}
	}
	return Granted{}, fmt.Errorf("redeem a device code: %d times another replica wrote session %s", contended, id)
}

// take assigns an approved session to the device. It returns the first refresh token, if the device requested one. If a
// device code is redeemed twice, one of the two clients must have stolen it, so take revokes the session.
func (s *Server) take(
	ctx context.Context, keys *keyring.Keys, c deviceCode, id string,
) (of session.Session, first string, err error) {
	of, err = s.Sessions.Live(ctx, id)
	if apierrors.IsNotFound(err) {
		return of, "", refusedDevice("access_denied")
	} else if err != nil {
		return of, "", fmt.Errorf("read the session of a device: %w", err)
	}
	audit.From(ctx).Identified(audit.User{Name: of.Principal(), UID: of.UID()}, nil)
	switch {
	case of.Revoked() || string(of.Data[session.KeyKeys]) != string(keys.UID):
		return of, "", refusedDevice("access_denied")
	case !of.Awaited():
		s.Log.Info("a device code was redeemed twice, so its session is revoked", "user", of.Principal())
		return of, "", orRefused(s.Sessions.Revoke(ctx, id), refusedDevice("invalid_grant"))
	}
	if err := s.reviewer.review(ctx, of, false); errors.Is(err, account.ErrNotStanding) {
		return of, "", orRefused(s.Sessions.Revoke(ctx, id), refusedDevice("access_denied"))
	} else if err != nil {
		return of, "", err
	}
	of.Take(s.Now())
	if c.Offline {
		if first, err = s.Sessions.GiveRefresh(of); err != nil {
			return of, "", err
		}
	}
	if err := s.Sessions.Save(ctx, of); err != nil {
		// the write fails with a conflict if the session was changed in the meantime
		return of, "", fmt.Errorf("write session %s: %w", id, err)
	}
	return of, first, nil
}

func refusedDevice(code string) error {
	return &oauth.Error{Code: code, Description: "the device code is not valid or was used before, " +
		"or its user may not sign in; begin again"}
}

// Limits on the device codes that one replica issues. Each limit consists of a rate per second and a burst. The first
// pair applies to all addresses combined, and the second pair applies to each address. Without limits, an attacker
// could request many codes and wait for a user to enter one of them by mistake.
const (
	codesPerSecond, codesAtOnce              = 20, 100
	codesPerSecondOfSource, codesOfOneAtOnce = 0.5, 10
)

// maxPolls is the maximum number of devices whose last poll is stored.
const maxPolls = 8192

// deviceLimits limits the load from devices on one replica.
type deviceLimits struct {
	all     *rate.Limiter
	sources attempts.Rates
	polls   *lru.Cache // the time of the last poll (time.Time), by session ID
}

func newDeviceLimits() deviceLimits {
	return deviceLimits{
		all:     rate.NewLimiter(codesPerSecond, codesAtOnce),
		sources: attempts.NewRates(codesPerSecondOfSource, codesOfOneAtOnce),
		polls:   lru.New(maxPolls),
	}
}

// wait counts a device's request for a code. It returns how long the device must wait, or 0 if the request is allowed.
func (d deviceLimits) wait(source string, now time.Time) time.Duration {
	if !d.sources.Of(source).AllowN(now, 1) {
		return 2 * time.Second // until codesPerSecondOfSource allows one code
	}
	if !d.all.AllowN(now, 1) {
		return time.Second
	}
	return 0
}

// tooSoon records a poll, and reports whether the device polled before the end of its interval. It allows one second
// for network delay.
func (d deviceLimits) tooSoon(session string, now time.Time) bool {
	last, known := d.polls.Get(session)
	d.polls.Add(session, now)
	if !known {
		return false
	}
	since := now.Sub(last.(time.Time)) // only values of this type are added
	return since >= 0 && since < pollEvery-time.Second
}
