// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// tokens is an API server that reviews tokens.
type tokens struct {
	authenticationv1client.TokenReviewInterface
	mu    sync.Mutex // guards the following fields
	users map[string]authenticationv1.UserInfo
	down  error
	asked int

	hold chan struct{} // answers wait until it is closed; nil means no wait
}

func (k *tokens) Create(
	ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	if k.hold != nil {
		select {
		case <-k.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asked++
	user, known := k.users[review.Spec.Token]
	status := authenticationv1.TokenReviewStatus{Authenticated: known, User: user}
	return &authenticationv1.TokenReview{Status: status}, k.down
}

func (k *tokens) set(down error, users map[string]authenticationv1.UserInfo) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.down, k.users = down, users
}

func (k *tokens) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asked
}

func bearing(token string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

var alice = map[string]authenticationv1.UserInfo{"t-alice": {Username: "alice", Groups: []string{"dev"}}}

func TestAuthenticate(t *testing.T) {
	t.Run("a token that the hub accepts yields its user, and any other token 401", func(t *testing.T) {
		a := NewAuthenticator(&tokens{users: alice}, Audiences{})
		id, err := a.Authenticate(bearing("t-alice"))
		if err != nil || id.User != "hub:alice" || !id.Valid() {
			t.Errorf("got %+v, %v, want hub:alice", id, err)
		}
		id, err = a.Authenticate(bearing("t-mallory"))
		if !apierrors.IsUnauthorized(err) || id.Valid() {
			t.Errorf("got %+v, %v, want 401", id, err)
		}
		if strings.Contains(err.Error(), "mallory") {
			t.Errorf("the error is %v, want it without the token", err)
		}
	})
	t.Run("a user is remembered for 10 s and a rejection for 2 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &tokens{users: alice}
			a := NewAuthenticator(hub, Audiences{})
			expect := func(token string, known bool, asked int) {
				t.Helper()
				_, err := a.Authenticate(bearing(token))
				if known != (err == nil) || hub.count() != asked {
					t.Errorf("for %s: got %v after %d reviews, want it accepted %v after %d", token, err, hub.count(), known, asked)
				}
			}
			expect("t-alice", true, 1)
			expect("t-bob", false, 2)
			hub.set(nil, map[string]authenticationv1.UserInfo{"t-bob": {Username: "bob"}})
			time.Sleep(1900 * time.Millisecond) // synctest's clock
			expect("t-alice", true, 2)
			expect("t-bob", false, 2)
			time.Sleep(200 * time.Millisecond)
			expect("t-bob", true, 3)
			time.Sleep(8 * time.Second)
			expect("t-alice", false, 4)
		})
	})
	t.Run("a burst with one token is one review", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &tokens{users: alice, hold: make(chan struct{})}
			a := NewAuthenticator(hub, Audiences{})
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if id, err := a.Authenticate(bearing("t-alice")); err != nil || id.User != "hub:alice" {
						t.Errorf("got %+v, %v, want hub:alice", id, err)
					}
				})
			}
			synctest.Wait()
			close(hub.hold)
			all.Wait()
			if hub.count() != 1 {
				t.Errorf("got %d reviews, want 1", hub.count())
			}
		})
	})
	t.Run("an API server that is down yields 503, which is not remembered", func(t *testing.T) {
		hub := &tokens{users: alice, down: errors.New("connection refused")}
		a := NewAuthenticator(hub, Audiences{})
		id, err := a.Authenticate(bearing("t-alice"))
		if !apierrors.IsServiceUnavailable(err) || id.Valid() {
			t.Fatalf("got %+v, %v, want 503", id, err)
		}
		hub.set(nil, alice)
		if _, err := a.Authenticate(bearing("t-alice")); err != nil {
			t.Errorf("after the API server is back: got %v, want no error", err)
		}
	})
	t.Run("an API server that hangs yields 503 after ten seconds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := NewAuthenticator(&tokens{users: alice, hold: make(chan struct{})}, Audiences{})
			start := time.Now()
			_, err := a.Authenticate(bearing("t-alice"))
			if !apierrors.IsServiceUnavailable(err) || time.Since(start) != 10*time.Second {
				t.Errorf("got %v after %s, want 503 after 10 s", err, time.Since(start))
			}
		})
	})
	t.Run("a caller that leaves does not affect others that wait for the same result", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &tokens{users: alice, hold: make(chan struct{})}
			a := NewAuthenticator(hub, Audiences{})
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				if _, err := a.Authenticate(bearing("t-alice").WithContext(ctx)); !errors.Is(err, context.Canceled) {
					t.Errorf("the caller that left: got %v, want %v", err, context.Canceled)
				}
			})
			synctest.Wait()
			all.Go(func() {
				if _, err := a.Authenticate(bearing("t-alice")); err != nil {
					t.Errorf("the caller that stayed: got %v, want no error", err)
				}
			})
			synctest.Wait()
			leave()
			synctest.Wait()
			close(hub.hold)
			all.Wait()
		})
	})
	for name, tt := range map[string]struct{ addresses, want int }{
		"a flood of different tokens causes at most 64 reviews at once": {300, 64},
		"one address causes at most 16":                                 {1, 16},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hub := &tokens{users: alice, hold: make(chan struct{})}
				a := NewAuthenticator(hub, Audiences{})
				inside := &gauge{TokenReviewInterface: hub}
				a.reviews = inside
				var all sync.WaitGroup
				for n := range 300 {
					all.Go(func() {
						_, _ = a.Authenticate(from(fmt.Sprintf("10.0.%d.1:9", n%tt.addresses), "t-"+strings.Repeat("x", n+1)))
					})
				}
				synctest.Wait()
				if inside.highest != tt.want {
					t.Errorf("got %d reviews at once, want %d", inside.highest, tt.want)
				}
				close(hub.hold)
				all.Wait()
			})
		})
	}
}

func from(address, token string) *http.Request {
	r := bearing(token)
	r.RemoteAddr = address
	return r
}

// slow is an API server that takes some time for each review.
type slow struct {
	authenticationv1client.TokenReviewInterface
	takes time.Duration
}

func (s slow) Create(
	ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	<-time.After(s.takes)
	return s.TokenReviewInterface.Create(ctx, review, opts)
}

// The flood of wrong tokens continues endlessly, as fast as it is answered. The clock is synctest's.
func TestFloodOfWrongTokens(t *testing.T) {
	const takes = 50 * time.Millisecond
	flood := func(ctx context.Context, a *Authenticator, addresses int) *sync.WaitGroup {
		all := &sync.WaitGroup{}
		for n := range 600 {
			all.Go(func() {
				for tries := 0; ctx.Err() == nil; tries++ {
					r := from(fmt.Sprintf("10.6.6.%d:9", n%addresses), fmt.Sprint("wrong-", n, "-", tries))
					_, err := a.Authenticate(r.WithContext(ctx))
					if apierrors.IsTooManyRequests(err) {
						<-time.After(100 * time.Millisecond)
					}
				}
			})
		}
		synctest.Wait()
		return all
	}
	for name, tt := range map[string]struct {
		addresses int    // the number of addresses of the flood
		address   string // the address of alice
		before    bool   // whether she was authenticated a minute ago
		want      time.Duration
	}{
		"from one address does not delay a new login from another":   {1, "192.0.2.1:9", false, takes},
		"from a hundred addresses delays a new login by a few turns": {100, "192.0.2.1:9", false, 4 * takes},
		"does not delay a known user, even from the same address":    {1, "10.6.6.0:9", true, takes},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := NewAuthenticator(slow{&tokens{users: alice}, takes}, Audiences{})
				if tt.before {
					if _, err := a.Authenticate(from(tt.address, "t-alice")); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Minute)
				}
				ctx, stop := context.WithCancel(t.Context())
				all := flood(ctx, a, tt.addresses)
				time.Sleep(time.Second)
				start := time.Now()
				id, err := a.Authenticate(from(tt.address, "t-alice"))
				if took := time.Since(start); err != nil || id.User != "hub:alice" || took > tt.want {
					t.Errorf("got %+v, %v after %s, want alice within %s", id, err, took, tt.want)
				}
				stop()
				all.Wait()
				time.Sleep(time.Minute) // until the last reviews have ended
			})
		})
	}
}

// gauge counts the reviews that are open at the same time.
type gauge struct {
	authenticationv1client.TokenReviewInterface
	mu            sync.Mutex // guards the following fields
	open, highest int
}

func (g *gauge) Create(
	ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions,
) (*authenticationv1.TokenReview, error) {
	g.add(1)
	defer g.add(-1)
	return g.TokenReviewInterface.Create(ctx, review, opts)
}

func (g *gauge) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open += n
	g.highest = max(g.highest, g.open)
}

// rights is an API server that reviews rights.
type rights struct {
	authorizationv1client.SubjectAccessReviewInterface
	mu      sync.Mutex // guards the following fields
	allowed bool
	down    error
	asked   []authorizationv1.SubjectAccessReviewSpec
}

func (a *rights) Create(
	_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions,
) (*authorizationv1.SubjectAccessReview, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, review.Spec)
	status := authorizationv1.SubjectAccessReviewStatus{Allowed: a.allowed}
	return &authorizationv1.SubjectAccessReview{Status: status}, a.down
}

func (a *rights) set(allowed bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.allowed = allowed
}

func mustNew(t *testing.T, info authenticationv1.UserInfo) Identity {
	t.Helper()
	id, err := New(info)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

var prod = types.NamespacedName{Namespace: "team-a", Name: "prod"}

func TestClusterProxy(t *testing.T) {
	info := authenticationv1.UserInfo{
		Username: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}},
	}
	t.Run("the review is for get on clusters/proxy, under the user's name on the hub", func(t *testing.T) {
		hub := &rights{allowed: true}
		if ok, err := NewAccess(hub).ClusterProxy(t.Context(), mustNew(t, info), prod); !ok || err != nil {
			t.Fatalf("got %v, %v, want true", ok, err)
		}
		want := []authorizationv1.SubjectAccessReviewSpec{{
			User: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: "cluster.drover.dev", Version: "v1", Resource: "clusters", Subresource: "proxy",
				Verb: "get", Namespace: "team-a", Name: "prod",
			},
		}}
		if !reflect.DeepEqual(want, hub.asked) {
			t.Errorf("got  %+v\nwant %+v", hub.asked, want)
		}
	})
	t.Run("yes is remembered for 10 s and no for 5 s, for each user and cluster", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &rights{allowed: true}
			access := NewAccess(hub)
			id := mustNew(t, info)
			expect := func(cluster types.NamespacedName, want bool) {
				t.Helper()
				if got, err := access.ClusterProxy(t.Context(), id, cluster); got != want || err != nil {
					t.Errorf("for %s: got %v, %v, want %v", cluster, got, err, want)
				}
			}
			other := types.NamespacedName{Namespace: "team-a", Name: "other"}
			expect(prod, true)
			hub.set(false)
			expect(prod, true)
			expect(other, false)
			hub.set(true)
			time.Sleep(4900 * time.Millisecond) // synctest's clock
			expect(other, false)
			time.Sleep(200 * time.Millisecond)
			expect(other, true)
			hub.set(false)
			time.Sleep(5 * time.Second)
			expect(prod, false)
		})
	})
	t.Run("an empty identity is never allowed, without a review", func(t *testing.T) {
		hub := &rights{allowed: true}
		if ok, err := NewAccess(hub).ClusterProxy(t.Context(), Identity{}, prod); ok || err != nil || len(hub.asked) > 0 {
			t.Errorf("got %v, %v after %d reviews, want false without a review", ok, err, len(hub.asked))
		}
	})
}

func TestChain(t *testing.T) {
	way := func(open bool, err error) Way {
		return func(context.Context, Identity, types.NamespacedName) (bool, error) { return open, err }
	}
	failed := errors.New("etcd is slow")
	for name, test := range map[string]struct {
		chain Chain
		want  func(error) bool
	}{
		"one open way is enough": {
			Chain{way(false, nil), way(true, nil)}, func(err error) bool { return err == nil },
		},
		"one open way is enough even if another cannot be checked": {
			Chain{way(false, failed), way(true, nil)}, func(err error) bool { return err == nil },
		},
		"no open way is 403": {
			Chain{way(false, nil), way(false, nil)}, apierrors.IsForbidden,
		},
		"no way at all is 403": {nil, apierrors.IsForbidden},
		"a way that cannot be checked is 503, and not open": {
			Chain{way(true, failed), way(false, nil)}, apierrors.IsServiceUnavailable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.chain.Authorize(t.Context(), mustNew(t, authenticationv1.UserInfo{Username: "alice"}), prod)
			if !test.want(err) {
				t.Errorf("got %v, want another result", err)
			}
		})
	}
}

func TestProtect(t *testing.T) {
	hub := &rights{}
	metrics := Protect(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}),
		NewAuthenticator(&tokens{users: alice}, Audiences{}).Authenticate, NewAccess(hub).Metrics)
	answer := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		metrics.ServeHTTP(w, r)
		return w
	}
	t.Run("metrics are refused with 401 and a challenge without a token", func(t *testing.T) {
		w := answer(httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("got %d, %v, want 401 with a challenge", w.Code, w.Header())
		}
	})
	t.Run("metrics are refused with 403 without the right to the path", func(t *testing.T) {
		if w := answer(bearing("t-alice")); w.Code != http.StatusForbidden ||
			!strings.Contains(w.Body.String(), `"reason":"Forbidden"`) {
			t.Errorf("got %d %s, want 403", w.Code, w.Body)
		}
		want := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
		if !reflect.DeepEqual(want, hub.asked[0].NonResourceAttributes) {
			t.Errorf("got  %+v\nwant %+v", hub.asked[0].NonResourceAttributes, want)
		}
	})
	t.Run("metrics are served with the right to the path", func(t *testing.T) {
		allowed := Protect(http.HandlerFunc(func(w http.ResponseWriter,
			_ *http.Request) {
			w.WriteHeader(http.StatusNoContent)
		}),
			NewAuthenticator(&tokens{users: alice},
				Audiences{}).Authenticate, NewAccess(&rights{allowed: true}).Metrics)
		w := httptest.NewRecorder()
		allowed.ServeHTTP(w, bearing("t-alice"))
		if w.Code != http.StatusNoContent {
			t.Errorf("got %d %s, want 204", w.Code, w.Body)
		}
	})
}
