// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"golang.org/x/oauth2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/upstream"
)

// toy is a connector whose provider sends its answer by POST, as in SAML. It cannot refresh.
type toy struct{}

var _ connector.PostCallback = (*toy)(nil)

func (*toy) Check(context.Context) error { return nil }
func (*toy) StateField() string          { return "RelayState" }

func (*toy) Begin(_ context.Context, callback, state string) (address string, private []byte, err error) {
	return "https://toy.example/sso?" + url.Values{"acs": {callback}, "RelayState": {state}}.Encode(), []byte("asked"), nil
}

func (*toy) Finish(_ context.Context, _ string, private []byte, answer url.Values) (connector.User, error) {
	if string(private) != "asked" {
		return connector.User{}, errors.New("the answer belongs to no login")
	}
	return connector.User{ID: "1", Name: answer.Get("assertion"), Groups: []string{"ops"}}, nil
}

// provideToy adds the toy to the table of types, and an AuthProvider for it.
func (f *fixture) provideToy() *v1.AuthProvider {
	f.t.Helper()
	f.issuer.pages.Connectors.Types = append([]upstream.Type{{
		Name:      "Toy",
		Is:        func(p *v1.AuthProvider) bool { return p.Labels["toy"] != "" },
		Secret:    func(*v1.AuthProvider) *v1.ProviderSecret { return nil },
		Connector: (*toy)(nil),
		Build:     func(upstream.Parts) (connector.Connector, error) { return &toy{}, nil },
	}}, upstream.Types()...)
	provider := &v1.AuthProvider{
		ObjectMeta: metav1.ObjectMeta{Name: "toy-" + f.namespace, Labels: map[string]string{"toy": "true"}},
		Spec: v1.AuthProviderSpec{OIDC: &v1.OIDCProvider{ // the schema knows no toys
			URL: "https://toy.example", ClientID: "hub", ClientSecret: v1.ProviderSecret{Name: "none", Key: "none"},
		}},
	}
	f.Apply(f.t, provider)
	f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), provider) })
	return provider
}

func TestTypeWithPostCallbackSignsAUserIn(t *testing.T) {
	f := newFixture(t)
	provider, b, verifier := f.provideToy(), f.browser(), oauth2.GenerateVerifier()
	request := f.open(b, verifier)
	left := f.send(b, http.MethodGet,
		f.server.URL+login.PathProvider+provider.Name+"?"+url.Values{"request": {request}}.Encode(), nil, nil)
	at, err := url.Parse(left.header.Get("Location"))
	if err != nil || left.code != http.StatusSeeOther || at.Host != "toy.example" {
		t.Fatalf("the browser is sent with %d to %v (%v), want 303 and the address of the toy", left.code, at, err)
	}
	answer := url.Values{"RelayState": {at.Query().Get("RelayState")}, "assertion": {"alice"}}
	callback := f.server.URL + login.PathCallback + provider.Name

	// Browsers send no cookie with the form of another site.
	posted := f.send(f.browser(), http.MethodPost, callback, answer, http.Header{"Origin": {"https://toy.example"}})
	if posted.code != http.StatusOK || !strings.Contains(posted.body, `name="assertion" value="alice"`) {
		t.Fatalf("the answer of the toy gives %d %s, want a form that brings it again", posted.code, posted.body)
	}
	if got := f.send(f.browser(), http.MethodPost, callback, answer,
		http.Header{"Origin": {f.server.URL}}); got.code != http.StatusBadRequest {
		t.Errorf("the answer in another browser gives %d, want 400", got.code)
	}
	got := f.send(b, http.MethodPost, callback, answer, http.Header{"Origin": {f.server.URL}})
	back, err := url.Parse(got.header.Get("Location"))
	if err != nil || got.code != http.StatusSeeOther {
		t.Fatalf("the answer gives %d %s (%v), want 303", got.code, got.body, err)
	}
	tokens, err := f.redeem(back.Query().Get("code"), verifier)
	if err != nil {
		t.Fatalf("redeem the code: %v", err)
	}
	if id, err := f.identify(tokens.AccessToken); err != nil || id.User != provider.Name+":alice" {
		t.Errorf("the user is %q (%v), want %s:alice", id.User, err, provider.Name)
	}
}

func TestTypeWithoutPostCallbackRefusesAForm(t *testing.T) {
	f, p := newFixture(t), newOpenID(t)
	provider := f.provide(p)
	got := f.send(f.browser(), http.MethodPost, f.server.URL+login.PathCallback+provider.Name, url.Values{"state": {"x"}},
		nil)
	if got.code != http.StatusMethodNotAllowed || got.header.Get("Allow") != http.MethodGet {
		t.Errorf("a form at the callback of an OpenID provider gives %d, want 405 and Allow: GET", got.code)
	}
}
