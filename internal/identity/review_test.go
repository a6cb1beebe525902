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

// tokens is the hub's API server as far as tokens go.
type tokens struct {
	authenticationv1client.TokenReviewInterface
	mu    sync.Mutex // guards what follows
	users map[string]authenticationv1.UserInfo
	down  error
	asked int

	hold chan struct{} // answers wait until it is closed; nil for no wait
}

func (k *tokens) Create(ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
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
	return &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Authenticated: known, User: user}}, k.down
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
	t.Run("a token that the hub accepts becomes its user, a token that it does not accept 401", func(t *testing.T) {
		a := NewAuthenticator(&tokens{users: alice}, Audiences{})
		id, err := a.Authenticate(bearing("t-alice"))
		if err != nil || id.User != "hub:alice" || !id.Valid() {
			t.Errorf("Authenticate = %+v, %v", id, err)
		}
		id, err = a.Authenticate(bearing("t-mallory"))
		if !apierrors.IsUnauthorized(err) || id.Valid() {
			t.Errorf("Authenticate = %+v, %v; want 401", id, err)
		}
		if strings.Contains(err.Error(), "mallory") {
			t.Errorf("the error holds the token: %v", err)
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
					t.Errorf("at %s: error %v, asked %d times; want known %v, %d times", token, err, hub.count(), known, asked)
				}
			}
			expect("t-alice", true, 1)
			expect("t-bob", false, 2)
			hub.set(nil, map[string]authenticationv1.UserInfo{"t-bob": {Username: "bob"}})
			time.Sleep(1900 * time.Millisecond) // the clock of synctest, not a wait
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
						t.Errorf("Authenticate = %+v, %v", id, err)
					}
				})
			}
			synctest.Wait()
			close(hub.hold)
			all.Wait()
			if hub.count() != 1 {
				t.Errorf("asked %d times, want once", hub.count())
			}
		})
	})
	t.Run("an API server that is down is 503, and neither remembered nor taken for a yes", func(t *testing.T) {
		hub := &tokens{users: alice, down: errors.New("connection refused")}
		a := NewAuthenticator(hub, Audiences{})
		id, err := a.Authenticate(bearing("t-alice"))
		if !apierrors.IsServiceUnavailable(err) || id.Valid() {
			t.Fatalf("Authenticate = %+v, %v; want 503", id, err)
		}
		hub.set(nil, alice)
		if _, err := a.Authenticate(bearing("t-alice")); err != nil {
			t.Errorf("after it came back: %v", err)
		}
	})
	t.Run("an API server that hangs is 503 after ten seconds", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a := NewAuthenticator(&tokens{users: alice, hold: make(chan struct{})}, Audiences{})
			start := time.Now()
			_, err := a.Authenticate(bearing("t-alice"))
			if !apierrors.IsServiceUnavailable(err) || time.Since(start) != 10*time.Second {
				t.Errorf("after %s: %v; want 503 after 10 s", time.Since(start), err)
			}
		})
	})
	t.Run("a caller who goes away does not spoil the result of those who wait, too", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &tokens{users: alice, hold: make(chan struct{})}
			a := NewAuthenticator(hub, Audiences{})
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				if _, err := a.Authenticate(bearing("t-alice").WithContext(ctx)); !errors.Is(err, context.Canceled) {
					t.Errorf("the one who left: %v", err)
				}
			})
			synctest.Wait()
			all.Go(func() {
				if _, err := a.Authenticate(bearing("t-alice")); err != nil {
					t.Errorf("the one who stayed: %v", err)
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
		"a flood of different tokens asks the API server 64 questions at once and no more": {300, 64},
		"one address asks 16 of them": {1, 16},
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
					t.Errorf("%d questions at once, want %d", inside.highest, tt.want)
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

// slow is an API server that takes a while for each review.
type slow struct {
	authenticationv1client.TokenReviewInterface
	takes time.Duration
}

func (s slow) Create(ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	<-time.After(s.takes)
	return s.TokenReviewInterface.Create(ctx, review, opts)
}

// A flood of wrong tokens goes on without end, as fast as it is answered. The clock is that of synctest.
func TestFloodOfWrongTokens(t *testing.T) {
	const takes = 50 * time.Millisecond
	flood := func(ctx context.Context, a *Authenticator, addresses int) *sync.WaitGroup {
		all := &sync.WaitGroup{}
		for n := range 600 {
			all.Go(func() {
				for tries := 0; ctx.Err() == nil; tries++ {
					_, err := a.Authenticate(from(fmt.Sprintf("10.6.6.%d:9", n%addresses), fmt.Sprint("wrong-", n, "-", tries)).WithContext(ctx))
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
		addresses int    // that the flood comes from
		address   string // that alice comes from
		before    bool   // whether she was there a minute ago
		want      time.Duration
	}{
		"from one address does not hold up who logs in anew from another":        {1, "192.0.2.1:9", false, takes},
		"from a hundred addresses holds up who logs in anew by some turns":       {100, "192.0.2.1:9", false, 4 * takes},
		"does not hold up who was there before, even from the address of it all": {1, "10.6.6.0:9", true, takes},
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
				begun := time.Now()
				id, err := a.Authenticate(from(tt.address, "t-alice"))
				if took := time.Since(begun); err != nil || id.User != "hub:alice" || took > tt.want {
					t.Errorf("%+v, %v after %s, want alice within %s", id, err, took, tt.want)
				}
				stop()
				all.Wait()
				time.Sleep(time.Minute) // until the last questions are over
			})
		})
	}
}

// gauge counts the reviews that are open at once.
type gauge struct {
	authenticationv1client.TokenReviewInterface
	mu            sync.Mutex // guards what follows
	open, highest int
}

func (g *gauge) Create(ctx context.Context, review *authenticationv1.TokenReview, opts metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
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

// rights is the hub's API server as far as rights go.
type rights struct {
	authorizationv1client.SubjectAccessReviewInterface
	mu      sync.Mutex // guards what follows
	allowed bool
	down    error
	asked   []authorizationv1.SubjectAccessReviewSpec
}

func (a *rights) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked = append(a.asked, review.Spec)
	return &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: a.allowed}}, a.down
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
	t.Run("the hub is asked for get on clusters/proxy by the hub's own name of the user", func(t *testing.T) {
		hub := &rights{allowed: true}
		if ok, err := NewAccess(hub).ClusterProxy(t.Context(), mustNew(t, info), prod); !ok || err != nil {
			t.Fatalf("ClusterProxy = %v, %v", ok, err)
		}
		want := []authorizationv1.SubjectAccessReviewSpec{{
			User: "alice", UID: "7", Groups: []string{"dev"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: "cluster.drover.dev", Version: "v1", Resource: "clusters", Subresource: "proxy", Verb: "get", Namespace: "team-a", Name: "prod",
			},
		}}
		if !reflect.DeepEqual(want, hub.asked) {
			t.Errorf("got  %+v\nwant %+v", hub.asked, want)
		}
	})
	t.Run("a yes is remembered for 10 s, a no for 5 s, each for its user and cluster", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hub := &rights{allowed: true}
			access := NewAccess(hub)
			id := mustNew(t, info)
			expect := func(cluster types.NamespacedName, want bool) {
				t.Helper()
				if got, err := access.ClusterProxy(t.Context(), id, cluster); got != want || err != nil {
					t.Errorf("ClusterProxy(%s) = %v, %v; want %v", cluster, got, err, want)
				}
			}
			other := types.NamespacedName{Namespace: "team-a", Name: "other"}
			expect(prod, true)
			hub.set(false)
			expect(prod, true)
			expect(other, false)
			hub.set(true)
			time.Sleep(4900 * time.Millisecond) // the clock of synctest, not a wait
			expect(other, false)
			time.Sleep(200 * time.Millisecond)
			expect(other, true)
			hub.set(false)
			time.Sleep(5 * time.Second)
			expect(prod, false)
		})
	})
	t.Run("an empty identity is never allowed and never asked for", func(t *testing.T) {
		hub := &rights{allowed: true}
		if ok, err := NewAccess(hub).ClusterProxy(t.Context(), Identity{}, prod); ok || err != nil || len(hub.asked) > 0 {
			t.Errorf("ClusterProxy = %v, %v after %d questions", ok, err, len(hub.asked))
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
		"one open way is enough":                                   {Chain{way(false, nil), way(true, nil)}, func(err error) bool { return err == nil }},
		"an open way is enough even if another can't be looked at": {Chain{way(false, failed), way(true, nil)}, func(err error) bool { return err == nil }},
		"no open way is 403":                                       {Chain{way(false, nil), way(false, nil)}, apierrors.IsForbidden},
		"no way at all is 403":                                     {nil, apierrors.IsForbidden},
		"a way that can't be looked at is 503, not open":           {Chain{way(true, failed), way(false, nil)}, apierrors.IsServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.chain.Authorize(t.Context(), mustNew(t, authenticationv1.UserInfo{Username: "alice"}), prod)
			if !test.want(err) {
				t.Errorf("Authorize = %v", err)
			}
		})
	}
}

func TestProtect(t *testing.T) {
	hub := &rights{}
	metrics := Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		NewAuthenticator(&tokens{users: alice}, Audiences{}).Authenticate, NewAccess(hub).NonResource("get", "/metrics"))
	answer := func(r *http.Request) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		metrics.ServeHTTP(w, r)
		return w
	}
	t.Run("metrics are 401 with a challenge for a stranger", func(t *testing.T) {
		w := answer(httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if w.Code != http.StatusUnauthorized || w.Header().Get("WWW-Authenticate") != "Bearer" {
			t.Errorf("answer %d, %v", w.Code, w.Header())
		}
	})
	t.Run("metrics are 403 without the right to the path", func(t *testing.T) {
		if w := answer(bearing("t-alice")); w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), `"reason":"Forbidden"`) {
			t.Errorf("answer %d %s", w.Code, w.Body)
		}
		want := &authorizationv1.NonResourceAttributes{Verb: "get", Path: "/metrics"}
		if !reflect.DeepEqual(want, hub.asked[0].NonResourceAttributes) {
			t.Errorf("got  %+v\nwant %+v", hub.asked[0].NonResourceAttributes, want)
		}
	})
	t.Run("metrics are served with it", func(t *testing.T) {
		allowed := Protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
			NewAuthenticator(&tokens{users: alice}, Audiences{}).Authenticate, NewAccess(&rights{allowed: true}).NonResource("get", "/metrics"))
		w := httptest.NewRecorder()
		allowed.ServeHTTP(w, bearing("t-alice"))
		if w.Code != http.StatusNoContent {
			t.Errorf("answer %d %s", w.Code, w.Body)
		}
	})
}
