// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/signin/keys"
)

const issuer, audience = "https://hub.example.com", "kubectl"

func forAudience(a string) time.Duration {
	if a == audience {
		return Lifetime
	}
	return 0
}

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func newKey(t testing.TB) keys.Key {
	t.Helper()
	k, err := keys.New(start)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func claims() Claims {
	return Claims{Issuer: issuer, Subject: "local:alice", Audience: jwt.Audience{audience}, Session: "s", UID: "u",
		Nonce:    "n",
		IssuedAt: jwt.NewNumericDate(start), Expiry: jwt.NewNumericDate(start.Add(Lifetime))}
}

// forge signs anything with any algorithm, key and header.
func forge(t testing.TB, algorithm jose.SignatureAlgorithm, key any, header map[jose.HeaderKey]any,
	content any) string {
	t.Helper()
	options := &jose.SignerOptions{ExtraHeaders: header}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, options)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := jwt.Signed(signer).Claims(content).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// CVE-2022-29165: claims of an unsigned token are trusted. CVE-2023-22482: a token for another audience is accepted.
func TestVerify(t *testing.T) {
	key, other := newKey(t), newKey(t)
	good, err := Sign(key, claims(), start)
	if err != nil {
		t.Fatal(err)
	}
	header := func(id, kind string) map[jose.HeaderKey]any {
		return map[jose.HeaderKey]any{"kid": id, jose.HeaderType: kind}
	}
	with := func(change func(*Claims)) string {
		c := claims()
		change(&c)
		return forge(t, jose.ES256, key.Private, header(key.ID, "JWT"), c)
	}
	parts := strings.Split(good, ".")
	public, err := key.Private.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	if got, id, err := Verify(good, keys.Set{other, key}, issuer, forAudience); err != nil ||
		got.Subject != "local:alice" || id != key.ID || got.Current(start) != nil {
		t.Fatalf("a good token is %+v by key %s, %v", got, id, err)
	}
	for name, tt := range map[string]struct{ raw, want string }{
		"nothing": {"", "malformed"},
		"text":    {"a.b.c", "malformed"},
		"cut":     {good[:len(good)-4], "does not verify"},
		"without a signature": {
			encode([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + parts[1] + ".", "malformed",
		},
		"an HMAC with the public key": {forge(t, jose.HS256, public, header(key.ID, "JWT"), claims()), "malformed"},
		"another key of the same name": {
			forge(t, jose.ES256, other.Private, header(key.ID, "JWT"), claims()), "does not verify",
		},
		"a key that the token brings": {
			forge(t, jose.ES256, other.Private,
				map[jose.HeaderKey]any{"jwk": jose.JSONWebKey{Key: other.Private.Public()}, jose.HeaderType: "JWT"},
				claims()), "not one of the issuer's keys",
		},
		"a key that the token names": {
			forge(t, jose.ES256, other.Private,
				map[jose.HeaderKey]any{"kid": other.ID, "jku": "https://evil.example", jose.HeaderType: "JWT"},
				claims()), "not one of the issuer's keys",
		},
		"no name of a key": {
			forge(t, jose.ES256, key.Private, map[jose.HeaderKey]any{jose.HeaderType: "JWT"}, claims()),
			"not one of the issuer's keys",
		},
		"another type": {
			forge(t, jose.ES256, key.Private, header(key.ID, "at+jwt"), claims()), "its type",
		},
		"other claims under the signature": {
			parts[0] + "." + encode([]byte(`{"sub":"local:root"}`)) + "." + parts[2], "does not verify",
		},
		"another issuer": {
			with(func(c *Claims) { c.Issuer = "https://evil.example" }), "another issuer",
		},
		"another audience": {
			with(func(c *Claims) { c.Audience = jwt.Audience{"cluster:a/b"} }), "another audience",
		},
		"a second audience": {
			with(func(c *Claims) { c.Audience = jwt.Audience{audience, "x"} }), "another audience",
		},
		"no audience": {with(func(c *Claims) { c.Audience = jwt.Audience{} }), "another audience"},
		"no subject":  {with(func(c *Claims) { c.Subject = "" }), "required"},
		"no session":  {with(func(c *Claims) { c.Session = "" }), "required"},
		"no UID":      {with(func(c *Claims) { c.UID = "" }), "required"},
		"no end":      {with(func(c *Claims) { c.Expiry = nil }), "required"},
		"a long life": {
			with(func(c *Claims) { c.Expiry = jwt.NewNumericDate(start.Add(Lifetime + time.Second)) }), "lives for longer",
		},
		"too long": {good + strings.Repeat("A", Max), "longer than"},
		"claims of another kind than expected": {
			forge(t, jose.ES256, key.Private, header(key.ID, "JWT"), map[string]any{"iss": 1}), "does not verify",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _, err := Verify(tt.raw, keys.Set{key}, issuer, forAudience); !errors.Is(err, ErrToken) ||
				!strings.Contains(err.Error(), tt.want) || got.Subject != "" {
				t.Errorf("Verify returned %+v and %v, want an error with %q", got, err, tt.want)
			}
		})
	}
	if _, _, err := Verify(good, keys.Set{other}, issuer, forAudience); err == nil {
		t.Error("a token verifies after its key was removed")
	}
	if _, _, err := Verify(good, keys.Set{key}, "", forAudience); err == nil {
		t.Error("a token verifies for no issuer")
	}
}

func TestTokenIsValidFromItsStartToItsEnd(t *testing.T) {
	for name, tt := range map[string]struct {
		at   time.Duration
		want bool
	}{
		"at its start": {
			0, true}, "a clock that is behind": {-skew, true}, "issued in the future": {-skew - time.Second, false},
		"just before its end": {Lifetime - time.Second, true}, "at its end": {Lifetime, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := claims().Current(start.Add(tt.at)); (err == nil) != tt.want {
				t.Errorf("it is valid: %v, want %t", err, tt.want)
			}
		})
	}
}

func TestIssuedBy(t *testing.T) {
	good, err := Sign(newKey(t), claims(), start)
	if err != nil {
		t.Fatal(err)
	}
	for raw, want := range map[string]bool{good: true, "": false, "a.b.c": false, "opaque": false,
		strings.Repeat("a", Max+1): false,
		`{"x":"` + strings.Repeat("a", Max) + "." + strings.Split(good, ".")[1] + `."}`:       true,
		"a." + base64.RawURLEncoding.EncodeToString([]byte(`{"iss":"https://other"}`)) + ".c": false} {
		if got := IssuedBy(raw, issuer); got != want {
			t.Errorf("IssuedBy of %.40q returned %t, want %t", raw, got, want)
		}
	}
}

func FuzzVerifyAnything(f *testing.F) {
	key := newKey(f)
	good, err := Sign(key, claims(), start)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add("e30.e30.")
	f.Fuzz(func(t *testing.T, raw string) {
		IssuedBy(raw, issuer)
		if c, _, err := Verify(raw, keys.Set{key}, issuer, forAudience); err == nil &&
			c.Subject != mustVerify(t, good, key).Subject {
			t.Errorf("%q is valid as %+v", raw, c)
		}
	})
}

func mustVerify(t *testing.T, raw string, key keys.Key) Claims {
	t.Helper()
	c, _, err := Verify(raw, keys.Set{key}, issuer, forAudience)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func BenchmarkVerify(b *testing.B) {
	key := newKey(b)
	good, err := Sign(key, claims(), start)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, _, err := Verify(good, keys.Set{key}, issuer, forAudience); err != nil {
			b.Fatal(err)
		}
	}
}

func TestTokenLifetimeIsBounded(t *testing.T) {
	key := newKey(t)
	for left, want := range map[time.Duration]time.Duration{time.Minute: time.Minute, Lifetime: Lifetime,
		24 * time.Hour: Lifetime} {
		c := claims()
		c.Expiry = jwt.NewNumericDate(start.Add(left))
		raw, err := Sign(key, c, start)
		if err != nil {
			t.Fatal(err)
		}
		if got := mustVerify(t, raw, key).Expiry.Time().Sub(start); got != want {
			t.Errorf("with %s left it lives for %s, want %s", left, got, want)
		}
	}
}
