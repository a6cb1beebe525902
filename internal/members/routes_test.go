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

// carrier is a transport of a test's.
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

// stale takes n bytes of the body, as HTTP/2 does before there is an answer, and says that no agent saw the request.
func stale(n int64) carrier {
	return func(r *http.Request) (*http.Response, error) {
		if r.Body != nil {
			_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, n))
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("send request: %w", tunnel.ErrNotProcessed)
	}
}

func TestTheBestRoute(t *testing.T) {
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
		"no tunnel is no route":                                  {want: ""},
		"the only one is the best":                               {routes: []route{hop("a", "one", 1)}, want: "a"},
		"of one process the newest counts":                       {routes: []route{here("a", "one", 1), here("b", "one", 2)}, want: "b"},
		"of one process the newest counts, wherever it ends":     {routes: []route{here("a", "one", 1), hop("b", "one", 2)}, want: "b"},
		"of two processes the one that ends here":                {routes: []route{hop("b", "two", 2), here("a", "one", 1)}, want: "a"},
		"of two that end here the one that came last":            {routes: []route{here("a", "one", 1), here("b", "two", 2)}, want: "b"},
		"of two by hop the one that came last":                   {routes: []route{hop("b", "two", 2), hop("a", "one", 1)}, want: "b"},
		"a stale one that ends here does not go before a hop":    {routes: []route{here("a", "one", 1), hop("b", "one", 2), hop("c", "two", 1)}, want: "b"},
		"agents that say no name count as one":                   {routes: []route{here("a", "", 1), hop("b", "", 2)}, want: "b"},
		"at the same time the greater id, the same everywhere":   {routes: []route{hop("b", "one", 1), hop("a", "one", 1)}, want: "b"},
		"what was tried is none":                                 {routes: []route{here("a", "one", 1)}, tried: []string{"a"}, want: ""},
		"after the newest of a process was tried, the older one": {routes: []route{here("a", "one", 1), hop("b", "one", 2)}, tried: []string{"b"}, want: "a"},
		"what is out of reach is none":                           {routes: []route{unreachable(hop("a", "one", 1))}, want: ""},
		"a node agent that is the only way":                      {routes: []route{node(here("a", "one", 1))}, want: "a"},
		"a replica before a newer node agent":                    {routes: []route{node(here("b", "two", 2)), here("a", "one", 1)}, want: "a"},
		"a replica by hop before a node agent that ends here":    {routes: []route{node(here("b", "two", 2)), hop("a", "one", 1)}, want: "a"},
		"a node agent after the replica was tried":               {routes: []route{node(hop("b", "two", 2)), here("a", "one", 1)}, tried: []string{"a"}, want: "b"},
		"a node agent before a replica that is out of reach":     {routes: []route{node(here("b", "two", 2)), unreachable(hop("a", "one", 1))}, want: "b"},
		"of two node agents the one that came last":              {routes: []route{node(here("a", "one", 1)), node(here("b", "two", 2))}, want: "b"},
		"what is out of reach makes no other stale":              {routes: []route{here("a", "one", 1), unreachable(hop("b", "one", 2))}, want: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			found, ok := best(tt.routes, tt.tried)
			if found.id != tt.want || ok != (tt.want != "") {
				t.Errorf("%q, %t, want %q", found.id, ok, tt.want)
			}
		})
	}
}

var prod = types.NamespacedName{Namespace: "team-a", Name: "prod"}

// ways is a registry with ways to a member by other replicas, the first of them the best.
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
		Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name}, ID: fmt.Sprint(epoch), Instance: fmt.Sprint(epoch), Epoch: epoch}}})
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

// bodyOf is a body that reports whether it was closed.
type bodyOf struct {
	io.Reader
	closed int
}

func (b *bodyOf) Close() error {
	b.closed++
	return nil
}

func TestARequestThatNoAgentSaw(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", 16<<10) // 256 KiB
	for name, tt := range map[string]struct {
		ways []carrier
		body string
		want string // answer, empty for ErrNotConnected
	}{
		"goes by the next way":                                                {ways: []carrier{stale(0), answers("two ")}, body: "body", want: "two body"},
		"goes by the next way with all of a body that was read":               {ways: []carrier{stale(1 << 20), answers("two ")}, body: "body", want: "two body"},
		"goes by the next way with the rest of a body that was read in part":  {ways: []carrier{stale(1000), answers("two ")}, body: large, want: "two " + large},
		"is not sent again with a body of which too much was read":            {ways: []carrier{stale(1 << 20), answers("two ")}, body: large},
		"is looked up once, not for ever":                                     {ways: []carrier{stale(0), stale(0), answers("three ")}, body: "body"},
		"is refused when there is no other way within its patience":           {ways: []carrier{stale(0)}, body: "body"},
		"that fails for another reason is not sent again":                     {ways: []carrier{func(*http.Request) (*http.Response, error) { return nil, io.ErrUnexpectedEOF }, answers("")}, body: "b", want: "unexpected EOF"},
		"is answered by the first way if an agent sees it":                    {ways: []carrier{answers("one "), answers("two ")}, body: large, want: "one " + large},
		"without a body goes by the next way":                                 {ways: []carrier{stale(0), answers("two ")}, want: "two "},
		"without a body is looked up once, too":                               {ways: []carrier{stale(0), stale(0), answers("three ")}},
		"with a body as long as is kept goes by the next way with all of it ": {ways: []carrier{stale(1 << 20), answers("")}, body: large[:maxReplay], want: large[:maxReplay]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := ways(t, tt.ways...)
				begun := time.Now()
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
					t.Fatal(err)
				}
				if got != tt.want {
					t.Errorf("got %d bytes, want %d", len(got), len(tt.want))
				}
				if took := time.Since(begun); took > routePatience {
					t.Errorf("it took %s, want %s at most", took, routePatience)
				}
				if tt.body != "" && given.closed == 0 && tt.want != "unexpected EOF" {
					t.Error("its body stays open")
				}
			})
		})
	}
}

func TestARequestWaitsForAnotherWay(t *testing.T) {
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
			t.Errorf("got %s, want the answer of the agent that is back", answer)
		}
	})
}

func TestARequestThatWasUnderWayForLongWaitsForAnotherWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begun := time.Now()
		r := ways(t, func(r *http.Request) (*http.Response, error) {
			time.Sleep(2*time.Second - time.Since(begun))
			return stale(0)(r)
		})
		time.AfterFunc(2300*time.Millisecond, func() { addWay(r, 2, answers("back")) })
		if answer, err := send(r, nil); answer != "back" {
			t.Errorf("got %q, %v, want the answer of the agent that is back 300 ms after its tunnel ended", answer, err)
		}
	})
}

func TestARequestWaitsForAReplicaOutOfReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ways(t)
		m := addWay(r, 1, answers("one"))
		m.Detach()
		go func() {
			time.Sleep(time.Second)
			m.Begin(func(Peer) http.RoundTripper { return answers("again") })
		}()
		if answer, err := send(r, nil); answer != "again" {
			t.Errorf("got %q, %v, want the answer of the second attempt", answer, err)
		}
	})
}

// A reader that was given up while it waited for the client takes what comes then; the next attempt must see it.
func TestABodyThatIsReadWhileItsAttemptIsGivenUp(t *testing.T) {
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
			t.Fatal("it cannot be sent again")
		}
		second := p.attach(req).Body
		p.commit()
		go func() {
			_, _ = writer.Write([]byte("bcd"))
			_ = writer.Close()
		}()
		if got, err := io.ReadAll(second); string(got) != "abcd" || err != nil {
			t.Errorf("the second body is %q, %v, want \"abcd\"", got, err)
		}
	})
}

func TestAFeedHoldsTheLatestOnly(t *testing.T) {
	r := ways(t)
	f := r.Feed()
	defer f.Close()
	begun := time.Now()
	for i := range 1000 {
		r.Notices.table.now = func() time.Time { return begun.Add(time.Duration(i) * refusalPause) }
		r.Refused(prod, "IdentityMismatch", fmt.Sprint(i))
	}
	<-f.Wake()
	records := f.Take(10)
	if len(records) != 1 || records[0].Refusal.Message != "999" {
		t.Errorf("the records are %+v, want one with the last refusal", records)
	}
	if again := f.Take(10); len(again) != 0 {
		t.Errorf("told twice: %+v", again)
	}
	r.Forget(prod)
	if records := f.Take(10); len(records) != 1 || !records[0].empty() {
		t.Errorf("the records are %+v, want one that says that the member has gone", records)
	}
}

func TestTheReportToGoBy(t *testing.T) {
	report := func(version string, leader bool) *protocol.Report {
		return &protocol.Report{Version: version, Leader: leader}
	}
	for name, tt := range map[string]struct {
		said []agentState
		want string
	}{
		"the leader's, though another's tunnel is newer": {[]agentState{{report: report("a", true), epoch: 1}, {report: report("b", false), epoch: 2}}, "a"},
		"of two leaders the newer one's":                 {[]agentState{{report: report("a", true), epoch: 2}, {report: report("b", true), epoch: 1}}, "a"},
		"without a leader the newest":                    {[]agentState{{report: report("a", false), epoch: 1}, {report: report("b", false), epoch: 2}}, "b"},
		"any rather than none":                           {[]agentState{{report: report("a", false), epoch: 1}, {epoch: 2}}, "a"},
	} {
		t.Run(name, func(t *testing.T) {
			var said agentState
			for _, s := range tt.said {
				said = preferred(said, s)
			}
			if said.report.Version != tt.want {
				t.Errorf("the version is %s, want that of the newest report", said.report.Version)
			}
		})
	}
}

func TestRecordsAreCutToSize(t *testing.T) {
	peer := Peer{Cluster: protocol.ClusterRef{Namespace: "team-a", Name: "prod"}, ID: "x"}
	long, foreign := peer, peer
	long.Instance, foreign.Cluster.Name = strings.Repeat("x", 300), "other"
	record := Record{Namespace: "team-a", Name: "prod", Tunnels: []Peer{long, foreign, {}, peer}, ReportErr: strings.Repeat("x", 5000),
		Loss: &Loss{Because: strings.Repeat("x", 5000)}, Refusal: &Rejection{Message: strings.Repeat("x", 5000)}}
	for range 50 {
		record.Tunnels = append(record.Tunnels, peer)
	}
	record.Bound()
	if len(record.Tunnels) != maxTunnels || record.Tunnels[0] != peer || len(record.ReportErr)+len(record.Loss.Because)+len(record.Refusal.Message) != 3*maxText {
		t.Errorf("%d tunnels, first %+v, want %d and texts of %d bytes", len(record.Tunnels), record.Tunnels[0], maxTunnels, maxText)
	}
	if !bytes.Contains([]byte(record.Loss.Error()), []byte("xxx")) {
		t.Error("the loss does not say why")
	}
}

// tunnelStub is a tunnel that nothing comes through.
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

// silent is a tunnel whose agent never begins its report.
func silent() *tunnelStub {
	s := newTunnelStub()
	s.carrier = func(*http.Request) (*http.Response, error) {
		<-s.done
		return nil, tunnel.ErrClosed
	}
	return s
}

// told is a registry that another replica, whose clock is ahead by so much, has told of one tunnel to prod.
func told(t *testing.T, ahead time.Duration) *Registry {
	t.Helper()
	r := New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	m := r.Mirror("ahead")
	m.Begin(func(Peer) http.RoundTripper { return answers("old") })
	m.Update(Record{Namespace: prod.Namespace, Name: prod.Name, Tunnels: []Peer{{
		Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name}, Key: "key", Instance: "one", TokenID: "token", ID: "old",
		Epoch: time.Now().Add(ahead).UnixNano()}}})
	return r
}

func peerOf(token string) Peer {
	return Peer{Cluster: protocol.ClusterRef{Namespace: prod.Namespace, Name: prod.Name}, Key: "key", Instance: "one", TokenID: token}
}

func TestATunnelIsNewerThanThoseThatAreKnownWhateverTheClocks(t *testing.T) {
	r := told(t, 5*time.Minute)
	for _, token := range []string{"second", "third"} {
		r.Add(peerOf(token), silent())
		local := r.Local(prod)
		newest := local[len(local)-1]
		if found, _ := r.look(prod, nil); found.id != newest.ID || newest.TokenID != token {
			t.Errorf("of tunnels %+v requests go to %+v", local, found)
		}
	}
}

func TestATokenOpensNoTunnelHereThatOpenedOneElsewhere(t *testing.T) {
	r := told(t, 0)
	again := silent()
	r.Add(peerOf("token"), again)
	select {
	case <-again.Done():
	default:
		t.Error("the tunnel stays open")
	}
	if local := r.Local(prod); len(local) != 0 {
		t.Errorf("tunnels %+v, want none", local)
	}
	other := peerOf("token")
	other.Key = "another agent's"
	if r.Add(other, silent()); len(r.Local(prod)) != 1 {
		t.Error("a token of another key is another token")
	}
}

func TestALossByAClockThatIsAhead(t *testing.T) {
	r := New(logr.Discard(), time.Now)
	t.Cleanup(r.Close)
	m := r.Mirror("ahead")
	m.Begin(func(Peer) http.RoundTripper { return nil })
	later := time.Now().Add(5 * time.Minute)
	record := Record{Namespace: prod.Namespace, Name: prod.Name, Loss: &Loss{At: later, Left: true}, Refusal: &Rejection{At: later}}
	m.Update(record)
	now := time.Now()
	if state := r.State(prod); state.LastSeen.After(now) || !state.Left || state.Refusal.At.After(now) {
		t.Errorf("state %+v at %s, want no time in the future", state, now)
	}
	if !record.Loss.At.Equal(later) {
		t.Error("what was told is changed for others, too")
	}
}
