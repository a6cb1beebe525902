// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/keys"
)

func TestWorkloadProviderStatusReportsProblems(t *testing.T) {
	key, err := keys.New(start)
	if err != nil {
		t.Fatal(err)
	}
	var down atomic.Bool
	var own *httptest.Server
	own = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case down.Load():
			http.Error(w, "down", http.StatusBadGateway)
		case r.URL.Path == "/keys":
			_ = json.NewEncoder(w).Encode(keys.Set{key}.JWKS())
		default:
			_ = json.NewEncoder(w).Encode(map[string]string{"issuer": own.URL, "jwks_uri": own.URL + "/keys"})
		}
	}))
	t.Cleanup(own.Close)
	a := ask(t, "", v1.AuthProviderSpec{JWT: &v1.JWTProvider{
		Issuer:        v1.JWTIssuer{URL: own.URL, CertificateAuthority: bundle(own), Audiences: []string{"hub"}},
		ClaimMappings: v1.JWTClaimMappings{Username: v1.JWTClaimOrExpression{Claim: "sub"}},
	}})
	expect := func(reason string, status metav1.ConditionStatus, text string) {
		t.Helper()
		if c, _ := a.ready(); c.Reason != reason || c.Status != status || !strings.Contains(c.Message, text) || a.provider.Status.Type != "JWT" {
			t.Errorf("the condition is %+v of type %s, want %s with %q", c, a.provider.Status.Type, reason, text)
		}
	}
	expect(v1.ReasonReachable, metav1.ConditionTrue, "")
	a.change(func(p *v1.AuthProvider) {
		p.Spec.JWT.UserValidationRules = []v1.JWTUserRule{{Expression: "true"}, {Expression: "user.nme != ''"}}
	})
	expect(v1.ReasonInvalid, metav1.ConditionFalse, "userValidationRules[1]: compilation failed")
	a.change(func(p *v1.AuthProvider) { p.Spec.JWT.UserValidationRules = nil })
	down.Store(true)
	expect(v1.ReasonUnreachable, metav1.ConditionFalse, "502")
	down.Store(false)
	a.change(func(p *v1.AuthProvider) { p.Spec.JWT.Issuer.CertificateAuthority = "none" })
	expect(v1.ReasonInvalid, metav1.ConditionFalse, "PEM")
}

func TestSchemaRefusesAmbiguousWorkloadProviders(t *testing.T) {
	a := ask(t, "", v1.AuthProviderSpec{JWT: &v1.JWTProvider{
		Issuer:        v1.JWTIssuer{URL: "https://ci.example.com", Audiences: []string{"hub"}},
		ClaimMappings: v1.JWTClaimMappings{Username: v1.JWTClaimOrExpression{Claim: "sub"}},
	}})
	for name, change := range map[string]func(*v1.JWTProvider){
		"no audience":                 func(s *v1.JWTProvider) { s.Issuer.Audiences = nil },
		"no TLS":                      func(s *v1.JWTProvider) { s.Issuer.URL = "http://ci.example.com" },
		"no TLS at the discovery URL": func(s *v1.JWTProvider) { s.Issuer.DiscoveryURL = "http://ci.example.com/x" },
		"a user in the URL":           func(s *v1.JWTProvider) { s.Issuer.URL = "https://a:b@ci.example.com" },
		"claim and expression":        func(s *v1.JWTProvider) { s.ClaimMappings.Username.Expression = "claims.sub" },
		"neither of them":             func(s *v1.JWTProvider) { s.ClaimMappings.Username.Claim = "" },
		"a claim without a value":     func(s *v1.JWTProvider) { s.ClaimValidationRules = []v1.JWTClaimRule{{Claim: "ref"}} },
		"a value without a claim": func(s *v1.JWTProvider) {
			s.ClaimValidationRules = []v1.JWTClaimRule{{Expression: "true", RequiredValue: "x"}}
		},
		"tokens of more than a day":        func(s *v1.JWTProvider) { s.MaxTokenLifetime = &metav1.Duration{Duration: 25 * 3600e9} },
		"another policy than to match any": func(s *v1.JWTProvider) { s.Issuer.AudienceMatchPolicy = "MatchAll" },
	} {
		next := a.provider.DeepCopy()
		next.ResourceVersion, next.UID, next.Name = "", "", a.provider.Name+"-x"
		change(next.Spec.JWT)
		if err := a.Client.Create(t.Context(), next, client.DryRunAll); !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	other := a.provider.DeepCopy()
	other.Spec = v1.AuthProviderSpec{OIDC: &v1.OIDCProvider{URL: "https://a.example", ClientID: "a", ClientSecret: upstreamSecret}}
	if err := a.Client.Update(t.Context(), other, client.DryRunAll); !apierrors.IsInvalid(err) {
		t.Errorf("workloads that become users: %v", err)
	}
}
