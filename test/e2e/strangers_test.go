// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"
)

const (
	// Visits of strangers from one address, strangersAtOnce at a time.
	visits, strangersAtOnce = 100_000, 16
	// visitMemory is the number of bytes by which the manager's memory may grow: buffers of connections, and counters of
	// addresses.
	visitMemory = 64 << 20
)

// TestLong_StrangersLeaveNothing opens and submits sign-in forms 100,000 times without an account. It runs alone,
// because it uses all CPUs.
func TestLong_StrangersLeaveNothing(t *testing.T) {
	s := startWith(t, (*system).startSignIn)
	secret := makeUser(t, s, "alice")
	awaitKeys(t, s)
	v := newVisitor(t, s, "alice", secret)
	if _, err := v.login(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	ways := strangersWays(t, v)
	before, small := writesOfStart(t, s.hub.Plane), resident(t, s)
	began := time.Now()
	answers := visit(t, v, ways)
	took := time.Since(began)
	grown := resident(t, s) - small
	t.Logf("%d visits in %s: answers %v; the manager has %d KiB more", visits, took.Round(time.Millisecond), answers, grown>>10)
	for kind, n := range writes(t, s.hub.Plane) {
		if more := n - before[kind]; more > 0 {
			t.Errorf("strangers caused %d writes: %s", more, kind)
		}
	}
	if grown > visitMemory {
		t.Errorf("the manager has grown by %d MiB, want %d at most", grown>>20, visitMemory>>20)
	}
	for _, way := range ways {
		if n := answers[way.name+" "+fmt.Sprint(way.want)]; n == 0 {
			t.Errorf("%s was never answered with %d: the test has not looked at what it should", way.name, way.want)
		}
	}
	if _, err := v.login(within(t, time.Minute)); err != nil {
		t.Errorf("a user who signs in afterwards: %v", err)
	}
}

// strangersWay is a request that needs no account, and the hub's response to it as long as there are not too many.
type strangersWay struct {
	name, method, path string
	form               url.Values
	want               int
}

func strangersWays(t *testing.T, v *visitor) []strangersWay {
	t.Helper()
	page := strings.TrimPrefix(v.app().AuthCodeURL("s", oauth2.S256ChallengeOption(oauth2.GenerateVerifier()), oauth2.SetAuthURLParam("nonce", "n")), v.hub)
	return []strangersWay{
		{"the login page", http.MethodGet, page, nil, http.StatusOK},
		{"the page of devices", http.MethodGet, "/v1/auth/device", nil, http.StatusOK},
		{"a device code", http.MethodPost, "/v1/auth/device", url.Values{"client_id": {"kubectl"}, "scope": {"openid"}}, http.StatusOK},
		{"a login with a form of nowhere", http.MethodPost, "/v1/auth/login", url.Values{"request": {"x"}, "user": {"alice"}, "password": {"x"}}, http.StatusBadRequest},
		{"a code of nowhere", http.MethodPost, "/v1/auth/token", url.Values{"client_id": {"kubectl"}, "grant_type": {"authorization_code"}, "code": {"x"},
			"redirect_uri": {"http://localhost:8000"}, "code_verifier": {strings.Repeat("v", 43)}}, http.StatusBadRequest},
		{"a refresh token of nowhere", http.MethodPost, "/v1/auth/token", url.Values{"client_id": {"kubectl"}, "grant_type": {"refresh_token"}, "refresh_token": {"x"}}, http.StatusBadRequest},
	}
}

// visit sends one request after the other, and counts the responses.
func visit(t *testing.T, v *visitor, ways []strangersWay) map[string]int {
	t.Helper()
	var next atomic.Int64
	var mu sync.Mutex
	answers := map[string]int{}
	ctx := within(t, 5*time.Minute)
	var all sync.WaitGroup
	for range strangersAtOnce {
		all.Go(func() {
			own := map[string]int{}
			for i := next.Add(1); i <= visits; i = next.Add(1) {
				way := ways[int(i)%len(ways)]
				code, err := way.send(ctx, v)
				if err != nil {
					t.Errorf("%s: %v", way.name, err)
					return
				}
				own[fmt.Sprintf("%s %d", way.name, code)]++
			}
			mu.Lock()
			defer mu.Unlock()
			for name, n := range own {
				answers[name] += n
			}
		})
	}
	all.Wait()
	return answers
}

// send sends the request once. Strangers store no cookies.
func (w strangersWay) send(ctx context.Context, v *visitor) (int, error) {
	req, err := http.NewRequestWithContext(ctx, w.method, v.hub+w.path, strings.NewReader(w.form.Encode()))
	if err != nil {
		return 0, err
	}
	if w.form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", v.hub)
	}
	resp, err := v.client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// resident returns the memory of the manager.
func resident(t *testing.T, s *system) int64 {
	t.Helper()
	usage, err := s.hub.Manager.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return usage.RSS
}
