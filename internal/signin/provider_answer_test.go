// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/oauth2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/test/testkit"
)

// A code belongs to the AuthProvider at which the user signed in, and not to a later AuthProvider with the same name.
func TestCodeEndsWithItsProvider(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	config, verifier, browser := f.config(), oauth2.GenerateVerifier(), f.browser()
	done := f.send(browser, http.MethodGet, f.throughProvider(p, browser, config, verifier), nil, nil)
	back, err := url.Parse(done.header.Get("Location"))
	if err != nil || back.Query().Get("code") == "" {
		t.Fatalf("the callback answers %d %s", done.code, done.body)
	}
	next := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: provider.Name}, Spec: provider.Spec}
	if err := f.Client.Delete(t.Context(), provider); err != nil {
		t.Fatal(err)
	}
	f.Apply(t, next)
	t.Cleanup(func() { _ = f.Client.Delete(context.Background(), next) })
	if _, err := f.redeem(back.Query().Get("code"), verifier); err == nil ||
		!strings.Contains(err.Error(), "invalid_grant") {
		t.Errorf("the code gets the response %v, not invalid_grant", err)
	}
}

func TestTooLongIDSignsNoUserIn(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	f.provide(p)
	for sub, code := range map[string]int{strings.Repeat("1", maxUpstreamID): http.StatusSeeOther,
		strings.Repeat("1", maxUpstreamID+1): http.StatusBadGateway} {
		p.set(func(p *openID) { p.sub = sub })
		browser := f.browser()
		if r := f.send(browser, http.MethodGet, f.throughProvider(p, browser, f.config(), oauth2.GenerateVerifier()), nil,
			nil); r.code != code {
			t.Errorf("an ID of %d bytes gets the response %d %s", len(sub), r.code, r.body)
		}
	}
}

func TestLongResponsesAndRepeatedParametersAreRefused(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	browser := f.browser()
	callback := f.throughProvider(p, browser, f.config(), oauth2.GenerateVerifier())
	for _, more := range []string{"&code=c-1", "&iss=" + url.QueryEscape(p.URL), "&error=access_denied&error=x",
		"&x=" + strings.Repeat("a", maxAnswer)} {
		if r := f.send(browser, http.MethodGet, callback+more, nil, nil); r.code != http.StatusBadRequest {
			t.Errorf("an answer with %.30s gets the response %d %s", more, r.code, r.header.Get("Location"))
		}
	}
	if r := f.send(browser, http.MethodGet, callback, nil, nil); r.code != http.StatusSeeOther {
		t.Errorf("the answer itself gets the response %d %s", r.code, r.body)
	}
	testkit.Update(t, f.Client, provider, func(p *v1.AuthProvider) { p.Spec.Disabled = true })
	if page := f.send(browser, http.MethodGet,
		f.config().AuthCodeURL("state", oauth2.S256ChallengeOption(oauth2.GenerateVerifier())), nil,
		nil); strings.Contains(page.body, login.PathProvider+provider.Name) {
		t.Error("the login page offers a provider that is switched off")
	}
}
