// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// carrier is a transport made of a function.
type carrier func(*http.Request) (*http.Response, error)

func (c carrier) RoundTrip(r *http.Request) (*http.Response, error) { return c(r) }

func answers(text string) carrier {
	return func(r *http.Request) (*http.Response, error) {
		body := ""
		if r.Body != nil {
			all, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			body = string(all)
			_ = r.Body.Close()
		}
		return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text + body))}, nil
	}
}

// stale returns a transport that reads n bytes of the body, as HTTP/2 does before a response, and then fails because no
// agent saw the request.
func stale(n int64) carrier {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, n))
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("send request: %w", tunnel.ErrNotProcessed)
	}
}

func TestBestRoute(t *testing.T) {
	here := func(id, instance string, epoch int64) route {
		return route{id: id, instance: instance, epoch: epoch, carrier: answers("")}
	}
	hop := func(id, instance string, epoch int64) route {
		r := here(id, instance, epoch)
		r.hop = true
		return r
	}
	node := func(r route) route {
		r.nodeAgent = true
		return r
	}
	unreachable := func(r route) route {
		r.carrier = nil
		return r
	}
	for name, tt := range map[string]struct {
		routes []route
		tried  []string
		want   string // id, empty for none
	}{
		"without a tunnel there is no route": {want: ""},
		"the only tunnel":                    {routes: []route{hop("a", "one", 1)}, want: "a"},
		"the newest tunnel of a process": {
			routes: []route{here("a", "one", 1), here("b", "one", 2)}, want: "b",
		},
		"the newest tunnel of a process, wherever it ends": {
			routes: []route{here("a", "one", 1), hop("b", "one", 2)}, want: "b",
		},
		"of two processes, the one whose tunnel ends here": {
			routes: []route{hop("b", "two", 2), here("a", "one", 1)}, want: "a",
		},
		"of two tunnels that end here, the newer": {
			routes: []route{here("a", "one", 1), here("b", "two", 2)}, want: "b",
		},
		"of two tunnels at other replicas, the newer": {
			routes: []route{hop("b", "two", 2), hop("a", "one", 1)}, want: "b",
		},
		"a stale tunnel that ends here does not precede a hop": {
			routes: []route{here("a", "one", 1), hop("b", "one", 2), hop("c", "two", 1)}, want: "b",
		},
		"agents without a name count as one": {
			routes: []route{here("a", "", 1), hop("b", "", 2)}, want: "b",
		},
		"of two tunnels with the same epoch, the greater ID": {
			routes: []route{hop("b", "one", 1), hop("a", "one", 1)}, want: "b",
		},
		"a tunnel that was tried is no route": {
			routes: []route{here("a", "one", 1)}, tried: []string{"a"}, want: "",
		},
		"the older tunnel of a process after the newest was tried": {
			routes: []route{here("a", "one", 1), hop("b", "one", 2)}, tried: []string{"b"}, want: "a",
		},
		"a tunnel at an unreachable replica is no route": {
			routes: []route{unreachable(hop("a", "one", 1))}, want: "",
		},
		"a node agent with the only tunnel": {routes: []route{node(here("a", "one", 1))}, want: "a"},
		"a replica of the agent before a newer node agent": {
			routes: []route{node(here("b", "two", 2)), here("a", "one", 1)}, want: "a",
		},
		"a replica of the agent by a hop before a node agent here": {
			routes: []route{node(here("b", "two", 2)), hop("a", "one", 1)}, want: "a",
		},
		"a node agent after the replica of the agent was tried": {
			routes: []route{node(hop("b", "two", 2)), here("a", "one", 1)}, tried: []string{"a"}, want: "b",
		},
		"a node agent before an unreachable replica of the agent": {
			routes: []route{node(here("b", "two", 2)), unreachable(hop("a", "one", 1))}, want: "b",
		},
		"of two node agents, the newer": {
			routes: []route{node(here("a", "one", 1)), node(here("b", "two", 2))}, want: "b",
		},
		"an unreachable tunnel makes no other stale": {
			routes: []route{here("a", "one", 1), unreachable(hop("b", "one", 2))}, want: "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			found, ok := best(tt.routes, tt.tried)
			if found.id != tt.want || ok != (tt.want != "") {
				t.Errorf("got %q, %t, want %q", found.id, ok, tt.want)
			}
		})
	}
}

var prod = types.NamespacedName{Namespace: "team-a", Name: "prod"}

// ways returns a registry with routes to a member through other replicas. The first route is the best.
func ways(t *testing.T, carriers ...carrier) *Registry {
	t.Helper()
	r := New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	for i, c := range carriers {
		addWay(r, int64(len(carriers)-i), c)
	}
	return r
}

func addWay(r *Registry, epoch int64, c carrier) *Mirror {
	m := r.Mirror(fmt.Sprint("replica-", epoch))
	m.Begin(func(Peer) http.RoundTripper { return c })
	m.Update(Record{Namespace: prod.Namespace, Name: prod.Name, Tunnels: []Peer{{
		Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name},
		ID:      fmt.Sprint(epoch), Instance: fmt.Sprint(epoch), Epoch: epoch,
	}}})
	return m
}

func send(r *Registry, body io.ReadCloser) (string, error) {
	transport, err := r.Transport(prod)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequest(http.MethodPut, "http://member/", body)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	return string(answer), err
}

// bodyOf is a body that counts the calls of Close.
type bodyOf struct {
	io.Reader
	closed int
}

func (b *bodyOf) Close() error {
	b.closed++
	return nil
}

func TestUnprocessedRequest(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 16<<10) // 256 KiB
	for name, tt := range map[string]struct {
		ways []carrier
		body string
		want string // response; empty for ErrNotConnected
	}{
		"is sent through the next tunnel": {
			ways: []carrier{stale(0), answers("two ")}, body: "body", want: "two body",
		},
		"is sent through the next tunnel with a body that was read": {
			ways: []carrier{stale(1 << 20), answers("two ")}, body: "body", want: "two body",
		},
		"is sent through the next tunnel with a body that was read in part": {
			ways: []carrier{stale(1000), answers("two ")}, body: large, want: "two " + large,
		},
		"is not sent again if too much of its body was read": {
			ways: []carrier{stale(1 << 20), answers("two ")}, body: large,
		},
		"is sent twice at most": {
			ways: []carrier{stale(0), stale(0), answers("three ")}, body: "body",
		},
		"fails if there is no other tunnel in time": {ways: []carrier{stale(0)}, body: "body"},
		"is not sent again if it fails for another reason": {
			ways: []carrier{func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, answers("")},
			body: "b", want: "unexpected EOF",
		},
		"is answered through the first tunnel if an agent sees it": {
			ways: []carrier{answers("one "), answers("two ")}, body: large, want: "one " + large,
		},
		"without a body is sent through the next tunnel": {
			ways: []carrier{stale(0), answers("two ")}, want: "two ",
		},
		"without a body is sent twice at most, too": {
			ways: []carrier{stale(0), stale(0), answers("three ")},
		},
		"is sent through the next tunnel with a body of the maximum size": {
			ways: []carrier{stale(1 << 20), answers("")}, body: large[:maxReplay], want: large[:maxReplay],
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := ways(t, tt.ways...)
				start := time.Now()
				var body io.ReadCloser
				given := &bodyOf{Reader: strings.NewReader(tt.body)}
				if tt.body != "" {
					body = given
				}
				got, err := send(r, body)
				switch {
				case errors.Is(err, io.ErrUnexpectedEOF):
					got = err.Error()
				case tt.want == "" && !errors.Is(err, ErrNotConnected), tt.want != "" && err != nil:
					t.Fatalf("got %v, want the response %.20q or %v", err, tt.want, ErrNotConnected)
				}
				if got != tt.want {
					t.Errorf("got %d bytes, want %d", len(got), len(tt.want))
				}
				if took := time.Since(start); took > routePatience {
					t.Errorf("the request took %s, want at most %s", took, routePatience)
				}
				if tt.body != "" && given.closed == 0 && tt.want != "unexpected EOF" {
					t.Error("the body is open after the request, want it closed")
				}
			})
		})
	}
}

func TestRequestWaitsForAnotherTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ways(t, stale(0))
		got := make(chan string, 1)
		go func() {
			answer, err := send(r, nil)
			got <- fmt.Sprint(answer, err)
		}()
		time.Sleep(time.Second)
		addWay(r, 2, answers("back"))
		if answer := <-got; answer != "back<nil>" {
			t.Errorf("got %s, want the response of the agent that is back", answer)
		}
	})
}

func TestLongRequestWaitsForAnotherTunnel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := ways(t, func(r *http.Request) (*http.Response, error) {
			time.Sleep(2*time.Second - time.Since(start))
			return stale(0)(r)
		})
		time.AfterFunc(2300*time.Millisecond, func() { addWay(r, 2, answers("back")) })
		if answer, err := send(r, nil); answer != "back" {
			t.Errorf("got %q, %v, want the response of the agent that is back 300 ms after its tunnel ended", answer, err)
		}
	})
}

func TestRequestWaitsForAnUnreachableReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ways(t)
		m := addWay(r, 1, answers("one"))
		m.Detach()
		go func() {
			time.Sleep(time.Second)
			m.Begin(func(Peer) http.RoundTripper { return answers("again") })
		}()
		if answer, err := send(r, nil); answer != "again" {
			t.Errorf("got %q, %v, want the response of the second attempt", answer, err)
		}
	})
}

// A reader that was given up while it waited for the client still receives the next bytes, and the next attempt must
// see them.
func TestBodyBytesReadByAnAbandonedAttemptAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		req, err := http.NewRequest(http.MethodPut, "http://member/", reader)
		if err != nil {
			t.Fatal(err)
		}
		p := newReplay(req)
		first := p.attach(req).Body
		go func() { _, _ = io.Copy(io.Discard, first) }()
		if _, err := writer.Write([]byte("a")); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // the first attempt waits for more
		if !p.rewind() {
			t.Fatal("the body cannot be sent again, want it possible")
		}
		second := p.attach(req).Body
		p.commit()
		go func() {
			_, _ = writer.Write([]byte("bcd"))
			_ = writer.Close()
		}()
		if got, err := io.ReadAll(second); string(got) != "abcd" || err != nil {
			t.Errorf("the second attempt read %q, %v, want \"abcd\"", got, err)
		}
	})
}

func TestFeedHoldsOnlyTheLatestState(t *testing.T) {
	r := ways(t)
	f := r.Feed()
	defer f.Close()
	start := time.Now()
	for i := range 1000 {
		r.Notices.table.now = func() time.Time { return start.Add(time.Duration(i) * refusalPause) }
		r.Refused(prod, "IdentityMismatch", fmt.Sprint(i))
	}
	<-f.Wake()
	records := f.Take(10)
	if len(records) != 1 || records[0].Refusal.Message != "999" {
		t.Errorf("got the records %+v, want one with the last rejection", records)
	}
	if again := f.Take(10); len(again) != 0 {
		t.Errorf("got the records %+v a second time, want none", again)
	}
	r.Forget(prod)
	if records := f.Take(10); len(records) != 1 || !records[0].empty() {
		t.Errorf("got the records %+v, want a record that says that the member is gone", records)
	}
}

func TestPreferredReport(t *testing.T) {
	report := func(version string, leader bool) *protocol.Report {
		return &protocol.Report{Version: version, Leader: leader}
	}
	for name, tt := range map[string]struct {
		states []agentState
		want   string
	}{
		"the leader's, although another tunnel is newer": {
			[]agentState{{report: report("a", true), epoch: 1}, {report: report("b", false), epoch: 2}}, "a",
		},
		"of two leaders, the newer one's": {
			[]agentState{{report: report("a", true), epoch: 2}, {report: report("b", true), epoch: 1}}, "a",
		},
		"without a leader, the newest": {
			[]agentState{{report: report("a", false), epoch: 1}, {report: report("b", false), epoch: 2}}, "b",
		},
		"any report before none": {
			[]agentState{{report: report("a", false), epoch: 1}, {epoch: 2}}, "a",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var state agentState
			for _, s := range tt.states {
				state = preferred(state, s)
			}
			if state.report.Version != tt.want {
				t.Errorf("the preferred report is %s, want %s", state.report.Version, tt.want)
			}
		})
	}
}

func TestBoundLimitsARecord(t *testing.T) {
	peer := Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: "prod"}, ID: "x"}
	long, foreign := peer, peer
	long.Instance, foreign.Cluster.Name = strings.Repeat("x", 300), "other"
	record := Record{Namespace: "team-a", Name: "prod", Tunnels: []Peer{long, foreign, {}, peer},
		ReportErr: strings.Repeat("x", 5000),
		Loss:      &Loss{Because: strings.Repeat("x", 5000)}, Refusal: &Rejection{Message: strings.Repeat("x", 5000)}}
	for range 50 {
		record.Tunnels = append(record.Tunnels, peer)
	}
	record.Bound()
	texts := len(record.ReportErr) + len(record.Loss.Because) + len(record.Refusal.Message)
	if len(record.Tunnels) != maxTunnels || record.Tunnels[0] != peer || texts != 3*maxText {
		t.Errorf("%d tunnels, first %+v, want %d and texts of %d bytes", len(record.Tunnels), record.Tunnels[0], maxTunnels,
			maxText)
	}
	if !bytes.Contains([]byte(record.Loss.Error()), []byte("xxx")) {
		t.Errorf("the loss says %q, want the cause", record.Loss.Error())
	}
}

// tunnelStub is a tunnel that carries no requests.
type tunnelStub struct {
	carrier
	done chan struct{}
	once sync.Once
}

func newTunnelStub() *tunnelStub { return &tunnelStub{carrier: stale(0), done: make(chan struct{})} }

func (s *tunnelStub) Done() <-chan struct{} { return s.done }

func (s *tunnelStub) Err() error { return tunnel.ErrClosed }

func (s *tunnelStub) Drain(context.Context) error { return s.Close() }

func (s *tunnelStub) Close() error {
	s.once.Do(func() { close(s.done) })
	return nil
}

// silent returns a tunnel whose agent never starts its report.
func silent() *tunnelStub {
	s := newTunnelStub()
	s.carrier = func(*http.Request) (*http.Response, error) {
		<-s.done
		return nil, tunnel.ErrClosed
	}
	return s
}

// mirrored returns a registry that knows one tunnel to prod from another replica, whose clock is ahead by the given
// time.
func mirrored(t *testing.T, ahead time.Duration) *Registry {
	t.Helper()
	r := New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	m := r.Mirror("ahead")
	m.Begin(func(Peer) http.RoundTripper { return answers("old") })
	m.Update(Record{Namespace: prod.Namespace, Name: prod.Name, Tunnels: []Peer{{
		Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name},
		Key:     "key", Instance: "one", TokenID: "token", ID: "old", Epoch: time.Now().Add(ahead).UnixNano(),
	}}})
	return r
}

func peerOf(token string) Peer {
	return Peer{Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name}, Key: "key", Instance: "one",
		TokenID: token}
}

func TestNewTunnelIsTheNewestWhateverTheClocks(t *testing.T) {
	r := mirrored(t, 5*time.Minute)
	for _, token := range []string{"second", "third"} {
		r.Add(peerOf(token), silent())
		local := r.Local(prod)
		newest := local[len(local)-1]
		if found, _ := r.look(prod, nil); found.id != newest.ID || newest.TokenID != token {
			t.Errorf("with the tunnels %+v requests go to %+v, want the newest", local, found)
		}
	}
}

func TestTokenUsedAtAnotherReplicaOpensNoTunnel(t *testing.T) {
	r := mirrored(t, 0)
	again := silent()
	r.Add(peerOf("token"), again)
	select {
	case <-again.Done():
	default:
		t.Error("the second tunnel with the same token is open, want it closed")
	}
	if local := r.Local(prod); len(local) != 0 {
		t.Errorf("tunnels %+v, want none", local)
	}
	other := peerOf("token")
	other.Key = "another agent's"
	if r.Add(other, silent()); len(r.Local(prod)) != 1 {
		t.Error("a token of another key was refused, want it accepted, because it is another token")
	}
}

func TestLossFromAClockThatIsAheadIsSetToNow(t *testing.T) {
	r := New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	m := r.Mirror("ahead")
	m.Begin(func(Peer) http.RoundTripper { return nil })
	later := time.Now().Add(5 * time.Minute)
	record := Record{Namespace: prod.Namespace, Name: prod.Name, Loss: &Loss{At: later, Left: true},
		Refusal: &Rejection{At: later}}
	m.Update(record)
	now := time.Now()
	if state := r.State(prod); state.LastSeen.After(now) || !state.Left || state.Refusal.At.After(now) {
		t.Errorf("state %+v at %s, want no time in the future", state, now)
	}
	if !record.Loss.At.Equal(later) {
		t.Error("the record of the caller has changed, want it unchanged")
	}
}
