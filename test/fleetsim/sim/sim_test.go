// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/test/fleetsim/sim"
)

const audience = "drover-hub:test"

// hub accepts tunnels of agents that prove their key.
type fakeHub struct {
	url      string
	bundle   []byte
	sessions chan *tunnel.Session
}

func startHub(t *testing.T, member sim.Member) *fakeHub {
	t.Helper()
	public, ok := member.Key.Public().(ed25519.PublicKey)
	if !ok {
		t.Fatal("not an Ed25519 key")
	}
	h := &fakeHub{sessions: make(chan *tunnel.Session, 16)}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		if claims, err := protocol.VerifyConnectToken(token, public, audience, time.Now()); err != nil || claims.Cluster != member.Cluster {
			t.Errorf("connect token of %+v: %v", claims.Cluster, err)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		session, err := tunnel.Accept(w, r, tunnel.Config{})
		if err != nil {
			return // the agent was cut in the middle of it, or the test is over
		}
		h.sessions <- session
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // broken handshakes are simulated on purpose
	server.StartTLS()
	t.Cleanup(server.Close)
	h.url = server.URL
	h.bundle = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return h
}

func newMember(t *testing.T) sim.Member {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return sim.Member{
		Cluster: protocol.ClusterRef{Namespace: "fleet-00", Name: "member-00000", UID: "cluster-uid"}, ClusterUID: "member-uid",
		Key: key, Audience: audience, SettingsDigest: "first",
	}
}

// start runs a fleet of one member and returns it with its hub.
func start(t *testing.T, change func(*sim.Options)) (*sim.Sim, *fakeHub) {
	t.Helper()
	member := newMember(t)
	h := startHub(t, member)
	options := sim.Options{Server: h.url, Bundle: h.bundle, Members: []sim.Member{member}}
	change(&options)
	fleet, err := sim.New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { fleet.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return fleet, h
}

func get(t *testing.T, session *tunnel.Session, path string, header http.Header) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = header
	response, err := session.RoundTrip(request)
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func nextReport(t *testing.T, lines *bufio.Scanner) protocol.Report {
	t.Helper()
	if !lines.Scan() {
		t.Fatalf("the report ended: %v", lines.Err())
	}
	var report protocol.Report
	if err := json.Unmarshal(lines.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	return report
}

func TestAgent(t *testing.T) {
	t.Parallel()
	nothing := func(*sim.Options) {}
	t.Run("it reports at once, and again when settings were announced", func(t *testing.T) {
		t.Parallel()
		fleet, h := start(t, nothing)
		session := <-h.sessions
		lines := bufio.NewScanner(get(t, session, protocol.PathReport, nil).Body)
		first := nextReport(t, lines)
		if first.SettingsDigest != "first" || first.ClusterUID != "member-uid" || !first.Health.Healthy {
			t.Errorf("report %+v", first)
		}
		if state := fleet.State(); state.Connected != 1 || state.Reporting != 1 {
			t.Errorf("state %+v", state)
		}
		settings := protocol.Settings{Servers: []string{"https://other.example"}}
		body, err := json.Marshal(settings)
		if err != nil {
			t.Fatal(err)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://agent"+protocol.PathSettings, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		response, err := session.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusNoContent {
			t.Fatalf("announce settings: %v, %v", response, err)
		}
		_ = response.Body.Close()
		if again := nextReport(t, lines); again.SettingsDigest != settings.Digest() {
			t.Errorf("report %+v after the announcement", again)
		}
	})
	t.Run("it reports changes of state at the rate that was asked for", func(t *testing.T) {
		t.Parallel()
		_, h := start(t, func(o *sim.Options) { o.Rates.Changes = 600 })
		lines := bufio.NewScanner(get(t, <-h.sessions, protocol.PathReport, nil).Body)
		first := nextReport(t, lines)
		if second := nextReport(t, lines); second.Nodes.Requested["cpu"] == first.Nodes.Requested["cpu"] {
			t.Errorf("nothing changed in %+v", second.Nodes)
		}
	})
	t.Run("it comes back after its tunnel was cut", func(t *testing.T) {
		t.Parallel()
		fleet, h := start(t, nothing)
		first := <-h.sessions
		get(t, first, protocol.PathReport, nil) // an answer means that it serves
		if n := fleet.Cut(0); n != 1 {
			t.Errorf("cut %d tunnels", n)
		}
		<-first.Done()
		<-h.sessions
		if state := fleet.State(); state.Ended != 1 || state.Attempts < 2 || state.LeastAttempts != state.Attempts {
			t.Errorf("state %+v", state)
		}
	})
	t.Run("it moves to another tunnel when it is asked to", func(t *testing.T) {
		t.Parallel()
		fleet, h := start(t, nothing)
		first := <-h.sessions
		lines := bufio.NewScanner(get(t, first, protocol.PathReport, nil).Body)
		nextReport(t, lines)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://agent"+protocol.PathMove, strings.NewReader(`{"seconds":60}`))
		if err != nil {
			t.Fatal(err)
		}
		response, err := first.RoundTrip(request)
		if err != nil || response.StatusCode != http.StatusAccepted {
			t.Fatalf("ask to move: %v, %v", response, err)
		}
		_ = response.Body.Close()
		second := <-h.sessions
		nextReport(t, bufio.NewScanner(get(t, second, protocol.PathReport, nil).Body))
		if lines.Scan() {
			t.Errorf("the report on the old tunnel goes on: %s", lines.Text())
		}
		if n := fleet.Cut(0); n != 2 {
			t.Errorf("cut %d tunnels, the old one is still open", n)
		}
	})
	t.Run("a member that is spared keeps its tunnel", func(t *testing.T) {
		t.Parallel()
		fleet, h := start(t, nothing)
		get(t, <-h.sessions, protocol.PathReport, nil)
		if n := fleet.Cut(10); n != 0 {
			t.Errorf("cut %d tunnels", n)
		}
	})
	t.Run("churn cuts tunnels by itself", func(t *testing.T) {
		t.Parallel()
		_, h := start(t, func(o *sim.Options) { o.Rates.Churn = 600 })
		<-(<-h.sessions).Done()
		<-h.sessions
	})
	t.Run("the rates can be changed while it runs", func(t *testing.T) {
		t.Parallel()
		fleet, h := start(t, nothing)
		first := <-h.sessions
		get(t, first, protocol.PathReport, nil)
		fleet.Set(sim.Rates{Churn: 600})
		<-first.Done()
		<-h.sessions
	})
}

func TestLatency(t *testing.T) {
	t.Parallel()
	const oneWay = 40 * time.Millisecond
	_, h := start(t, func(o *sim.Options) { o.Latency = oneWay })
	session := <-h.sessions
	for _, what := range []string{"the first request", "the next one"} {
		t.Run(what+" takes the way there and back", func(t *testing.T) {
			begun := time.Now()
			get(t, session, protocol.PathKubernetes+"/version", http.Header{"Impersonate-User": {"hub:alice"}})
			if took := time.Since(begun); took < 2*oneWay {
				t.Errorf("answered after %s", took)
			}
		})
	}
	t.Run("requests at the same time wait together", func(t *testing.T) {
		const requests = 50
		var asking sync.WaitGroup
		begun := time.Now()
		for range requests {
			asking.Go(func() {
				request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+protocol.PathKubernetes+"/version", nil)
				if err != nil {
					t.Error(err)
					return
				}
				response, err := session.RoundTrip(request)
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
			})
		}
		asking.Wait()
		if took := time.Since(begun); took > requests*oneWay {
			t.Errorf("%d requests took %s", requests, took)
		}
	})
}

func TestAPIServer(t *testing.T) {
	t.Parallel()
	_, h := start(t, func(*sim.Options) {})
	session := <-h.sessions
	alice := http.Header{"Impersonate-User": {"hub:alice"}}
	for name, tt := range map[string]struct {
		path   string
		header http.Header
		status int
		want   string // kind or field in the body
	}{
		"it says its version":                    {"/version", alice, http.StatusOK, `"gitVersion":"v1.36`},
		"it has the core group":                  {"/api", alice, http.StatusOK, `"APIVersions"`},
		"it has no other groups":                 {"/apis", alice, http.StatusOK, `"APIGroupList"`},
		"it lists namespaces":                    {"/api/v1/namespaces", alice, http.StatusOK, `"kube-system"`},
		"it has a ConfigMap of any name":         {"/api/v1/namespaces/a/configmaps/b", alice, http.StatusOK, `"namespace":"a","name":"b"`},
		"it has nothing else":                    {"/api/v1/namespaces/a/secrets/b", alice, http.StatusNotFound, `"reason":"NotFound"`},
		"a request that names no user is denied": {"/version", nil, http.StatusForbidden, `"reason":"Forbidden"`},
		"a request that names two users is denied": {"/version", http.Header{"Impersonate-User": {"a", "b"}}, http.StatusForbidden,
			`"reason":"Forbidden"`},
	} {
		t.Run(name, func(t *testing.T) {
			response := get(t, session, protocol.PathKubernetes+tt.path, tt.header)
			var body strings.Builder
			if _, err := bufio.NewReader(response.Body).WriteTo(&body); err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tt.status || !strings.Contains(body.String(), tt.want) {
				t.Errorf("got %d %s, want another code or text", response.StatusCode, body.String())
			}
			if !json.Valid([]byte(body.String())) {
				t.Errorf("not JSON: %s", body.String())
			}
		})
	}
	t.Run("a watch opens and says nothing", func(t *testing.T) {
		response := get(t, session, protocol.PathKubernetes+"/api/v1/namespaces?watch=true", alice)
		if response.StatusCode != http.StatusOK {
			t.Fatalf("watch answers %s", response.Status)
		}
		_ = session.Close()
		if n, err := response.Body.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("the watch said something: %d, %v", n, err)
		}
	})
}

func TestControl(t *testing.T) {
	t.Parallel()
	fleet, _ := start(t, func(*sim.Options) {})
	for name, tt := range map[string]struct {
		method, path string
		status       int
		want         string
	}{
		"the state is JSON":                {http.MethodGet, "/state", http.StatusOK, `"Agents":1`},
		"a cut says how many it cut":       {http.MethodPost, "/cut?spare=1", http.StatusOK, "0"},
		"a cut needs to know whom to keep": {http.MethodPost, "/cut", http.StatusBadRequest, "spare"},
		"rates are set":                    {http.MethodPost, "/rates?churn=0&changes=0.5", http.StatusOK, `"Changes":0.5`},
		"a rate that is missing is named":  {http.MethodPost, "/rates?changes=0.5", http.StatusBadRequest, "churn"},
		"a rate is a number":               {http.MethodPost, "/rates?churn=NaN&changes=0", http.StatusBadRequest, "churn"},
		"a rate is not negative":           {http.MethodPost, "/rates?churn=0&changes=-1", http.StatusBadRequest, "changes"},
		"reading cuts nothing":             {http.MethodGet, "/cut?spare=0", http.StatusMethodNotAllowed, ""},
	} {
		t.Run(name, func(t *testing.T) {
			answer := httptest.NewRecorder()
			fleet.Handler().ServeHTTP(answer, httptest.NewRequest(tt.method, tt.path, nil))
			if answer.Code != tt.status || !strings.Contains(answer.Body.String(), tt.want) {
				t.Errorf("got %d %s, want another code or text", answer.Code, answer.Body)
			}
		})
	}
}
