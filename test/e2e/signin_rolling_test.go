// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/signin"
	"github.com/drover-dev/drover/internal/signin/keys"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

const (
	// signers sign in continuously, each with one login per loginPause. The hub stores up to 16 sessions per user whose
	// code could be redeemed again, which is possible for a minute.
	signers    = 6
	loginPause = 4500 * time.Millisecond
	// renewPause is longer than the interval that the hub requires between two renewals of a session.
	renewPause = 1200 * time.Millisecond
	// leastLogins is the number of logins that each signer must complete for the test to be meaningful.
	leastLogins = 4
)

// signingIn counts the actions of users, and stores failures.
type signingIn struct {
	mu       sync.Mutex
	logins   map[string]int // by user
	renewals int
	requests int
	failures []string
	keys     map[string]bool // IDs of the keys that signed tokens
}

func (c *signingIn) note(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// TestLong_UsersSignInWhileReplicasAreRestarted restarts three replicas one after the other, and changes the key that
// signs tokens, while users sign in, renew their tokens, and use them. Nothing fails. The test runs alone, because
// beside other tests its logins would wait for the CPU.
func TestLong_UsersSignInWhileReplicasAreRestarted(t *testing.T) {
	s := startWith(t, (*system).startSignInReplicas)
	awaitKeys(t, s)
	count := &signingIn{logins: map[string]int{}, keys: map[string]bool{}}
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for i := range signers {
		name := fmt.Sprintf("user-%d", i)
		v := newVisitor(t, s, name, makeUser(t, s, name))
		running.Go(func() { count.work(ctx, v) })
	}
	count.await(t, 1)
	first := newestKey(t, s)
	changeKeys(t, s, func(set keys.Set) { set[len(set)-1].Created = time.Now().Add(-keys.Lifetime) }) // the leader makes the next one, and publishes it
	s.awaitPublished(t, 2)
	for i, replica := range s.hub.Replicas {
		began := time.Now()
		if err := replica.Process.Stop(within(t, restartLimit)); err != nil {
			t.Error(err)
		}
		startSignInReplica(t, s, replica)
		t.Logf("%s is ready again after %s", replica.Name, time.Since(began).Round(time.Millisecond))
		if i == 0 { // an hour later, which no test waits for
			changeKeys(t, s, func(set keys.Set) { set[len(set)-1].Created = time.Now().Add(-keys.Lead) })
		}
	}
	count.await(t, leastLogins)
	stop()
	running.Wait()
	count.mu.Lock()
	defer count.mu.Unlock()
	t.Logf("logins %v, %d renewals, %d requests", count.logins, count.renewals, count.requests)
	for _, failure := range count.failures {
		t.Error(failure)
	}
	if second := newestKey(t, s); !count.keys[first] || !count.keys[second] || first == second {
		t.Errorf("tokens were signed with %v, want both keys, %s and %s", count.keys, first, second)
	}
}

// startSignInReplicas starts a hub with several replicas where users sign in.
func (s *system) startSignInReplicas(t *testing.T) {
	t.Helper()
	plane, err := s.plane("hub")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plane.Kill() })
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, framework.Layout{Replicas: replicas, Configure: func(c *config.Config) {
		c.Drain = config.Drain{Delay: &metav1.Duration{Duration: drainDelay}, Sessions: &metav1.Duration{Duration: drainSessions}}
		c.SignIn.Issuer = c.Server.URLs[0]
	}})
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
}

func startSignInReplica(t *testing.T, s *system, replica *framework.Replica) {
	t.Helper()
	if err := replica.Start(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
	if err := s.hub.AwaitBalanced(within(t, time.Minute)); err != nil {
		t.Fatal(err)
	}
}

// work signs a user in, uses the token, renews it and uses it again, until ctx ends.
func (c *signingIn) work(ctx context.Context, v *visitor) {
	pause := time.NewTicker(loginPause)
	defer pause.Stop()
	for ctx.Err() == nil {
		if err := c.turn(ctx, v); err != nil && ctx.Err() == nil {
			c.note(func() { c.failures = append(c.failures, time.Now().Format(time.TimeOnly)+" "+v.user+": "+err.Error()) })
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
	}
}

func (c *signingIn) turn(ctx context.Context, v *visitor) error {
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	got, err := v.login(limited)
	if err != nil {
		return fmt.Errorf("login: %w", err)
	}
	c.note(func() { c.logins[v.user]++; c.keys[signedWith(idToken(got))] = true })
	if err := c.use(limited, v, idToken(got)); err != nil {
		return err
	}
	select {
	case <-time.After(renewPause):
	case <-ctx.Done():
		return nil
	}
	if got, err = v.renew(limited, got); err != nil {
		return err
	}
	c.note(func() { c.renewals++ })
	return c.use(limited, v, idToken(got))
}

// use sends requests with a token to the hub itself, and to the proxy. If the token is valid, the proxy responds that
// the user may not access the member.
func (c *signingIn) use(ctx context.Context, v *visitor, token string) error {
	for path, want := range map[string]int{"/v1/whoami": http.StatusOK, "/k8s/clusters/default/none/version": http.StatusForbidden} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, v.hub+path, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := v.client.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		if resp.StatusCode != want {
			return fmt.Errorf("%s: %s, want %d", path, resp.Status, want)
		}
		c.note(func() { c.requests++ })
	}
	return nil
}

// await waits until each user has signed in the given number of times.
func (c *signingIn) await(t *testing.T, times int) {
	t.Helper()
	testkit.Eventually(t, 3*time.Minute, func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range signers {
			if n := c.logins[fmt.Sprintf("user-%d", i)]; n < times {
				return fmt.Errorf("user-%d has signed in %d times, want %d: %v", i, n, times, c.failures)
			}
		}
		return nil
	})
}

// changeKeys changes the times of the keys that sign tokens, as an administrator could, because no test can wait for a
// month.
func changeKeys(t *testing.T, s *system, change func(keys.Set)) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
		secret, set, err := keySet(ctx, s)
		if err != nil {
			return err
		}
		change(set)
		if secret.Data[signin.KeyOfKeys], err = keys.Encode(set); err != nil {
			return err
		}
		return s.hub.Client.Update(ctx, secret)
	})
}

func keySet(ctx context.Context, s *system) (*corev1.Secret, keys.Set, error) {
	secret := &corev1.Secret{}
	err := s.hub.Client.Get(ctx, client.ObjectKey{Namespace: "drover-system", Name: signin.KeysSecret}, secret)
	if err != nil {
		return nil, nil, err
	}
	set, err := keys.Decode(secret.Data[signin.KeyOfKeys])
	return secret, set, err
}

func newestKey(t *testing.T, s *system) string {
	t.Helper()
	_, set, err := keySet(t.Context(), s)
	if err != nil || len(set) == 0 {
		t.Fatal(err, len(set))
	}
	return set[len(set)-1].ID
}

// awaitPublished waits until the given number of keys are stored, and every replica publishes them.
func (s *system) awaitPublished(t *testing.T, n int) {
	t.Helper()
	v := newVisitor(t, s, "", "")
	for _, replica := range s.hub.Replicas {
		testkit.Eventually(t, time.Minute, func(ctx context.Context) error {
			page, err := fetch(ctx, v.client, "https://"+replica.Address+"/v1/auth/keys")
			if err != nil {
				return err
			}
			if got := strings.Count(page, `"kid"`); got != n {
				return fmt.Errorf("%s publishes %d keys, want %d", replica.Name, got, n)
			}
			return nil
		})
	}
}

// signedWith returns the ID of the key of a token.
func signedWith(token string) string {
	head, _, _ := strings.Cut(token, ".")
	var header struct{ Kid string }
	raw, err := base64.RawURLEncoding.DecodeString(head)
	if err = errors.Join(err, json.Unmarshal(raw, &header)); err != nil {
		return err.Error()
	}
	return header.Kid
}
