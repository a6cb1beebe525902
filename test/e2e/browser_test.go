// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// TestPeopleSignInByKeyboardInARealBrowser opens the sign-in pages in Chromium, with and without scripts.
func TestPeopleSignInByKeyboardInARealBrowser(t *testing.T) {
	t.Parallel()
	chromium.Find(t) // before a hub is started
	s := build(t)
	s.startSignIn(t)
	secret := makeUser(t, s, "alice")
	awaitKeys(t, s)
	v := newVisitor(t, s, "alice", secret)
	for name, scripts := range map[string]bool{"with scripts": true, "without scripts": false} {
		t.Run(name, func(t *testing.T) {
			p := person{Page: chromium.Open(t, scripts), t: t, hub: s.hub.URL()}
			t.Run("a login", func(t *testing.T) { p.t = t; p.signIn(v) })
			t.Run("a device", func(t *testing.T) { p.t = t; p.approve(v) })
			for _, problem := range p.Problems() {
				if !strings.Contains(problem, "status of 403") { // the answer to a wrong password, which browsers log
					t.Errorf("the browser complains: %s", problem)
				}
			}
		})
	}
}

// person uses the browser only with a keyboard, and only knows what a screen reader says about a page.
type person struct {
	*chromium.Page
	t   *testing.T
	hub string
}

// sees waits until the page has all elements, each written as "role: name", and the focus is on one of them. It returns
// all elements of the page.
func (p *person) sees(focus string, wanted ...string) []chromium.Element {
	p.t.Helper()
	var all []chromium.Element
	testkit.Eventually(p.t, 30*time.Second, func(context.Context) error {
		var err error
		if all, err = p.Elements(); err != nil {
			return err
		}
		for _, want := range append(wanted, focus) {
			found := slices.ContainsFunc(all, func(e chromium.Element) bool {
				return e.Role+": "+e.Name == want && (want != focus || e.Focused)
			})
			if want != "" && !found {
				return fmt.Errorf("a screen reader does not find %q (focus on %q) among\n%s", want, focus, chromium.String(all))
			}
		}
		return nil
	})
	return all
}

func (p *person) signIn(v *visitor) {
	p.t.Helper()
	codes := make(chan string, 1)
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := r.URL.Query().Get("code"); code != "" {
			codes <- code
		}
		_, _ = w.Write([]byte("<!doctype html><title>done</title>done")) // with no doctype the browser complains
	}))
	defer app.Close()
	config, verifier := v.app(), oauth2.GenerateVerifier()
	config.RedirectURL = app.URL + "/callback"
	p.Go(config.AuthCodeURL("s", oauth2.S256ChallengeOption(verifier), oauth2.SetAuthURLParam("nonce", "n")))
	p.sees("textbox: User name", "RootWebArea: Sign in to Drover", "heading: Sign in to Drover", "textbox: Password", "button: Sign in")
	p.fits()
	p.Type(v.user)
	p.Press("Tab")
	p.sees("textbox: Password")
	p.Type("wrong")
	p.Press("Enter")
	all := p.sees("textbox: User name", "textbox: Password")
	if i := slices.IndexFunc(all, func(e chromium.Element) bool { return e.Role == "alert" }); i < 0 {
		p.t.Errorf("no alert says that the password is wrong:\n%s", chromium.String(all))
	}
	if i := slices.IndexFunc(all, func(e chromium.Element) bool { return e.Name == "User name" && e.Role == "textbox" }); all[i].Value != v.user {
		p.t.Errorf("the name has to be typed again: it is %q", all[i].Value)
	}
	p.Press("Tab")
	p.Type(v.secret)
	p.Press("Tab")
	p.sees("button: Sign in")
	p.Press("Enter")
	select {
	case code := <-codes:
		if _, err := config.Exchange(oidc.ClientContext(within(p.t, time.Minute), v.client), code, oauth2.VerifierOption(verifier)); err != nil {
			p.t.Error(err)
		}
	case <-time.After(testkit.Patience * 30 * time.Second):
		p.t.Fatalf("the browser does not come back to the program: %v, %v", p.Requests(), p.Problems())
	}
	p.cookies()
	for _, address := range p.Requests() {
		if !strings.HasPrefix(address, p.hub+"/") && !strings.HasPrefix(address, app.URL+"/") {
			p.t.Errorf("the browser asked %s, want only the hub %s and the program %s", address, p.hub, app.URL)
		}
	}
}

// approve types a device's code, and signs in to approve it.
func (p *person) approve(v *visitor) {
	p.t.Helper()
	resp, err := v.client.PostForm(p.hub+"/v1/auth/device", url.Values{"client_id": {"kubectl"}, "scope": {"openid"}})
	if err != nil {
		p.t.Fatal(err)
	}
	defer resp.Body.Close()
	var device struct {
		UserCode string `json:"user_code"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&device); err != nil || device.UserCode == "" {
		p.t.Fatalf("no code for the device: %s (%v)", resp.Status, err)
	}
	p.Go(p.hub + "/v1/auth/device")
	p.sees("textbox: Code on the device", "heading: Sign in another device", "button: Continue")
	p.fits()
	p.Type(strings.ToLower(device.UserCode))
	p.Press("Enter")
	all := p.sees("textbox: User name", "textbox: Password", "button: Sign in")
	if !slices.ContainsFunc(all, func(e chromium.Element) bool { return strings.Contains(e.Name, device.UserCode) }) {
		p.t.Errorf("the page does not show the code %s to compare:\n%s", device.UserCode, chromium.String(all))
	}
	p.fits()
	p.Type(v.user)
	p.Press("Tab")
	p.Type(v.secret)
	p.Press("Enter")
	all = p.sees("", "heading: Sign in another device")
	if !slices.ContainsFunc(all, func(e chromium.Element) bool { return e.Role == "status" }) {
		p.t.Errorf("the page does not say that the device was approved:\n%s", chromium.String(all))
	}
}

// fits checks that a page is not wider than the screen of a phone.
func (p *person) fits() {
	p.t.Helper()
	p.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 320, "height": 640, "deviceScaleFactor": 1, "mobile": true}, nil)
	var layout struct{ CSSContentSize struct{ Width float64 } }
	p.Call("Page.getLayoutMetrics", nil, &layout)
	if layout.CSSContentSize.Width > 320 {
		p.t.Errorf("on a screen of 320 pixels the page is %v wide", layout.CSSContentSize.Width)
	}
	p.Call("Emulation.clearDeviceMetricsOverride", nil, nil)
}

// cookies checks the cookies that the browser stores.
func (p *person) cookies() {
	p.t.Helper()
	var kept struct {
		Cookies []struct {
			Name, SameSite   string
			Secure, HTTPOnly bool `json:",omitempty"`
		}
	}
	p.Call("Network.getCookies", map[string]any{"urls": []string{p.hub + "/v1/auth/login"}}, &kept)
	if len(kept.Cookies) == 0 {
		p.t.Error("the browser keeps no cookie of the hub")
	}
	for _, c := range kept.Cookies {
		if !strings.HasPrefix(c.Name, "__Host-") || !c.Secure || !c.HTTPOnly || c.SameSite == "" || c.SameSite == "None" {
			p.t.Errorf("a cookie is kept as %+v", c)
		}
	}
}
