// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"net/url"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/signin/oauth"
)

const hubPage = "https://hub.example.com/ui/"

func TestParseAuthorization(t *testing.T) {
	good := func() url.Values {
		return url.Values{"client_id": {"kubectl"}, "redirect_uri": {"http://localhost:8000"}, "response_type": {"code"},
			"scope": {"openid profile"}, "state": {"s"},
			"nonce": {"n"}, "code_challenge": {oauth.Digest("x")}, "code_challenge_method": {"S256"}}
	}
	if a, redirect, problem := parseAuthorization(good(), hubPage); problem != nil || !redirect ||
		a.Challenge != oauth.Digest("x") || a.Nonce != "n" || a.State != "s" {
		t.Fatalf("a good request is %+v, %v", a, problem)
	}
	own := good()
	own.Set("redirect_uri", hubPage)
	if a, redirect, problem := parseAuthorization(own, hubPage); problem != nil || !redirect || a.Redirect != hubPage {
		t.Fatalf("the request of the hub's own page is %+v, %v", a, problem)
	}
	for name, tt := range map[string]struct {
		change   func(url.Values)
		redirect bool
		want     string
	}{
		"another path than the page's": {func(v url.Values) { v.Set("redirect_uri", hubPage+"x") }, false, "redirect_uri"},
		"the page with a query":        {func(v url.Values) { v.Set("redirect_uri", hubPage+"?x=y") }, false, "redirect_uri"},
		"the page without TLS": {
			func(v url.Values) { v.Set("redirect_uri", "http"+strings.TrimPrefix(hubPage, "https")) }, false, "redirect_uri",
		},
		"the page at another host": {
			func(v url.Values) { v.Set("redirect_uri", "https://evil.example/ui/") }, false, "redirect_uri",
		},
		"another client": {func(v url.Values) { v.Set("client_id", "x") }, false, "client_id"},
		"no client":      {func(v url.Values) { v.Del("client_id") }, false, "client_id"},
		"an open redirect": {
			func(v url.Values) { v.Set("redirect_uri", "https://evil.example/") }, false, "redirect_uri",
		},
		"no redirect": {func(v url.Values) { v.Del("redirect_uri") }, false, "redirect_uri"},
		"two redirects": {
			func(v url.Values) { v.Add("redirect_uri", "https://evil.example/") }, false, "more than once",
		},
		"a long state": {
			func(v url.Values) { v.Set("state", strings.Repeat("x", oauth.MaxField+1)) }, false, "longer than",
		},
		"no state": {func(v url.Values) { v.Del("state") }, true, "state"},
		"no PKCE": {
			func(v url.Values) { v.Del("code_challenge"); v.Del("code_challenge_method") }, true, "S256",
		},
		"plain PKCE":            {func(v url.Values) { v.Set("code_challenge_method", "plain") }, true, "S256"},
		"PKCE without a method": {func(v url.Values) { v.Del("code_challenge_method") }, true, "S256"},
		"a short challenge":     {func(v url.Values) { v.Set("code_challenge", "abc") }, true, "code_challenge"},
		"the implicit flow": {
			func(v url.Values) { v.Set("response_type", "id_token token") }, true, "response_type",
		},
		"a hybrid flow": {
			func(v url.Values) { v.Set("response_type", "code id_token") }, true, "response_type",
		},
		"a fragment as response": {func(v url.Values) { v.Set("response_mode", "fragment") }, true, "response_mode"},
		"a request object":       {func(v url.Values) { v.Set("request", "e30.e30.") }, true, "request objects"},
		"a request elsewhere": {
			func(v url.Values) { v.Set("request_uri", "http://169.254.169.254/") }, true, "request objects",
		},
		"no openid":      {func(v url.Values) { v.Set("scope", "profile") }, true, "openid"},
		"without asking": {func(v url.Values) { v.Set("prompt", "none") }, true, "sign in"},
	} {
		t.Run(name, func(t *testing.T) {
			fields := good()
			tt.change(fields)
			if _, redirect, problem := parseAuthorization(fields, hubPage); problem == nil || redirect != tt.redirect ||
				!strings.Contains(problem.Description, tt.want) {
				t.Errorf("the error is %v, sent to the redirect URI: %t; want %q and %t", problem, redirect, tt.want, tt.redirect)
			}
		})
	}
}

func TestLoopback(t *testing.T) {
	for raw, want := range map[string]bool{
		"http://127.0.0.1:8000": true, "http://localhost:8000/": true, "http://[::1]:18000/callback": true, "http://localhost:1/a/b": true,
		"": false, "http://127.0.0.1": false, "http://127.0.0.1:0/": false, "http://127.0.0.1:08000/": false, "http://127.0.0.1:65536/": false, "https://127.0.0.1:8000/": false,
		"http://127.0.0.2:8000/": false, "http://2130706433:8000/": false, "http://0x7f.1:8000/": false, "http://localhost.evil.example:8000/": false,
		"http://evil.example:8000/": false, "http://localhost:8000@evil.example/": false, "http://evil.example@localhost:8000/": false,
		"http://localhost:8000/?a=b": false, "http://localhost:8000/?": false, "http://localhost:8000/#a": false, "http://localhost:8000/#": false,
		"http://localhost:8000\\.evil.example/": false, "http://localhost:8000/\r\nSet-Cookie:a": false, "//localhost:8000/": false, "javascript:alert(1)": false,
		"HTTP://localhost:8000/": false, "http:localhost:8000": false, "http://LOCALHOST:8000/": false, "http://localhost:8000/" + strings.Repeat("a", maxRedirect): false,
		"http://[::1%25lo]:8000/": false, "http://[0:0:0:0:0:0:0:1]:8000/": false, "urn:ietf:wg:oauth:2.0:oob": false,
	} {
		if got := loopback(raw); got != want {
			t.Errorf("loopback of %q returned %t, want %t", raw, got, want)
		}
	}
}

// CVE-2020-4037, CVE-2020-5233, CVE-2020-11053, CVE-2021-21291: a login redirects to an address that an attacker chose.
func FuzzRedirectLeadsToThisMachine(f *testing.F) {
	f.Add("http://127.0.0.1:8000/a")
	f.Add("http://localhost:8000@evil.example/")
	f.Fuzz(func(t *testing.T, raw string) {
		if !loopback(raw) {
			return
		}
		u, err := url.Parse(raw)
		if err != nil || u.Scheme != "http" || u.User != nil || u.Hostname() != "127.0.0.1" && u.Hostname() != "::1" &&
			u.Hostname() != "localhost" {
			t.Errorf("%q is a loopback redirect", raw)
		}
	})
}

func FuzzParseAuthorization(f *testing.F) {
	f.Add("client_id=kubectl&redirect_uri=http://127.0.0.1:1&state=a")
	f.Fuzz(func(t *testing.T, query string) {
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		if a, redirect, problem := parseAuthorization(values, hubPage); redirect && a.Redirect != hubPage &&
			!loopback(a.Redirect) || problem == nil && (!oauth.IsDigest(a.Challenge) || a.State == "") {
			t.Errorf("%q is accepted as %+v", query, a)
		}
	})
}
