// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/oauth2"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/grant"
	"github.com/drover-dev/drover/internal/signin/login"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
	"github.com/drover-dev/drover/test/testkit"
)

// ci is an issuer of tokens for workloads.
type ci struct {
	*httptest.Server
	t        *testing.T
	key      *ecdsa.PrivateKey
	asks     atomic.Int32
	audience string
}

func newCI(t *testing.T) *ci {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &ci{t: t, key: key, audience: "hub-of-" + strings.ToLower(t.Name())}
	c.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.asks.Add(1)
		var answer any = map[string]string{"issuer": c.URL, "jwks_uri": c.URL + "/keys"}
		if r.URL.Path == "/keys" {
			answer = jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "1"}}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	}))
	t.Cleanup(c.Close)
	return c
}

// token returns the token of a pipeline, with changes.
func (c *ci) token(now time.Time, change func(map[string]any)) string {
	c.t.Helper()
	claims := map[string]any{"iss": c.URL, "sub": "project:1", "aud": []string{c.audience}, "iat": now.Unix(),
		"exp": now.Add(10 * time.Minute).Unix(), "jti": "job-1", "project": "web", "groups": []string{"ops", "unbound"}}
	if change != nil {
		change(claims)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: c.key, KeyID: "1"}},
		nil)
	if err != nil {
		c.t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		c.t.Fatal(err)
	}
	return raw
}

// provideWorkloads creates an AuthProvider for an issuer.
func (f *fixture) provideWorkloads(name string, c *ci) *v1.AuthProvider {
	f.t.Helper()
	p := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + f.namespace},
		Spec: v1.AuthProviderSpec{JWT: &v1.JWTProvider{
			Issuer: v1.JWTIssuer{URL: c.URL,
				CertificateAuthority: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})),
				Audiences:            []string{c.audience}},
			ClaimMappings: v1.JWTClaimMappings{
				Username: v1.JWTClaimOrExpression{Claim: "project"}, Groups: &v1.JWTClaimOrExpression{Claim: "groups"},
			},
		}}}
	f.Apply(f.t, p)
	f.t.Cleanup(func() { _ = f.Client.Delete(context.Background(), p) })
	return p
}

// asWorkload sends a token to the proxy's authentication. It fails the test if the token reaches the TokenReview.
func (f *fixture) asWorkload(raw string) (identity.Identity, error) {
	f.t.Helper()
	return identifiedAt(f.t, f.issuer, inMember, raw)
}

func TestWorkloadIsTheUserOfItsToken(t *testing.T) {
	f, c := newFixture(t), newCI(t)
	p := f.provideWorkloads("ci", c)
	before := f.objects()
	raw := c.token(f.now(), nil)
	for range 3 {
		id, err := f.asWorkload(raw)
		if err != nil {
			t.Fatal(err)
		}
		if id.User != p.Name+":web" || id.Hub.Username != id.User || id.UID != "project:1" ||
			!slices.Equal(id.Groups, []string{p.Name + ":ops"}) || fmt.Sprint(id.Hub.Extra[credentialID]) != "[JTI=job-1]" {
			t.Errorf("the user is %+v, want web of the provider with the one group that bindings name", id)
		}
	}
	if n := f.objects(); n != before || c.asks.Load() != 2 {
		t.Errorf("three requests left %d objects, and asked the issuer %d times, want twice", n-before, c.asks.Load())
	}
	for name, change := range map[string]func(map[string]any){
		"a name with a colon (system:)": func(m map[string]any) { m["project"] = "system:admin" },
		"a name in capitals":            func(m map[string]any) { m["project"] = "Web" },
		"a name of another script":      func(m map[string]any) { m["project"] = "wеb" },
		"a name with a slash":           func(m map[string]any) { m["project"] = "team/web" },
		"a token that lives too long":   func(m map[string]any) { m["exp"] = f.now().Add(2 * time.Hour).Unix() },
	} {
		if id, err := f.asWorkload(c.token(f.now(), change)); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: %+v, %v", name, id, err)
		}
	}
	id, err := f.asWorkload(c.token(f.now(),
		func(m map[string]any) { m["groups"] = []string{"local:admins", "hub:ops", "system:masters", ""} }))
	if err != nil || len(id.Groups) != 0 || len(id.Hub.Groups) != 1 {
		t.Errorf("groups of others are %+v (%v)", id, err)
	}
	for name, path := range map[string]string{"makes tokens for scripts": scripttoken.Path,
		"is asked to sign in": login.PathProvider + p.Name} {
		r := f.send(f.browser(), http.MethodGet, f.server.URL+path, nil, http.Header{"Authorization": {"Bearer " + raw}})
		if r.code/100 != 4 {
			t.Errorf("a workload %s: %d %s", name, r.code, r.body)
		}
	}
	if r := f.send(f.server.Client(), http.MethodPost, f.server.URL+grant.PathToken, exchangeFields(raw, "team/prod"),
		nil); r.code != http.StatusBadRequest {
		t.Errorf("the token is exchanged: %d %s", r.code, r.body)
	}
	shown := f.send(f.browser(), http.MethodGet,
		f.config().AuthCodeURL("the-state", oauth2.S256ChallengeOption(oauth2.GenerateVerifier())), nil, nil)
	if shown.code != http.StatusOK || strings.Contains(shown.body, p.Name) {
		t.Errorf("the login page is %d %s, want one without the provider %s", shown.code, shown.body, p.Name)
	}
}

func TestTokenOfAnotherIssuerOrAudienceIsLeftToTheHub(t *testing.T) {
	f, c := newFixture(t), newCI(t)
	f.provideWorkloads("ci", c)
	for name, change := range map[string]func(map[string]any){
		"another audience, as of the hub's own ServiceAccounts with an issuer of the same name": func(m map[string]any) { m["aud"] = []string{c.URL} },
		"another issuer": func(m map[string]any) { m["iss"] = "https://other.example" },
	} {
		if id, err := f.identifyAt(inMember, c.token(f.now(), change)); err != nil || id.User != "other" {
			t.Errorf("%s: %+v, %v; want it to go on to the TokenReview", name, id, err)
		}
	}
	f.provideWorkloads("second", c)
	if id, err := f.asWorkload(c.token(f.now(), nil)); !apierrors.IsUnauthorized(err) ||
		!strings.Contains(err.Error(), "both accept tokens") {
		t.Errorf("a token that two providers accept: %+v, %v, want the conflict to be named", id, err)
	}
}

// A token whose audience is one member is valid for that member only, as are tokens of the hub's ServiceAccounts. It
// must not be accepted by another cluster or by the hub.
func TestWorkloadTokenForOneMemberIsValidForThatMemberOnly(t *testing.T) {
	const hub, prod = "https://hub.example.com", "https://hub.example.com/k8s/clusters/team/prod"
	f, c := newFixture(t), newCI(t)
	p := f.provideWorkloads("ci", c)
	for name, tt := range map[string]struct {
		audiences []string
		narrow    bool
	}{
		"a service":               {[]string{c.audience}, false},
		"the hub and a service":   {[]string{hub, c.audience}, false},
		"a member":                {[]string{prod}, true},
		"a member and a service":  {[]string{c.audience, prod + "/"}, true},
		"a member, the hub's too": {[]string{prod, hub}, false},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Update(t, f.Client, p, func(p *v1.AuthProvider) { p.Spec.JWT.Issuer.Audiences = tt.audiences[:1] })
			raw := c.token(f.now(), func(m map[string]any) { m["aud"] = tt.audiences })
			for range 2 { // verified, and known
				for path, good := range map[string]bool{inMember: true, "/k8s/clusters/team/other/api": !tt.narrow,
					"/k8s/local/api": !tt.narrow, "/v1/whoami": !tt.narrow, "/v1/clusters": !tt.narrow} {
					id, err := identifiedAt(t, f.issuer, path, raw)
					if good && (err != nil || id.User != p.Name+":web") || !good && (!apierrors.IsForbidden(err) || id.User != "") {
						t.Errorf("%s: %+v (%v), want it accepted: %t", path, id, err, good)
					}
				}
			}
		})
	}
}

// CVE-2023-22650: a disabled user or provider keeps its access.
func TestWorkloadIsRefusedAtOnce(t *testing.T) {
	for name, tt := range map[string]struct {
		end   func(f *fixture, p *v1.AuthProvider)
		other bool // the token is then passed on to the hub
	}{
		"provider disabled": {func(f *fixture, p *v1.AuthProvider) {
			testkit.Update(f.t, f.Client, p, func(p *v1.AuthProvider) { p.Spec.Disabled = true })
		}, false},
		"principal switched off": {func(f *fixture, p *v1.AuthProvider) {
			f.issuer.accounts.Disabled = func(_ context.Context, principal string) (bool,
				error) {
				return principal == p.Name+":web", nil
			}
		}, false},
		"a rule added": {func(f *fixture, p *v1.AuthProvider) {
			testkit.Update(f.t, f.Client, p, func(p *v1.AuthProvider) {
				p.Spec.JWT.ClaimValidationRules = []v1.JWTClaimRule{{Expression: "claims.project != 'web'", Message: "not web"}}
			})
		}, false},
		"a rule that cannot be compiled": {func(f *fixture, p *v1.AuthProvider) {
			testkit.Update(f.t, f.Client, p,
				func(p *v1.AuthProvider) { p.Spec.JWT.ClaimValidationRules = []v1.JWTClaimRule{{Expression: "claims."}} })
		}, false},
		"expired": {func(f *fixture, _ *v1.AuthProvider) { f.wait(10 * time.Minute) }, false},
		"provider deleted": {func(f *fixture, p *v1.AuthProvider) {
			if err := f.Client.Delete(f.t.Context(), p); err != nil {
				f.t.Fatal(err)
			}
		}, false},
		"another audience": {func(f *fixture, p *v1.AuthProvider) {
			testkit.Update(f.t, f.Client, p, func(p *v1.AuthProvider) { p.Spec.JWT.Issuer.Audiences = []string{"another"} })
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f, c := newFixture(t), newCI(t)
			p := f.provideWorkloads("ci", c)
			raw := c.token(f.now(), nil)
			id, err := f.asWorkload(raw)
			if err != nil {
				t.Fatal(err)
			}
			tt.end(f, p)
			if tt.other {
				if id, err := f.identifyAt(inMember, raw); err != nil || id.User != "other" {
					t.Errorf("the token is of %s (%v)", id.User, err)
				}
				return
			}
			if id, err := f.asWorkload(raw); err == nil || id.User != "" {
				t.Errorf("the token is still of %s", id.User)
			}
			switch name {
			case "provider disabled", "principal switched off", "provider deleted": // open requests end, too
				if err := f.issuer.accounts.Admit(t.Context(), id); !apierrors.IsUnauthorized(err) {
					t.Errorf("what is open goes on: %v", err)
				}
			}
		})
	}
}

func TestOpenRequestsOfAWorkloadEndAnHourAfterItsToken(t *testing.T) {
	f, c := newFixture(t), newCI(t)
	f.provideWorkloads("ci", c)
	raw := c.token(f.now(), nil)
	f.wait(11 * time.Minute)
	if _, err := f.asWorkload(raw); !apierrors.IsUnauthorized(err) || errors.Is(err, identity.ErrEnded) {
		t.Errorf("a token that has just expired: %v, want a refusal that ends nothing", err)
	}
	f.wait(time.Hour)
	if _, err := f.asWorkload(raw); !errors.Is(err, identity.ErrEnded) {
		t.Errorf("an hour later: %v, which ends nothing", err)
	}
}

// A real API server of another cluster issues the tokens of ServiceAccounts.
func TestServiceAccountOfAnotherClusterIsAWorkload(t *testing.T) {
	f, other := newFixture(t), testkit.StartMember(t)
	var document struct{ Issuer string }
	clients, err := kubernetes.NewForConfig(other.Config)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := clients.RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(t.Context())
	if err != nil || json.Unmarshal(raw, &document) != nil {
		t.Fatal(string(raw), err)
	}
	other.Apply(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "issuer-discovery"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName,
			Kind: "ClusterRole", Name: "system:service-account-issuer-discovery"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "Group", Name: "system:unauthenticated"}},
	})
	other.Apply(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "deployer"}})
	account := &corev1.ServiceAccount{}
	if err := other.Client.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "deployer"},
		account); err != nil {
		t.Fatal(err)
	}
	server := "https://" + strings.TrimSuffix(strings.TrimPrefix(other.Config.Host, "https://"), "/")
	if err := rest.LoadTLSFiles(other.Config); err != nil {
		t.Fatal(err)
	}
	// Here, the certificate of the API server is not valid for the address at which it publishes its keys. Another server
	// publishes the document, as operators do.
	discovery := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(map[string]string{"issuer": document.Issuer, "jwks_uri": server + "/openid/v1/jwks"})
	}))
	t.Cleanup(discovery.Close)
	authorities := string(other.Config.CAData) + "\n" + string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE",
		Bytes: discovery.Certificate().Raw}))
	audience := "hub-of-" + f.namespace
	p := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "sa-" + f.namespace},
		Spec: v1.AuthProviderSpec{JWT: &v1.JWTProvider{
			Issuer: v1.JWTIssuer{URL: document.Issuer, DiscoveryURL: discovery.URL + "/document",
				CertificateAuthority: authorities, Audiences: []string{audience}},
			ClaimMappings: v1.JWTClaimMappings{
				Username: v1.JWTClaimOrExpression{Expression: "claims['kubernetes.io'].serviceaccount.name + '@' + claims['kubernetes.io'].namespace"},
				UID:      &v1.JWTClaimOrExpression{Expression: "claims['kubernetes.io'].serviceaccount.uid"},
				Groups:   &v1.JWTClaimOrExpression{Expression: "['ops']"},
			},
		}}}
	f.Apply(t, p)
	t.Cleanup(func() { _ = f.Client.Delete(context.Background(), p) })
	f.follow()
	request := func(audience string) string {
		made, err := clients.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "deployer",
			&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}},
			metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return made.Status.Token
	}
	made := request(audience)
	var id identity.Identity
	// until the API server of the other cluster has the binding
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		id, err = f.asWorkload(made)
		if err != nil {
			f.wait(10 * time.Second)
		}
		return err
	})
	if id.User != p.Name+":deployer@default" || id.UID != string(account.UID) ||
		!slices.Equal(id.Groups, []string{p.Name + ":ops"}) {
		t.Errorf("the user is %+v", id)
	}
	if id, err := f.identifyAt(inMember, request("https://elsewhere.example")); err != nil || id.User != "other" {
		t.Errorf("a token for another service is of %+v (%v)", id, err)
	}
}
