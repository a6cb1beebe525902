// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/drover-dev/drover/internal/protocol"
)

var now = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

const audience = "drover-hub:uid"

func claims() protocol.ConnectClaims {
	return protocol.ConnectClaims{
		ID: "once", Audience: audience,
		Cluster:    protocol.ClusterRef{Namespace: "team-a", Name: "prod-eu", UID: "cluster-uid"},
		ClusterUID: "member-uid", Instance: "node-1/x", NodeAgent: true, IssuedAt: now,
	}
}

func key(t testing.TB) (ed25519.PublicKey, ed25519.PrivateKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return public, private
}

func sign(t testing.TB, private ed25519.PrivateKey, c protocol.ConnectClaims) string {
	t.Helper()
	token, err := protocol.SignConnectToken(private, c)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// signRaw signs claims that SignConnectToken would not write: the result of claims() after a change.
func signRaw(t testing.TB, alg jose.SignatureAlgorithm, key any, change func(map[string]any)) string {
	t.Helper()
	payload := map[string]any{
		"jti": "once", "aud": []string{audience}, "sub": "team-a/prod-eu",
		"iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
		"cluster":    map[string]string{"namespace": "team-a", "name": "prod-eu", "uid": "cluster-uid"},
		"clusterUID": "member-uid",
	}
	change(payload)
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(payload).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// unsigned returns a token with the algorithm "none" and the given signature.
func unsigned(t testing.TB, signature string) string {
	t.Helper()
	payload, err := json.Marshal(map[string]any{
		"jti": "once", "aud": audience, "sub": "team-a/prod-eu", "iat": now.Unix(), "exp": now.Add(time.Minute).Unix(),
	})
	if err != nil {
		t.Fatal(err)
	}
	part := base64.RawURLEncoding.EncodeToString
	return part([]byte(`{"alg":"none"}`)) + "." + part(payload) + "." + signature
}

func TestConnectTokenRoundTrip(t *testing.T) {
	public, private := key(t)
	token := sign(t, private, claims())
	got, err := protocol.VerifyConnectToken(token, public, audience, now)
	if err != nil {
		t.Fatal(err)
	}
	if !got.IssuedAt.Equal(now) {
		t.Errorf("got the issue time %s, want %s", got.IssuedAt, now)
	}
	got.IssuedAt = now
	if got != claims() {
		t.Errorf("got claims %+v, want %+v", got, claims())
	}
	if ref, err := protocol.PeekConnectToken(token); err != nil || ref != claims().Cluster {
		t.Errorf("peek returned %+v, %v, want %+v", ref, err, claims().Cluster)
	}
}

func TestConnectTokenOverTime(t *testing.T) {
	public, private := key(t)
	token := sign(t, private, claims())
	for name, tc := range map[string]struct {
		at   time.Duration
		good bool
	}{
		"a new token is valid":                         {0, true},
		"a hub whose clock is 30 s behind accepts it":  {-protocol.ClockSkew, true},
		"a hub whose clock is further behind does not": {-protocol.ClockSkew - time.Second, false},
		"it is valid for its 60 s and the skew":        {protocol.ConnectTokenTTL + protocol.ClockSkew, true},
		"it is invalid a second later":                 {protocol.ConnectTokenTTL + protocol.ClockSkew + time.Second, false},
		"a token of yesterday is invalid":              {24 * time.Hour, false},
		"a token from the future is invalid today":     {-24 * time.Hour, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := protocol.VerifyConnectToken(token, public, audience, now.Add(tc.at))
			if (err == nil) != tc.good {
				t.Errorf("verify returned %v, want a valid token: %t", err, tc.good)
			}
			if err != nil && (!errors.Is(err, protocol.ErrConnectToken) || errors.Is(err, protocol.ErrSignature)) {
				t.Errorf("got error %v, want ErrConnectToken", err)
			}
		})
	}
}

func TestConnectTokensThatAreRefused(t *testing.T) {
	public, private := key(t)
	_, foreign := key(t)
	eddsa := func(change func(map[string]any)) string { return signRaw(t, jose.EdDSA, private, change) }
	good := sign(t, private, claims())
	for name, tc := range map[string]struct {
		token string
		err   error
	}{
		"signed with another key": {sign(t, foreign, claims()), protocol.ErrSignature},
		"another payload": {
			exchange(good, eddsa(func(c map[string]any) { c["jti"] = "twice" })), protocol.ErrSignature,
		},
		"a truncated signature": {good[:len(good)-4], protocol.ErrSignature},
		"another audience": {
			eddsa(func(c map[string]any) { c["aud"] = "drover-hub:other" }), protocol.ErrConnectToken,
		},
		"no audience": {
			eddsa(func(c map[string]any) { delete(c, "aud") }), protocol.ErrConnectToken,
		},
		"no id": {
			eddsa(func(c map[string]any) { delete(c, "jti") }), protocol.ErrConnectToken,
		},
		"an id too long to remember": {
			eddsa(func(c map[string]any) { c["jti"] = strings.Repeat("x", 129) }), protocol.ErrConnectToken,
		},
		"an instance too long to remember": {
			eddsa(func(c map[string]any) { c["instance"] = strings.Repeat("x", 129) }), protocol.ErrConnectToken,
		},
		"no issue time": {
			eddsa(func(c map[string]any) { delete(c, "iat") }), protocol.ErrConnectToken,
		},
		"no expiry": {
			eddsa(func(c map[string]any) { delete(c, "exp") }), protocol.ErrConnectToken,
		},
		"valid for longer than 60 s": {
			eddsa(func(c map[string]any) { c["exp"] = now.Add(61 * time.Second).Unix() }), protocol.ErrConnectToken,
		},
		"not valid yet": {
			eddsa(func(c map[string]any) { c["nbf"] = now.Add(time.Hour).Unix() }), protocol.ErrConnectToken,
		},
		"an expiry beyond any clock": {
			eddsa(func(c map[string]any) { c["exp"] = 9e18 }), protocol.ErrConnectToken,
		},
		"a subject that is another cluster": {
			eddsa(func(c map[string]any) { c["sub"] = "team-b/prod-eu" }), protocol.ErrConnectToken,
		},
		"claims of other types": {
			eddsa(func(c map[string]any) { c["cluster"] = []int{1} }), protocol.ErrConnectToken,
		},
		"HS256 with the public key as secret": {
			signRaw(t, jose.HS256, []byte(public), func(map[string]any) {}), protocol.ErrConnectToken,
		},
		"alg none without a signature":          {unsigned(t, ""), protocol.ErrConnectToken},
		"alg none with a signature":             {unsigned(t, strings.Repeat("A", 86)), protocol.ErrConnectToken},
		"garbage":                               {"garbage", protocol.ErrConnectToken},
		"two dots":                              {"..", protocol.ErrConnectToken},
		"empty":                                 {"", protocol.ErrConnectToken},
		"longer than a token may be":            {good + strings.Repeat("A", 4<<10), protocol.ErrConnectToken},
		"in the JSON serialization of its kind": {`{"payload":"","signatures":[]}`, protocol.ErrConnectToken},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := protocol.VerifyConnectToken(tc.token, public, audience, now)
			if !errors.Is(err, tc.err) {
				t.Fatalf("verify returned %v, want %v", err, tc.err)
			}
			if errors.Is(err, protocol.ErrSignature) && !errors.Is(tc.err, protocol.ErrSignature) {
				t.Error("verify used the key, want an error before that")
			}
			if len(tc.token) > 10 && strings.Contains(err.Error(), tc.token) {
				t.Error("the error contains the token")
			}
		})
	}
}

// exchange puts the payload of one token between the header and the signature of another.
func exchange(token, payload string) string {
	parts, others := strings.Split(token, "."), strings.Split(payload, ".")
	return parts[0] + "." + others[1] + "." + parts[2]
}

func FuzzPeekConnectToken(f *testing.F) {
	public, private := key(f)
	f.Add(sign(f, private, claims()))
	f.Add(unsigned(f, ""))
	f.Add("a.b.c")
	f.Add(strings.Repeat(".", 5000))
	f.Fuzz(func(t *testing.T, token string) {
		ref, err := protocol.PeekConnectToken(token)
		if err != nil && (!errors.Is(err, protocol.ErrConnectToken) || ref != protocol.ClusterRef{}) {
			t.Errorf("peek returned %+v, %v, want ErrConnectToken and no Cluster", ref, err)
		}
		verified, err := protocol.VerifyConnectToken(token, public, audience, now)
		if err == nil && verified.Cluster != ref {
			t.Errorf("peek returned %+v and verify %+v, want the same", ref, verified.Cluster)
		}
	})
}

// A hub that does not know its identity yet accepts no tokens, not even a token with an empty audience.
func TestHubWithoutAnIdentityAcceptsNoToken(t *testing.T) {
	public, private := key(t)
	for _, named := range []string{"", audience} {
		c := claims()
		c.Audience = named
		if _, err := protocol.VerifyConnectToken(sign(t, private, c), public, "", now); err == nil {
			t.Errorf("a token for %q was accepted, want an error", named)
		}
	}
}
