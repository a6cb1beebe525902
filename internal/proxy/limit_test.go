// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/tunnel"
)

// limited returns the option for a proxy with these limits, and its limiter.
func limited(s limit.Settings, o limit.Observers) (func(*Options), *limit.Limiter) {
	l := limit.New(s, o)
	return func(options *Options) { options.Limiter = l }, l
}

// gated is a member that answers when the test tells it to.
type gated struct {
	arrived chan struct{}
	answer  chan struct{}
}

func newGated() *gated { return &gated{arrived: make(chan struct{}, 100), answer: make(chan struct{})} }

func (g *gated) ServeHTTP(_ http.ResponseWriter, r *http.Request) {
	g.arrived <- struct{}{}
	select {
	case <-g.answer:
	case <-r.Context().Done():
	}
}

func wantLoad(t *testing.T, l *limit.Limiter, short, long, waiting int) {
	t.Helper()
	if gotShort, gotLong, gotWaiting := l.Load(); gotShort != short || gotLong != long || gotWaiting != waiting {
		t.Errorf("got %d short and %d long requests open and %d waiting, want %d, %d and %d",
			gotShort, gotLong, gotWaiting, short, long, waiting)
	}
}

func TestTooManyRequests(t *testing.T) {
	one := limit.Settings{Short: limit.Bounds{User: 1}, Long: limit.Bounds{User: 1}}
	for name, tt := range map[string]struct {
		first, second string
		refused       bool
	}{
		"a second short request of a user is refused":          {podsPath, podsPath, true},
		"a second watch of a user is refused":                  {podsPath + "?watch=1", podsPath + "?watch=1", true},
		"a short request beside a watch is served":             {podsPath + "?watch=1", podsPath, false},
		"a watch beside a short request is served":             {podsPath, podsPath + "?watch=1", false},
		"a request to the hub itself also counts for the user": {podsPath, "/k8s/local/api/v1/pods", true},
	} {
		t.Run(name, func(t *testing.T) {
			change, l := limited(one, limit.Observers{})
			h, member := newHubSide(t, change), newGated()
			h.agent.answerWith(member.ServeHTTP)
			var all sync.WaitGroup
			all.Go(func() { h.do(t, h.request(t, http.MethodGet, tt.first, nil, nil)) })
			<-member.arrived
			if tt.refused {
				response, body := h.do(t, h.request(t, http.MethodGet, tt.second, nil, nil))
				status := wantStatus(t, response, body, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "too many")
				after, ok := apierrors.SuggestsClientDelay(&apierrors.StatusError{ErrStatus: status})
				if !ok || after < 1 || after > 3 || response.Header.Get("Retry-After") != fmt.Sprint(after) {
					t.Errorf("the Status tells clients to wait %d s and the header %q, want 1 to 3 s in both",
						after, response.Header.Get("Retry-After"))
				}
			} else {
				all.Go(func() { h.do(t, h.request(t, http.MethodGet, tt.second, nil, nil)) })
				<-member.arrived
			}
			close(member.answer)
			all.Wait()
			wantFree(t, l)
		})
	}
}

func TestLimitOfAnotherReplicaIsReported(t *testing.T) {
	h := newHubSide(t)
	for scope, words := range map[limit.Scope]string{
		limit.ScopeMember: `in cluster "team-a/prod"`, limit.ScopeAll: "the hub has too many",
	} {
		h.members.transport = failing{fmt.Errorf("through another replica: %w", &limit.FullError{Scope: scope})}
		response, body := h.do(t, h.request(t, http.MethodGet, podsPath, nil, nil))
		wantStatus(t, response, body, http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, words)
		if response.Header.Get("Retry-After") == "" {
			t.Error("got no Retry-After, want one")
		}
	}
}

// failing is a transport on which every request fails.
type failing struct{ error }

// RoundTrip implements http.RoundTripper.
func (f failing) RoundTrip(*http.Request) (*http.Response, error) { return nil, f.error }

// wantFree waits until all seats are free. A handler ends a moment after its client has the response.
func wantFree(t *testing.T, l *limit.Limiter) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for {
		short, long, waiting := l.Load()
		if short+long+waiting == 0 {
			return
		}
		select {
		case <-deadline:
			wantLoad(t, l, 0, 0, 0)
			return
		default:
			runtime.Gosched()
		}
	}
}

func TestSeatsAreReleased(t *testing.T) {
	for name, tt := range map[string]struct {
		prepare func(*hubSide)
		method  string
		path    string
		header  http.Header
	}{
		"after an answer":                    {path: podsPath},
		"after a refusal for missing rights": {path: "/k8s/clusters/team-b/prod/api"},
		"when there is no such member":       {path: "/k8s/clusters/team-a/none/api"},
		"when the member is not connected": {
			prepare: func(h *hubSide) { h.members.fail(&NotConnectedError{}) }, path: podsPath,
		},
		"when the member cannot be looked up": {
			prepare: func(h *hubSide) { h.members.fail(errors.New("broken")) }, path: podsPath,
		},
		"when the connection breaks": {prepare: func(h *hubSide) {
			h.agent.answerWith(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
		}, path: podsPath},
		"when the right to impersonate is missing": {path: podsPath, header: http.Header{"Impersonate-User": {"bob"}}},
		"after a refused upgrade": {
			path: podsPath, header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {"SPDY/3.1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			change, l := limited(limit.Defaults(), limit.Observers{})
			h := newHubSide(t, change)
			if tt.prepare != nil {
				tt.prepare(h)
			}
			h.do(t, h.request(t, http.MethodGet, tt.path, nil, tt.header))
			wantFree(t, l)
		})
	}
	t.Run("when a caller disconnects while waiting for a seat", func(t *testing.T) {
		change, l := limited(limit.Settings{Short: limit.Bounds{All: 1, Queue: 1, Wait: time.Hour}}, limit.Observers{})
		h, member := newHubSide(t, change), newGated()
		h.agent.answerWith(member.ServeHTTP)
		var all sync.WaitGroup
		all.Go(func() { h.get(t, nil) })
		<-member.arrived
		ctx, leave := context.WithCancel(t.Context())
		all.Go(func() {
			if response, err := h.Client().Transport.RoundTrip(h.request(t, http.MethodGet, podsPath, nil,
				nil).WithContext(ctx)); err == nil {
				response.Body.Close()
				t.Error("the disconnected caller got a response, want an error")
			}
		})
		for waiting := 0; waiting == 0; _, _, waiting = l.Load() {
			runtime.Gosched()
		}
		leave()
		for waiting := 1; waiting > 0; _, _, waiting = l.Load() { // The other caller still has its seat.
			runtime.Gosched()
		}
		close(member.answer)
		all.Wait()
		wantFree(t, l)
	})
}

func TestUsersWithoutRightsTakeNoSeats(t *testing.T) {
	change, l := limited(limit.Settings{Short: limit.Bounds{All: 1}}, limit.Observers{})
	h, member := newHubSide(t, change), newGated()
	h.agent.answerWith(member.ServeHTTP)
	var all sync.WaitGroup
	all.Go(func() { h.get(t, nil) })
	<-member.arrived
	for name, tt := range map[string]struct {
		token string
		want  int
	}{
		"an unknown caller gets a 401 whether or not there is a seat":        {"Bearer t-mallory", http.StatusUnauthorized},
		"a user without the right gets a 403 whether or not there is a seat": {"Bearer t-bob", http.StatusForbidden},
		"only a user with the right learns that there is no seat":            {"Bearer t-alice", http.StatusTooManyRequests},
	} {
		t.Run(name, func(t *testing.T) {
			if response, body := h.get(t, http.Header{"Authorization": {tt.token}}); response.StatusCode != tt.want {
				t.Errorf("got %d %s, want %d", response.StatusCode, body, tt.want)
			}
		})
	}
	close(member.answer)
	all.Wait()
	wantFree(t, l)
}

func TestMembersThatAnswerLateOrNever(t *testing.T) {
	hung := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	t.Run("a short request is 504 after 70 s", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn, start := dialProxy(t, hung), time.Now()
			_, _ = io.WriteString(conn, rawGet(podsPath))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusGatewayTimeout || time.Since(start) != 70*time.Second {
				t.Errorf("got %[2]v, %[3]v after %[1]s, want 504", time.Since(start), response, err)
			}
		})
	})
	t.Run("a response that begins late but in time may last as long as it likes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := dialProxy(t, roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				time.Sleep(69 * time.Second) // the clock of synctest, not a real wait
				body, member := io.Pipe()
				go func() {
					time.Sleep(time.Hour)
					_, _ = io.WriteString(member, "late")
					_ = member.CloseWithError(io.EOF)
				}()
				return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1,
					ContentLength: -1, Header: http.Header{}, Body: body, Request: r}, nil
			}))
			_, _ = io.WriteString(conn, rawGet(podsPath))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(response.Body); err != nil || string(got) != "late" {
				t.Errorf("got %q, %v, want \"late\"", got, err)
			}
		})
	})
	t.Run("a watch waits for its response", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			conn := dialProxy(t, roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				select {
				case <-r.Context().Done():
					return nil, r.Context().Err()
				case <-time.After(time.Hour):
					return &http.Response{StatusCode: 200, ProtoMajor: 1, ProtoMinor: 1,
						Header: http.Header{}, Body: http.NoBody, Request: r}, nil
				}
			}))
			_, _ = io.WriteString(conn, rawGet(podsPath+"?watch=1"))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusOK {
				t.Errorf("got %+v, %v, want 200", response, err)
			}
		})
	})
}

// oneTunnel uses the same tunnel for every member.
type oneTunnel struct{ *tunnel.Session }

func (o oneTunnel) Transport(context.Context, types.NamespacedName) (http.RoundTripper, error) {
	return o.Session, nil
}

// endless is an agent that streams data without end.
func endless(w http.ResponseWriter, _ *http.Request) {
	piece := make([]byte, 32<<10)
	for {
		if _, err := w.Write(piece); err != nil {
			return
		}
	}
}

// openTunnel connects an agent with this handler.
func openTunnel(t *testing.T, agent http.HandlerFunc) *tunnel.Session {
	t.Helper()
	sessions := make(chan *tunnel.Session, 1)
	port := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		session, err := tunnel.Accept(w, r, tunnel.Config{})
		if err != nil {
			t.Error(err)
			close(sessions)
			return
		}
		sessions <- session
	}))
	t.Cleanup(port.Close)
	conn, err := (&tunnel.Dialer{}).Dial(t.Context(), "ws"+strings.TrimPrefix(port.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = conn.Serve(context.Background(), agent) // ends with the session
	}()
	session, ok := <-sessions
	if !ok {
		t.FailNow()
	}
	t.Cleanup(func() {
		_ = session.Close()
		<-served
	})
	return session
}

// heap returns the size of the live heap, in bytes.
func heap() int64 {
	runtime.GC()
	runtime.GC() // frees the objects that the first run finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// stall opens requests and does not read their responses.
func stall(t *testing.T, server *httptest.Server, path func(int) string, count int) {
	t.Helper()
	for n := range count {
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10)
		if _, err := io.WriteString(conn, rawGet(path(n))); err != nil {
			t.Fatal(err)
		}
	}
}

// A tenant with an agent that sends endless data and users who do not read it cannot fill the manager's memory.
func TestStalledUsersOfAFakeMember(t *testing.T) {
	const streams, window = 100, 1 << 20
	sameMember := func(int) string { return podsPath }
	ownMember := func(n int) string { return fmt.Sprintf("/k8s/clusters/team-a/m%d/api/v1/pods", n) }
	for name, tt := range map[string]struct {
		bounds limit.BacklogBounds
		path   func(int) string
		kept   int64 // streams that are not cut off
	}{
		"through one member stay within its limit": {
			limit.BacklogBounds{Member: 16 * window, All: 64 * window, Grace: time.Second}, sameMember, 16,
		},
		"through many members of a workspace stay within the total limit": {
			limit.BacklogBounds{Member: 16 * window, All: 32 * window, Grace: time.Second}, ownMember, 32,
		},
		"without limits hold one window each, which shows that the test measures something": {
			limit.BacklogBounds{}, sameMember, streams,
		},
	} {
		t.Run(name, func(t *testing.T) {
			cut := make(chan limit.Scope, streams)
			settings := limit.Defaults()
			settings.Short, settings.Backlog = limit.Bounds{}, tt.bounds
			var highest atomic.Int64
			change, l := limited(settings, limit.Observers{Cut: func(s limit.Scope) { cut <- s }})
			options := testOptions(oneTunnel{openTunnel(t, endless)}.Transport, logr.Discard())
			change(&options)
			handler, err := New(options)
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewUnstartedServer(handler)
			server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
				if state == http.StateNew {
					// as on the hub's port; otherwise the kernel takes megabytes of each stream before a user stalls
					tunnel.KeepUnsentLow(conn)
				}
			}
			server.Start()
			t.Cleanup(server.Close)
			before := heap()
			stall(t, server, tt.path, streams)
			deadline := time.After(time.Minute)
			for range streams - tt.kept {
				select {
				case <-cut:
					highest.Store(max(highest.Load(), l.Backlog.Held()))
				case <-deadline:
					t.Fatalf("too few streams were cut off; %d MiB are held", l.Backlog.Held()>>20)
				}
			}
			for l.Backlog.Held() < tt.kept*window || heap()-before < (tt.kept-4)*window {
				select {
				case <-deadline:
					t.Fatalf("%d MiB are held and the heap grew by %d MiB, want more for the streams that are not cut off",
						l.Backlog.Held()>>20, (heap()-before)>>20)
				default:
				}
			}
			grown := heap() - before
			t.Logf("%d stalled streams: heap grew by %d MiB; %d MiB counted, at most %d MiB at a cut",
				streams, grown>>20, l.Backlog.Held()>>20, highest.Load()>>20)
			if most := (tt.kept*5/4 + 16) * window; tt.bounds.All > 0 && grown > most {
				t.Errorf("the heap grew by %d MiB, want at most %d", grown>>20, most>>20)
			}
			if highest.Load() > 2*max(tt.bounds.Member, tt.bounds.All) {
				t.Errorf("%d MiB were held, want at most twice the limit", highest.Load()>>20)
			}
			server.CloseClientConnections()
		})
	}
}

// BenchmarkServeBesideGreedyUser measures the whole way of a request with the limits. Compare it with a limiter that
// has no limits.
func BenchmarkServeBesideGreedyUser(b *testing.B) {
	for _, greedy := range []int{0, 1000} {
		b.Run(fmt.Sprintf("greedy=%d", greedy), func(b *testing.B) {
			answer := roundTripperFunc(func(r *http.Request) (*http.Response, error) {
				select {
				case <-r.Context().Done():
				case <-time.After(time.Millisecond):
				}
				return &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
			})
			options := testOptions((&fakeMembers{transport: answer}).Transport, logr.Discard())
			options.Authenticate = func(r *http.Request) (identity.Identity, error) {
				return identity.New(authenticationv1.UserInfo{Username: r.Header.Get("Test-User")})
			}
			options.Authorize = func(context.Context, identity.Identity, types.NamespacedName) error { return nil }
			handler, err := New(options)
			if err != nil {
				b.Fatal(err)
			}
			get := func(ctx context.Context, user string) int {
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, podsPath, nil)
				r.Header.Set("Test-User", user)
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				return w.Code
			}
			ctx, stop := context.WithCancel(b.Context())
			var all sync.WaitGroup
			for range greedy {
				all.Go(func() {
					defer func() { _ = recover() }() // the caller has disconnected
					for ctx.Err() == nil {
						if get(ctx, "greedy") == http.StatusTooManyRequests {
							<-time.After(time.Second) // as clients do
						}
					}
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				if code := get(b.Context(), "modest"); code != http.StatusOK {
					b.Fatalf("got %d, want 200", code)
				}
			}
			stop()
			all.Wait()
		})
	}
}
