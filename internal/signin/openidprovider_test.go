// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/oauth2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/test/testkit"
)

// program is a process of oidc-provider, which is certified by the OpenID Foundation. "npm ci" in test/openidprovider
// installs it.
type program struct {
	f        *fixture
	issuer   string
	client   *http.Client // trusts it; has neither cookies nor redirects
	in       io.Writer
	out      *bufio.Scanner
	provider *v1.AuthProvider
}

// startOpenIDProvider starts oidc-provider and adds an AuthProvider for it.
func startOpenIDProvider(f *fixture, env ...string) *program {
	t := f.t
	t.Helper()
	node, dir := nodeWith(t, "test/openidprovider", "oidc-provider")
	own := httptest.NewTLSServer(http.NotFoundHandler()) // for its certificate
	defer own.Close()
	certificate, key := filepath.Join(t.TempDir(), "tls.crt"), filepath.Join(t.TempDir(), "tls.key")
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate().Raw})
	raw, err := x509.MarshalPKCS8PrivateKey(own.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{certificate: bundle,
		key: pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})} {
		if err := os.WriteFile(name, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := "oidc-" + f.namespace
	env = append(append(os.Environ(), "KEY="+key, "CERTIFICATE="+certificate, "SECRET="+secretPassword,
		"REDIRECT="+f.server.URL+login.PathCallback+name), env...)
	p := &program{f: f, client: &http.Client{Transport: own.Client().Transport.(*http.Transport).Clone(),
		CheckRedirect: f.browser().CheckRedirect}}
	// On a busy machine, Node.js 20 sometimes hangs forever while it starts.
	for tries := 3; !p.start(node, dir, env); tries-- {
		if tries == 1 {
			t.Fatal("the provider does not say where it listens, three times in turn")
		}
	}
	f.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.namespace, Name: name,
		Labels: map[string]string{v1.LabelSecretKind: v1.SecretKindProvider}},
		Data: map[string][]byte{"secret": []byte(secretPassword)}})
	p.provider = &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.AuthProviderSpec{OIDC: &v1.OIDCProvider{
			URL: p.issuer, CABundle: string(bundle), ClientID: "drover", ClientSecret: v1.ProviderSecret{Name: name,
				Key: "secret"},
		}}}
	f.Apply(t, p.provider)
	t.Cleanup(func() { _ = f.Client.Delete(context.Background(), p.provider) })
	return p
}

// start starts the process, and reports whether it says within half a minute where it listens.
func (p *program) start(node, dir string, env []string) bool {
	t := p.f.t
	t.Helper()
	cmd := exec.CommandContext(t.Context(), node, "provider.mjs")
	cmd.Dir, cmd.Env, cmd.Stderr = dir, env, t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = in.Close(); _ = cmd.Wait() })
	p.in, p.out = in, bufio.NewScanner(out)
	late := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	return p.out.Scan() && json.Unmarshal(p.out.Bytes(), &p.issuer) == nil
}

func (p *program) read(into any) {
	p.f.t.Helper()
	if !p.out.Scan() {
		p.f.t.Fatalf("the provider has ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), into); err != nil {
		p.f.t.Fatalf("the provider writes %q: %v", p.out.Text(), err)
	}
}

// change changes something at the provider. For "asked", it returns the requests to the provider's token endpoint.
func (p *program) change(what, argument string) (asked []string) {
	p.f.t.Helper()
	line, err := json.Marshal(map[string]string{"what": what, "argument": argument})
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.f.t.Fatal(err)
	}
	p.read(&asked)
	return asked
}

var formAction = regexp.MustCompile(`<form [^>]*action="([^"]+)" method="post">\s*<input type="hidden" name="prompt" value="(login|consent)"`)

// pages follows the provider's pages like a browser with cookies, and returns the last address: the hub's callback, or
// "".
func (p *program) pages(address, user string) string {
	p.f.t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		p.f.t.Fatal(err)
	}
	browser := *p.client
	browser.Jar = jar
	at := address
	got := p.f.send(&browser, http.MethodGet, at, nil, nil)
	for range 16 {
		if to := got.header.Get("Location"); to != "" {
			base, err := url.Parse(at)
			if err != nil {
				p.f.t.Fatal(err)
			}
			next, err := base.Parse(to)
			if err != nil {
				p.f.t.Fatal(err)
			}
			if at = next.String(); !strings.HasPrefix(at, p.issuer+"/") {
				return at
			}
			got = p.f.send(&browser, http.MethodGet, at, nil, nil)
			continue
		}
		form := formAction.FindStringSubmatch(got.body)
		if form == nil {
			p.f.t.Logf("the provider answers %d %.300s", got.code, got.body)
			return ""
		}
		at = html.UnescapeString(form[1])
		got = p.f.send(&browser, http.MethodPost, at, url.Values{"prompt": {form[2]}, "login": {user}, "password": {"any"}},
			nil)
	}
	p.f.t.Fatal("the pages of the provider do not end")
	return ""
}

// leave opens the login page of the hub and follows its link to the provider.
func (p *program) leave(browser *http.Client, config *oauth2.Config, verifier string) string {
	f := p.f
	f.t.Helper()
	page := f.send(browser, http.MethodGet, config.AuthCodeURL("state", oauth2.S256ChallengeOption(verifier)), nil, nil)
	for _, link := range linkForm.FindAllStringSubmatch(page.body, -1) {
		if to := html.UnescapeString(link[1]); strings.HasPrefix(to, login.PathProvider+p.provider.Name+"?") {
			left := f.send(browser, http.MethodGet, f.server.URL+to, nil, nil)
			if left.code != http.StatusSeeOther || !strings.HasPrefix(left.header.Get("Location"), p.issuer+"/") {
				f.t.Fatalf("the link leads to %d %s %s, not to the provider", left.code, left.header.Get("Location"), left.body)
			}
			return left.header.Get("Location")
		}
	}
	f.t.Fatalf("the login page has no link to the provider: %d %s", page.code, page.body)
	return ""
}

// signIn signs a user in through all pages, and returns the user's tokens.
func (p *program) signIn(user string) *oauth2.Token {
	f := p.f
	f.t.Helper()
	config, verifier, browser := f.config(), oauth2.GenerateVerifier(), f.browser()
	config.Scopes = append(config.Scopes, "offline_access")
	done := f.send(browser, http.MethodGet, p.pages(p.leave(browser, config, verifier), user), nil, nil)
	back, err := url.Parse(done.header.Get("Location"))
	if err != nil || back.Query().Get("code") == "" {
		f.t.Fatalf("the callback answers %d %s, and no code; the provider says %v", done.code, done.body,
			p.change("asked", ""))
	}
	tokens, err := config.Exchange(context.WithValue(f.t.Context(), oauth2.HTTPClient, f.server.Client()),
		back.Query().Get("code"), oauth2.VerifierOption(verifier))
	if err != nil {
		f.t.Fatal(err)
	}
	return tokens
}

// refreshed returns the groups and the next tokens of a session, or none if the hub refuses.
func (p *program) refreshed(tokens *oauth2.Token) (groups []string, next *oauth2.Token, r response) {
	p.f.t.Helper()
	p.f.wait(5 * time.Minute)
	if r = p.f.again(tokens.RefreshToken); r.code != http.StatusOK {
		return nil, nil, r
	}
	next = &oauth2.Token{}
	if err := json.Unmarshal([]byte(r.body), next); err != nil {
		p.f.t.Fatal(err)
	}
	id, err := p.f.authenticated(next.AccessToken)
	if err != nil {
		p.f.t.Fatal(err)
	}
	return id.Groups, next, r
}

// TestUsersOfAThirdPartyOpenIDProviderSignIn covers the provider's own login and consent pages, code with PKCE,
// claims, and refresh tokens that the provider rotates.
func TestUsersOfAThirdPartyOpenIDProviderSignIn(t *testing.T) {
	for name, env := range map[string][]string{
		"claims at the userinfo endpoint, RS256, secret in the header": {
			"CLAIMS=userinfo", "ALGORITHM=RS256", "METHOD=client_secret_basic",
		},
		"claims in the ID token, ES256, secret in the form": {
			"CLAIMS=id_token", "ALGORITHM=ES256", "METHOD=client_secret_post",
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := startOpenIDProvider(newFixture(t), env...)
			tokens := p.signIn("alice")
			id, err := p.f.authenticated(tokens.AccessToken)
			ops := []string{p.provider.Name + ":ops"}
			if err != nil || id.User != p.provider.Name+":alice" || id.UID != "alice" || !slices.Equal(id.Groups, ops) {
				t.Fatalf("the user is %+v (%v), not alice of the provider with the group ops", id, err)
			}
			for range 3 { // each time with the refresh token that the provider has rotated to
				var groups []string
				var r response
				if groups, tokens, r = p.refreshed(tokens); !slices.Equal(groups, ops) {
					t.Fatalf("a refresh answers %d %s with the groups %v", r.code, r.body, groups)
				}
			}
			if asked := p.change("asked", ""); strings.Count(strings.Join(asked, "\n"), "refresh_token ok") != 3 {
				t.Errorf("of the provider was asked %q, not each refresh once", asked)
			}
			p.change("groups", `["others"]`)
			groups, tokens, r := p.refreshed(tokens)
			if r.code != http.StatusOK || len(groups) != 0 {
				t.Fatalf("once the provider has taken the group, a refresh answers %d %s with the groups %v", r.code, r.body,
					groups)
			}
			p.change("groups", `["ops"]`)
			if groups, _, _ = p.refreshed(tokens); !slices.Equal(groups, ops) {
				t.Errorf("once the provider has given the group back, the groups are %v", groups)
			}
		})
	}
}

// CVE-2023-22648, CVE-2023-22650: users keep rights in the hub that the provider has removed.
func TestSessionEndsWhenAThirdPartyOpenIDProviderRefusesTheUser(t *testing.T) {
	for name, what := range map[string][2]string{
		"the user is removed": {
			"remove", "alice"}, "the grant is revoked": {"revoke", ""}, "the user is renamed": {"rename", "bob"},
	} {
		t.Run(name, func(t *testing.T) {
			p := startOpenIDProvider(newFixture(t), "METHOD=client_secret_basic", "ALGORITHM=RS256")
			tokens := p.signIn("alice")
			p.change(what[0], what[1])
			if _, _, r := p.refreshed(tokens); r.code != http.StatusBadRequest || !strings.Contains(r.body, "invalid_grant") {
				t.Errorf("a refresh answers %d %s, not invalid_grant", r.code, r.body)
			}
			if id, err := p.f.authenticated(tokens.AccessToken); err == nil {
				t.Errorf("the former token still is that of %s", id.User)
			}
			if what[0] == "revoke" {
				p.signIn("alice") // once more with her consent
			}
		})
	}
}

func TestThirdPartyOpenIDProviderChecksPKCE(t *testing.T) {
	p := startOpenIDProvider(newFixture(t), "METHOD=client_secret_basic", "ALGORITHM=RS256")
	for name, tt := range map[string]struct {
		change func(url.Values)
		says   string // of the token endpoint, if it is asked
	}{
		"the challenge of another login": {
			func(q url.Values) { q.Set("code_challenge", oauth.Digest(oauth2.GenerateVerifier())) }, "invalid_grant",
		},
		"none": {
			func(q url.Values) { q.Del("code_challenge"); q.Del("code_challenge_method") }, "",
		},
		"plain":         {func(q url.Values) { q.Set("code_challenge_method", "plain") }, ""},
		"another nonce": {func(q url.Values) { q.Set("nonce", "another") }, "authorization_code ok"},
	} {
		t.Run(name, func(t *testing.T) {
			f := p.f
			defer func(parent testing.TB) { f.t = parent }(f.t)
			f.t = t
			p.change("asked", "")
			browser := f.browser()
			to, err := url.Parse(p.leave(browser, f.config(), oauth2.GenerateVerifier()))
			if err != nil {
				t.Fatal(err)
			}
			query := to.Query()
			if query.Get("code_challenge_method") != "S256" || len(query.Get("code_challenge")) != 43 ||
				query.Get("nonce") == "" {
				t.Fatalf("the hub asks with %v, without PKCE or nonce", query)
			}
			tt.change(query)
			to.RawQuery = query.Encode()
			r := f.send(browser, http.MethodGet, p.pages(to.String(), "alice"), nil, nil)
			if r.header.Get("Location") != "" || r.code < http.StatusBadRequest {
				t.Errorf("the hub answers %d %s", r.code, r.header.Get("Location"))
			}
			if asked := strings.Join(p.change("asked", ""), "\n"); (asked == "") != (tt.says == "") ||
				!strings.Contains(asked, tt.says) {
				t.Errorf("the token endpoint says %q, want %q", asked, tt.says)
			}
		})
	}
	p.signIn("alice")
}

// RFC 9207: an answer of one provider must not be mistaken for an answer of another provider that the browser was sent
// to.
func TestResponseOfOneOpenIDProviderIsRefusedForAnother(t *testing.T) {
	f := newFixture(t)
	honest := startOpenIDProvider(f, "METHOD=client_secret_basic", "ALGORITHM=RS256")
	lying := newOpenID(t) // its client has the same ID as the hub has at the honest one
	attacker := f.provide(lying)
	browser := f.browser()
	config, verifier := f.config(), oauth2.GenerateVerifier()
	callback := honest.pages(honest.leave(browser, config, verifier), "alice")
	if r := f.send(browser, http.MethodGet,
		strings.Replace(callback, login.PathCallback+honest.provider.Name, login.PathCallback+attacker.Name, 1), nil,
		nil); r.header.Get("Location") != "" || r.code != http.StatusBadRequest {
		t.Errorf("at the other's path the hub answers %d %s", r.code, r.header.Get("Location"))
	}
	answer, err := url.Parse(callback)
	if err != nil {
		t.Fatal(err)
	}
	query := answer.Query()
	for name, iss := range map[string]string{"the issuer of another": lying.URL, "none, though it names itself": ""} {
		if query.Set("iss", iss); iss == "" {
			query.Del("iss")
		}
		answer.RawQuery = query.Encode()
		if r := f.send(browser, http.MethodGet, answer.String(), nil, nil); r.header.Get("Location") != "" {
			t.Errorf("%s: the hub answers %d %s", name, r.code, r.header.Get("Location"))
		}
	}
	if asked := honest.change("asked", ""); len(asked) > 0 {
		t.Errorf("the code was sent to a provider: %q", asked)
	}
	if r := f.send(browser, http.MethodGet, callback, nil, nil); r.code != http.StatusSeeOther {
		t.Errorf("the honest answer gets the response %d %s", r.code, r.body)
	}
}

// nodeWith returns Node.js 20 and a folder in which "npm ci" has installed a package, or skips.
func nodeWith(t testing.TB, folder, module string) (node, dir string) {
	t.Helper()
	dir = testkit.Path(t, folder)
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("there is no node")
	}
	version, err := exec.CommandContext(t.Context(), node, "--version").Output()
	if major, _, _ := strings.Cut(strings.TrimPrefix(string(version), "v"), "."); err != nil || number(major) < 20 {
		t.Skipf("node is %s (%v), %s needs version 20", version, err, module)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", module)); err != nil {
		t.Skipf("%s is not installed: run npm ci in %s", module, folder)
	}
	return node, dir
}
