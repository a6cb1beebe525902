// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/oauth"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/usercode"
	"github.com/drover-dev/drover/test/testkit"
)

// device requests codes for a device.
func (f *fixture) device(scope string) grant.DeviceCodes {
	f.t.Helper()
	got := f.send(f.server.Client(), http.MethodPost, f.server.URL+oauth.PathDevice,
		url.Values{"client_id": {"kubectl"}, "scope": {scope}}, nil)
	var b grant.DeviceCodes
	if err := json.Unmarshal([]byte(got.body), &b); err != nil || got.code != http.StatusOK ||
		got.header.Get("Cache-Control") != "no-store" {
		f.t.Fatalf("a device gets %d %s", got.code, got.body)
	}
	return b
}

// approved approves a device at the address that it shows, and returns what the user sees.
func (f *fixture) approved(address string) response {
	f.t.Helper()
	b := f.browser()
	page := f.send(b, http.MethodGet, address, nil, nil)
	found := hidden.FindStringSubmatch(page.body)
	if found == nil {
		f.t.Fatalf("the page of a device is %d %s", page.code, page.body)
	}
	return f.login(b, found[1], f.user.Name, secretPassword)
}

// poll asks for the tokens of a device.
func (f *fixture) poll(device string) (response, tokens) {
	f.t.Helper()
	f.wait(pollEvery)
	return f.post(grant.PathToken, url.Values{"grant_type": {grantDevice}, "client_id": {"kubectl"},
		"device_code": {device}})
}

func TestThirdPartyClientSignsInADevice(t *testing.T) {
	f := newFixture(t)
	ctx := oidc.ClientContext(t.Context(), f.server.Client())
	provider, err := oidc.NewProvider(ctx, f.server.URL)
	if err != nil {
		t.Fatal(err)
	}
	config := f.config()
	config.Endpoint, config.Scopes = provider.Endpoint(), append(config.Scopes, "offline_access")
	before := f.objects()
	codes, err := config.DeviceAuth(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if codes.Interval != 5 || codes.VerificationURI != f.server.URL+oauth.PathDevice ||
		!strings.HasPrefix(codes.VerificationURIComplete, codes.VerificationURI+"?user_code="+codes.UserCode) {
		t.Errorf("the codes are %+v", codes)
	}
	for range 3 {
		if _, answer := f.poll(codes.DeviceCode); answer.Problem != "authorization_pending" {
			t.Errorf("before a user approves: %q", answer.Problem)
		}
	}
	if n := f.objects(); n != before {
		t.Errorf("a device that no user approved leaves %d objects", n-before)
	}
	page := f.send(f.browser(), http.MethodGet, codes.VerificationURIComplete, nil, nil)
	if !strings.Contains(page.body, codes.UserCode) ||
		!strings.Contains(page.body, "Sign in only if you started that program yourself") ||
		strings.Contains(page.body, "<script") ||
		!strings.Contains(page.header.Get("Content-Security-Policy"),
			"form-action 'self'") || strings.Contains(page.header.Get("Content-Security-Policy"), "http:") {
		t.Errorf("the page does not say what is granted, or may do more than be sent: %v %s", page.header, page.body)
	}
	if got := f.approved(codes.VerificationURIComplete); got.code != http.StatusOK ||
		!strings.Contains(got.body, "signed in as local:"+f.user.Name) || got.header.Get("Location") != "" {
		t.Fatalf("the user is shown %d %s", got.code, got.body)
	}
	codes.Interval = 1 // seconds, of this client's own clock
	f.wait(pollEvery)
	token, err := config.DeviceAccessToken(ctx, codes)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := token.Extra("id_token").(string)
	if verified, err := provider.Verifier(&oidc.Config{ClientID: "kubectl", Now: f.now}).Verify(ctx, raw); err != nil ||
		verified.Subject != "local:"+f.user.Name || verified.Nonce != "" {
		t.Fatalf("the token is %+v (%v)", verified, err)
	}
	if _, err := f.identify(raw); err != nil {
		t.Error(err)
	}
	f.wait(10 * time.Minute)
	f.refreshed(token.RefreshToken)
	if n := f.objects(); n != before+1 {
		t.Errorf("a device leaves %d objects, want its session", n-before)
	}
}

func TestUserTypesTheCodeOfADevice(t *testing.T) {
	f := newFixture(t)
	device := f.device("openid")
	b := f.browser()
	if page := f.send(b, http.MethodGet, device.URI, nil, nil); page.code != http.StatusOK ||
		!strings.Contains(page.body, `<label for="user_code">`) || strings.Contains(page.body, `name="password"`) {
		t.Errorf("the page without a code is %d %s", page.code, page.body)
	}
	typed := strings.ToLower(strings.ReplaceAll(device.User, "-", " "))
	if got := f.approved(device.URI + "?" + url.Values{"user_code": {typed}}.Encode()); got.code != http.StatusOK {
		t.Fatalf("the user is shown %d %s", got.code, got.body)
	}
	if got, answer := f.poll(device.Device); answer.Access == "" || answer.Refresh != "" || answer.Scope != "openid" {
		t.Errorf("the device gets %d %s, want no refresh token, for which it did not ask", got.code, got.body)
	}
	if got := f.approved(device.Complete); got.code != http.StatusConflict {
		t.Errorf("a code that is approved again: %d %s", got.code, got.body)
	}
}

func TestDeviceCodeIsRedeemedOnce(t *testing.T) {
	f := newFixture(t)
	device := f.device("openid offline_access")
	f.approved(device.Complete)
	f.wait(pollEvery)
	replicas := []*Server{f.issuer, f.replica(f.Client), f.replica(f.Client), f.replica(f.Client)}
	got, errs := make([]grant.Granted, len(replicas)), make([]error, len(replicas))
	var wg sync.WaitGroup
	for i, replica := range replicas {
		wg.Go(func() {
			mux := http.NewServeMux()
			replica.Register(mux)
			fields := url.Values{"grant_type": {grantDevice}, "client_id": {"kubectl"}, "device_code": {device.Device}}
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, grant.PathToken,
				strings.NewReader(fields.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			mux.ServeHTTP(w, r)
			if w.Code != http.StatusOK {
				errs[i] = fmt.Errorf("%d %s", w.Code, w.Body)
				return
			}
			errs[i] = json.Unmarshal(w.Body.Bytes(), &got[i])
		})
	}
	wg.Wait()
	given := 0
	for i := range got {
		if errs[i] == nil {
			given++
			f.ended(tokens{Access: got[i].Access, Refresh: got[i].Refresh})
		}
	}
	if given != 1 {
		t.Errorf("four replicas gave %d sessions, want 1: %v", given, errs)
	}
}

func TestDeviceGetsNoTokenForAnInvalidCode(t *testing.T) {
	f := newFixture(t)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
		Name: v1.UserSecretPrefix + f.user.Name}}
	for name, tt := range map[string]struct {
		before func(*grant.DeviceCodes)
		want   string
	}{
		"cut": {
			func(b *grant.DeviceCodes) { f.approved(b.Complete); b.Device = b.Device[:len(b.Device)-4] }, "invalid_grant",
		},
		"garbage":       {func(b *grant.DeviceCodes) { b.Device = "x" }, "invalid_grant"},
		"none":          {func(b *grant.DeviceCodes) { b.Device = "" }, "invalid_grant"},
		"the user code": {func(b *grant.DeviceCodes) { f.approved(b.Complete); b.Device = b.User }, "invalid_grant"},
		"of another device, which no user approved": {
			func(b *grant.DeviceCodes) { f.approved(b.Complete); *b = f.device("openid") }, "authorization_pending",
		},
		"expired": {func(*grant.DeviceCodes) { f.wait(usercode.Lifetime) }, "expired_token"},
		"expired after it was approved": {
			func(b *grant.DeviceCodes) { f.approved(b.Complete); f.wait(usercode.Lifetime) }, "expired_token",
		},
		"of a user who was disabled since": {func(b *grant.DeviceCodes) {
			f.approved(b.Complete)
			testkit.Update(t, f.Client, f.user, func(u *v1.User) { u.Spec.Disabled = true })
		}, "access_denied"},
		"approved with a password that was replaced": {func(b *grant.DeviceCodes) {
			f.approved(b.Complete)
			testkit.Update(t, f.Client, secret, func(s *corev1.Secret) { s.Data[v1.UserSecretKey] = []byte("another hash") })
		}, "access_denied"},
		"whose session was deleted": {func(b *grant.DeviceCodes) {
			f.approved(b.Complete)
			session := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
				Name: sessions.Prefix + usercode.Session(strings.ReplaceAll(b.User, "-", ""))}}
			if err := f.Client.Delete(t.Context(), session); err != nil {
				t.Fatal(err)
			}
		}, "authorization_pending"},
	} {
		t.Run(name, func(t *testing.T) {
			f = newFixture(t)
			secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace,
				Name: v1.UserSecretPrefix + f.user.Name}}
			device := f.device("openid offline_access")
			tt.before(&device)
			if got, answer := f.poll(device.Device); answer.Problem != tt.want || got.code != http.StatusBadRequest ||
				answer.Access != "" {
				t.Errorf("the device gets %d %s, want %s", got.code, got.body, tt.want)
			}
		})
	}
}

func TestDeviceIsToldToSlowDown(t *testing.T) {
	f := newFixture(t)
	device := f.device("openid")
	f.poll(device.Device)
	ask := func() string {
		_, answer := f.post(grant.PathToken,
			url.Values{"grant_type": {grantDevice}, "client_id": {"kubectl"}, "device_code": {device.Device}})
		return answer.Problem
	}
	if got := ask(); got != "slow_down" {
		t.Errorf("a second question at once: %q", got)
	}
	f.wait(pollEvery)
	if got := ask(); got != "authorization_pending" {
		t.Errorf("a question in time: %q", got)
	}
}

func TestInvalidRequestsForDeviceCodesAreRefused(t *testing.T) {
	f := newFixture(t)
	for name, tt := range map[string]struct {
		fields url.Values
		want   string
	}{
		"another client": {url.Values{"client_id": {"other"}, "scope": {"openid"}}, "invalid_client"},
		"a client with a secret": {
			url.Values{"client_id": {"kubectl"}, "client_secret": {"x"}, "scope": {"openid"}}, "invalid_client",
		},
		"no scope": {url.Values{"client_id": {"kubectl"}}, "invalid_scope"},
		"two scopes": {
			url.Values{"client_id": {"kubectl"}, "scope": {"openid", "openid"}}, "invalid_request",
		},
		"without bound (CVE-2024-58259)": {
			url.Values{"client_id": {"kubectl"}, "scope": {strings.Repeat("openid ", maxForm)}}, "invalid_request",
		},
	} {
		if got, answer := f.post(oauth.PathDevice, tt.fields); answer.Problem != tt.want || got.code/100 != 4 {
			t.Errorf("%s: %d %s, want %s", name, got.code, got.body, tt.want)
		}
	}
	codes := map[int]int{}
	for range 3 * codesOfOneAtOnce {
		got, _ := f.post(oauth.PathDevice, url.Values{"client_id": {"kubectl"}, "scope": {"openid"}})
		codes[got.code]++
	}
	if codes[http.StatusOK] != codesOfOneAtOnce || codes[http.StatusTooManyRequests] != 2*codesOfOneAtOnce {
		t.Errorf("%d devices of one address at once got %v, want %d codes", 3*codesOfOneAtOnce, codes, codesOfOneAtOnce)
	}
}

func TestCodesAreNotGuessed(t *testing.T) {
	f := newFixture(t)
	device, before := f.device("openid"), f.objects()
	b, statuses := f.browser(), map[int]int{}
	show := func(code string) response {
		return f.send(b, http.MethodGet, f.server.URL+oauth.PathDevice+"?"+url.Values{"user_code": {code}}.Encode(), nil, nil)
	}
	for i := range 20 {
		statuses[show(fmt.Sprintf("BCDF-GHJK-%04d", i)).code]++ // codes have no digits: none is right by chance
	}
	if statuses[http.StatusNotFound] != 5 || statuses[http.StatusTooManyRequests] != 15 {
		t.Errorf("20 wrong codes gave %v, want 5 looked at", statuses)
	}
	if got := show(device.User); got.code != http.StatusTooManyRequests || got.header.Get("Retry-After") == "" {
		t.Errorf("the right code during the wait: %d", got.code)
	}
	f.wait(time.Minute)
	if got := show(device.User); got.code != http.StatusOK {
		t.Errorf("the right code after the wait: %d", got.code)
	}
	for _, code := range []string{`"><script>alert(1)</script>`, strings.Repeat("B", 2*oauth.MaxField), "%00"} {
		if got := show(code); strings.Contains(got.body, "alert(1)") || got.code < 400 {
			t.Errorf("the code %.40q: %d %s", code, got.code, got.body)
		}
	}
	if n := f.objects(); n != before {
		t.Errorf("they left %d objects", n-before)
	}
}

// If two users approve the same code, one of them because an attacker sent it, the first one counts.
func TestFirstUserWhoApprovesADeviceCodeGetsTheDevice(t *testing.T) {
	f := newFixture(t)
	device, first := f.device("openid"), f.user.Name
	f.approved(device.Complete)
	f.user = &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "bob-of-" + f.namespace}}
	f.addUser(f.user)
	if got := f.approved(device.Complete); got.code != http.StatusConflict {
		t.Errorf("the second user: %d %s", got.code, got.body)
	}
	_, answer := f.poll(device.Device)
	if id, err := f.identify(answer.Access); err != nil || id.User != "local:"+first {
		t.Errorf("the device is signed in as %+v (%v), want %s", id, err, first)
	}
}

// A page for one kind of login does not work for the other: a page for a device redirects nowhere.
func TestPageOfADeviceBelongsToItsBrowser(t *testing.T) {
	f := newFixture(t)
	device, before := f.device("openid"), f.objects()
	own, other := f.browser(), f.browser()
	request := hidden.FindStringSubmatch(f.send(own, http.MethodGet, device.Complete, nil, nil).body)[1]
	f.open(other, oauth2.GenerateVerifier())
	if got := f.login(other, request, f.user.Name, secretPassword); got.code != http.StatusBadRequest {
		t.Errorf("the page of another browser: %d", got.code)
	}
	if got := f.login(own, request, f.user.Name, "wrong-wrong-wrong"); got.code != http.StatusForbidden ||
		!strings.Contains(got.body, device.User) {
		t.Errorf("after a wrong password the page is %d %s, want the code on it", got.code, got.body)
	}
	if n := f.objects(); n != before {
		t.Errorf("they left %d objects", n-before)
	}
}
