// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Anyone can send tokens that claim to be from a provider. A spec is therefore evaluated once, whether it is valid or
// not.
func TestSpecOfAProviderIsReadOnceUntilItChanges(t *testing.T) {
	p := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "ci", UID: "1", Generation: 1},
		Spec: v1.AuthProviderSpec{JWT: &v1.JWTProvider{
			Issuer:        v1.JWTIssuer{URL: "https://ci.example.com", Audiences: []string{"hub"}},
			ClaimMappings: v1.JWTClaimMappings{Username: v1.JWTClaimOrExpression{Expression: "claims."}},
		}}}
	c := &Connectors{}
	_, first := c.Get(t.Context(), p)
	_, second := c.Get(t.Context(), p)
	if !errors.Is(first, ErrInvalid) || first != second { //nolint:errorlint // whether it is the very same
		t.Errorf("%v, then %v; want one error, made once", first, second)
	}
	p.Spec.JWT.ClaimMappings.Username.Expression, p.Generation = "claims.sub", 2
	good, err := c.Get(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.Get(t.Context(), p); err != nil || again != good {
		t.Errorf("another connector (%v)", err)
	}
	p.Spec.JWT.ClaimMappings.Username.Expression, p.UID = "claims.", "2"
	if made, err := c.Get(t.Context(), p); !errors.Is(err, ErrInvalid) || made != nil {
		t.Errorf("%v, %v; want that the connector of before is not used", made, err)
	}
	c.Forget(p.Name)
	if _, third := c.Get(t.Context(), p); !errors.Is(third, ErrInvalid) {
		t.Error(third)
	}
}

func TestUnknownTypeIsAnErrorThatListsTheKnownTypes(t *testing.T) {
	p := &v1.AuthProvider{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
	made, err := (&Connectors{}).Get(t.Context(), p)
	if !errors.Is(err, ErrInvalid) || made != nil || !strings.Contains(err.Error(), "OIDC, LDAP, GitHub, JWT") {
		t.Errorf("a provider of an unknown type gives %v, %v; want ErrInvalid with the known types", made, err)
	}
}
