// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/signin/accesstoken"
	"github.com/drover-dev/drover/internal/signin/account"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/internal/signin/oauth"
	"github.com/drover-dev/drover/internal/signin/scripttoken"
	sessions "github.com/drover-dev/drover/internal/signin/session"
	"github.com/drover-dev/drover/internal/signin/token"
)

// held is a cache that copies the objects that it returns, as controller-runtime's cache does.
type held struct {
	client.Client
	users   map[string]*v1.User
	secrets map[string]*corev1.Secret
}

func (h held) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch o := into.(type) {
	case *v1.User:
		if user, ok := h.users[key.Name]; ok {
			user.DeepCopyInto(o)
			return nil
		}
	case *corev1.Secret:
		if secret, ok := h.secrets[key.Name]; ok {
			secret.DeepCopyInto(o)
			return nil
		}
	}
	return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

// BenchmarkAuthenticate reports the cost of authentication for a request: with one of 100,000 script tokens, whose
// memory it also reports, and with a JWT that was verified before or is seen for the first time.
func BenchmarkAuthenticate(b *testing.B) {
	const tokens = 100_000
	now := time.Now()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	key, err := keys.New(now)
	must(err)
	raw, err := keys.Encode(keys.Set{key})
	must(err)
	user := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: "alice", UID: "8f3f0d4e-33f7-4d36-9f3a-2f7a8c9f1b11"}}
	cache := held{users: map[string]*v1.User{"alice": user},
		secrets: map[string]*corev1.Secret{KeysSecret: {ObjectMeta: metav1.ObjectMeta{ResourceVersion: "1"},
			Data: map[string][]byte{KeyOfKeys: raw}}}}
	s := New(Options{Issuer: "https://hub.example.com", Client: cache, Live: cache, Namespace: "drover-system",
		Now: func() time.Time { return now }, Log: logr.Discard(), MaxTTL: maxTTLForTest, Audiences: audiencesForTest})
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var script, other string
	for range tokens {
		var made scripttoken.Token
		made, script, err = scripttoken.Generate(make([]byte, 32), now)
		must(err)
		secret := sessions.NewSecret(types.NamespacedName{Namespace: "drover-system", Name: scripttoken.Prefix + made.ID},
			account.Claims{User: user.Name, UID: user.UID}, now, now.Add(time.Hour))
		secret.Labels[v1.LabelSecretKind], secret.UID, secret.ResourceVersion = v1.SecretKindToken, user.UID, "123456789"
		secret.Data["hash"], secret.Data["description"], secret.Data["used"] = made.Hash(), []byte("the pipeline of web"), []byte(now.UTC().Format(time.RFC3339))
		sent, err := json.Marshal(secret)
		must(err)
		cached := &corev1.Secret{}
		must(json.Unmarshal(sent, cached)) // so that it shares no memory, as an object from the API server
		cache.secrets[cached.Name] = cached
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	session := sessions.NewSecret(types.NamespacedName{Namespace: "drover-system", Name: sessions.Prefix + "1"},
		account.Claims{User: user.Name, UID: user.UID}, now, now.Add(time.Hour))
	cache.secrets[session.Name] = session
	signed, err := token.Sign(key, token.Claims{Issuer: s.issuer, Subject: "local:alice",
		Audience: jwt.Audience{oauth.ClientID}, Session: "1", UID: string(user.UID)}, now)
	must(err)
	other = "token-" + script[6:80] + "AAAAAAAAAA"
	identify := s.Authenticate(func(*http.Request) (identity.Identity, error) { return identity.Identity{}, nil })
	for _, tt := range []struct {
		name, raw string
		new, good bool
	}{{"a token for scripts", script, false, true}, {"garbage", other, false, false}, {"a JWT that is known", signed,
		false, true}, {"a new JWT", signed, true, true}} {
		b.Run(tt.name, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, inMember, nil)
			r.Header.Set("Authorization", "Bearer "+tt.raw)
			var times []time.Duration
			for b.Loop() {
				if tt.new {
					s.accessTokens = accesstoken.New(s.issuer, s.keyring, s.Sessions, s.accounts, audiencesForTest.Member, s.Now)
				}
				began := time.Now()
				if _, err := identify(r); (err == nil) != tt.good {
					b.Fatal(err)
				}
				times = append(times, time.Since(began))
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2].Nanoseconds()), "p50-ns")
			b.ReportMetric(float64(times[len(times)*99/100].Nanoseconds()), "p99-ns")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/tokens, "B/token")
		})
	}
}
