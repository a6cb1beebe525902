// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/signin/login"
)

// BenchmarkLogin reports how many local users can sign in within a second at one replica: the page, the password, the
// code, a token, and the Secret of a session. Each user has their own address. The API server and the browsers run on
// the same machine, and the objects that the manager has in a cache are read from the API server.
func BenchmarkLogin(b *testing.B) {
	f := newFixture(b)
	for i, tt := range []struct {
		name  string
		users int
		known bool // whether they have signed in with the same browser before
	}{{"one user", 1, false}, {"one user with a browser of before", 1, true}, {"eight users at once", 8,
		false}, {"eight users at once with browsers of before", 8, true}} {
		b.Run(tt.name, func(b *testing.B) {
			visitors := make([]*visitor, tt.users)
			for n := range visitors {
				visitors[n] = f.visitor(i, n)
				if err := visitors[n].signIn(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			var mu sync.Mutex
			var times []time.Duration
			var failed error
			began := time.Now()
			var all sync.WaitGroup
			left := make(chan struct{})
			for _, v := range visitors {
				all.Go(func() {
					for range left {
						if !tt.known {
							v.Jar, _ = cookiejar.New(nil) // without options it never fails
						}
						f.wait(8 * time.Second) // a user may begin 16 sessions within 2 minutes, and not more
						start := time.Now()
						err := v.signIn(b.Context())
						mu.Lock()
						times, failed = append(times, time.Since(start)), errors.Join(failed, err)
						mu.Unlock()
					}
				})
			}
			for b.Loop() {
				left <- struct{}{}
			}
			close(left)
			all.Wait()
			if failed != nil {
				b.Fatal(failed)
			}
			slices.Sort(times)
			b.ReportMetric(float64(len(times))/time.Since(began).Seconds(), "logins/s")
			b.ReportMetric(float64(times[len(times)/2].Milliseconds()), "p50-ms")
			b.ReportMetric(float64(times[len(times)*99/100].Milliseconds()), "p99-ms")
		})
	}
}

// visitor is a user with a browser.
type visitor struct {
	*http.Client
	f    *fixture
	user string
}

// visitor returns the n-th user of a benchmark, with the n-th address of the loopback interface.
func (f *fixture) visitor(benchmark, n int) *visitor {
	f.t.Helper()
	user := &v1.User{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d-%d-%s", benchmark, n, f.namespace)}}
	f.addUser(user)
	v := &visitor{Client: f.browser(), f: f, user: user.Name}
	transport, ok := f.server.Client().Transport.(*http.Transport)
	if !ok {
		f.t.Fatal("the client of the test's server has no transport that can be changed")
	}
	own := transport.Clone()
	own.DialContext = (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(n+1))}}).DialContext
	v.Transport = own
	f.t.Cleanup(own.CloseIdleConnections)
	return v
}

// signIn signs in once.
func (v *visitor) signIn(ctx context.Context) error {
	verifier := oauth2.GenerateVerifier()
	page, _, err := v.ask(ctx, http.MethodGet, v.f.config().AuthCodeURL("the-state", oauth2.S256ChallengeOption(verifier)),
		nil)
	if err != nil {
		return err
	}
	found := hidden.FindStringSubmatch(page)
	if found == nil {
		return fmt.Errorf("the login page is %s", page)
	}
	answer, header, err := v.ask(ctx, http.MethodPost, v.f.server.URL+login.PathLogin,
		url.Values{"request": {found[1]}, "user": {v.user}, "password": {secretPassword}})
	if err != nil {
		return err
	}
	to, err := url.Parse(header.Get("Location"))
	if err != nil || to.Query().Get("code") == "" {
		return fmt.Errorf("no code after the login: %s", answer)
	}
	_, err = v.f.config().Exchange(oidc.ClientContext(ctx, v.Client), to.Query().Get("code"),
		oauth2.VerifierOption(verifier))
	return err
}

func (v *visitor) ask(ctx context.Context, method, address string, fields url.Values) (string, http.Header, error) {
	request, err := http.NewRequestWithContext(ctx, method, address, strings.NewReader(fields.Encode()))
	if err != nil {
		return "", nil, err
	}
	request.Header.Set("Origin", v.f.server.URL)
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := v.Do(request)
	if err != nil {
		return "", nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), response.Header, err
}
