// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

func uid(s string) types.UID { return types.UID(s) }

func TestNewTokensAreRandom(t *testing.T) {
	seen := map[string]bool{}
	for range 1000 {
		token := registration.NewToken()
		raw, err := base64.RawURLEncoding.DecodeString(token)
		if err != nil || len(raw) != 32 || seen[token] || !registration.ValidToken(token) {
			t.Fatalf("got a token of %d bytes, error %v, seen before %t, want a new token of 32 bytes", len(raw), err,
				seen[token])
		}
		seen[token] = true
	}
}

func TestTokenForm(t *testing.T) {
	for name, tc := range map[string]struct {
		token string
		valid bool
	}{
		"32 characters":                      {strings.Repeat("a", 32), true},
		"256 characters":                     {strings.Repeat("a", 256), true},
		"characters that URLs do not escape": {strings.Repeat("aZ09._~-", 4), true},
		"31 characters":                      {strings.Repeat("a", 31), false},
		"257 characters":                     {strings.Repeat("a", 257), false},
		"empty":                              {"", false},
		"a slash":                            {strings.Repeat("a", 32) + "/", false},
		"a percent sign":                     {strings.Repeat("a", 32) + "%2f", false},
		"a space":                            {strings.Repeat("a", 32) + " ", false},
		"a line break at the end":            {strings.Repeat("a", 32) + "\n", false},
		"YAML":                               {strings.Repeat("a", 32) + "\nkind: Pod", false},
		"a special character of shells":      {strings.Repeat("a", 32) + ";reboot", false},
		"letters beyond ASCII":               {strings.Repeat("ä", 32), false},
	} {
		t.Run(name, func(t *testing.T) {
			if registration.ValidToken(tc.token) != tc.valid {
				t.Errorf("valid %t, want %t", !tc.valid, tc.valid)
			}
		})
	}
}

func TestTokenIsNotPrinted(t *testing.T) {
	token := registration.Token{Value: "s3cr3t-s3cr3t-s3cr3t-s3cr3t-s3cr3t", Created: now}
	for _, format := range []string{"%v", "%+v", "%s"} {
		if text := fmt.Sprintf(format, token); strings.Contains(text, "s3cr3t") {
			t.Errorf("%s prints %s, want no token", format, text)
		}
	}
}

// Users can edit a registration Secret. If it is not as Drover wrote it, no agent can join with it.
func TestReadToken(t *testing.T) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod-eu", UID: "uid"}}
	token := registration.Token{Value: strings.Repeat("t", 40), Created: now}
	write := func(token registration.Token) *corev1.Secret {
		applied := registration.ApplySecret(cluster, token, registration.Content{})
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Annotations: applied.Annotations}, Data: applied.Data}
	}
	for name, tc := range map[string]struct {
		secret *corev1.Secret
		reason string
	}{
		"as it was written": {write(token), ""},
		"used":              {write(registration.Token{Value: token.Value, Created: now, Used: true}), v1.ReasonTokenUsed},
		"another value beside the old annotations": {func() *corev1.Secret {
			s := write(token)
			s.Data[registration.KeyToken] = []byte(strings.Repeat("x", 40))
			return s
		}(), v1.ReasonTokenExpired},
		"without annotations": {
			&corev1.Secret{Data: map[string][]byte{registration.KeyToken: []byte(token.Value)}}, v1.ReasonTokenExpired,
		},
		"with an invalid date": {func() *corev1.Secret {
			s := write(token)
			s.Annotations[v1.Group+"/token-created"] = "tomorrow"
			return s
		}(), v1.ReasonTokenExpired},
	} {
		t.Run(name, func(t *testing.T) {
			refusal := registration.ReadToken(tc.secret, time.Hour).Usable("team-a/prod-eu", now.Add(time.Minute))
			if (refusal == nil) != (tc.reason == "") || refusal != nil && refusal.Reason != tc.reason {
				t.Errorf("refusal %v, want %q", refusal, tc.reason)
			}
		})
	}
}

func TestIdentitySecretRoundTrip(t *testing.T) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "prod-eu", UID: "uid"}}
	want := registration.AgentIdentity{PublicKey: publicKey(testkit.Key(t)), ClusterUID: memberUID, TokenHash: "hash",
		OwnerUID: "uid", Joined: now}
	secret := &corev1.Secret{}
	registration.WriteIdentity(secret, cluster, want)
	got, err := registration.ReadIdentity(secret)
	if err != nil || !reflect.DeepEqual(*got, want) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
	if secret.Name != "prod-eu-agent" || len(secret.OwnerReferences) != 1 || secret.OwnerReferences[0].UID != "uid" {
		t.Errorf("secret %+v, want prod-eu-agent with the Cluster as its owner", secret.ObjectMeta)
	}
	secret.Data["public-key"] = []byte("AAAA")
	if _, err := registration.ReadIdentity(secret); err == nil {
		t.Error("a key of 3 bytes was accepted, want an error")
	}
}
