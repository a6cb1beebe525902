// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/protocol"
)

const pathAccessReview = protocol.PathKubernetes + protocol.PathAccessReview

var prod = types.NamespacedName{Namespace: "team-a", Name: "prod"}

// aliceInfo is the user of the token "t-alice", who may reach every cluster in team-a.
var aliceInfo = authenticationv1.UserInfo{
	Username: "alice", UID: "u-1", Groups: []string{"dev", "system:authenticated"},
	Extra: map[string]authenticationv1.ExtraValue{"example.org/Team": {"red", "blue"}},
}

// bobInfo is the user of the token "t-bob", who may reach no cluster.
var bobInfo = authenticationv1.UserInfo{Username: "bob"}

// hubSide is a proxy with two servers, which stand for the agent of team-a/prod and for the hub's API server.
type hubSide struct {
	*httptest.Server
	handler *Handler
	agent   *arrivals
	hub     *arrivals
	members *fakeMembers
	log     *logLines
}

// fakeMembers has one transport for team-a/prod.
type fakeMembers struct {
	transport http.RoundTripper

	mu    sync.Mutex // guards the fields below
	err   error
	asked []types.NamespacedName
}

func (m *fakeMembers) Transport(_ context.Context, cluster types.NamespacedName) (http.RoundTripper, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, cluster)
	switch {
	case m.err != nil:
		return nil, m.err
	case cluster != prod:
		return nil, ErrUnknownCluster
	}
	return m.transport, nil
}

func (m *fakeMembers) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

func (m *fakeMembers) calls() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.asked)
}

// arrivals is a server that records the requests that arrive. The test sets its answers.
type arrivals struct {
	*httptest.Server

	mu      sync.Mutex // guards the fields below
	answer  http.HandlerFunc
	arrived []*http.Request
	bodies  []string
}

func newArrivals(t testing.TB, start func(http.Handler) *httptest.Server) *arrivals {
	a := &arrivals{}
	a.Server = start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		answer := a.answer
		a.arrived = append(a.arrived, r.Clone(context.Background()))
		a.mu.Unlock()
		if answer != nil {
			answer(w, r)
			return
		}
		body, _ := io.ReadAll(r.Body)
		a.mu.Lock()
		a.bodies = append(a.bodies, string(body))
		a.mu.Unlock()
	}))
	t.Cleanup(a.Close)
	return a
}

// startHTTP2 starts a server that supports HTTP/2, as API servers do.
func startHTTP2(handler http.Handler) *httptest.Server {
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	return server
}

func (a *arrivals) answerWith(f http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer = f
}

func (a *arrivals) all() []*http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.arrived
}

// only returns the only request that arrived.
func (a *arrivals) only(t *testing.T) *http.Request {
	t.Helper()
	all := a.all()
	if len(all) != 1 {
		t.Fatalf("%d requests arrived, want 1", len(all))
	}
	return all[0]
}

// toAgent sends requests that a tunnel would carry to a server.
type toAgent struct {
	host string
	next *http.Transport
}

func (a toAgent) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", a.host
	response, err := a.next.RoundTrip(out)
	if response != nil {
		response.Request = r
	}
	return response, err
}

// logLines collects a log.
type logLines struct {
	mu    sync.Mutex // guards lines
	lines []string
}

func (l *logLines) add(_, args string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, args)
}

// Write also collects the log of net/http.
func (l *logLines) Write(line []byte) (int, error) {
	l.add("", string(line))
	return len(line), nil
}

func (l *logLines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

func (l *logLines) logger() logr.Logger { return funcr.New(l.add, funcr.Options{Verbosity: 1}) }

func authenticateForTest(r *http.Request) (identity.Identity, error) {
	token, err := identity.Token(r)
	if err != nil {
		return identity.Identity{}, err
	}
	for known, info := range map[string]authenticationv1.UserInfo{"t-alice": aliceInfo, "t-bob": bobInfo} {
		if token == known {
			return identity.New(info)
		}
	}
	return identity.Identity{}, refusal.Unauthorized("the hub does not accept the token")
}

func authorizeForTest(_ context.Context, id identity.Identity, cluster types.NamespacedName) error {
	if id.User == "hub:alice" && cluster.Namespace == "team-a" {
		return nil
	}
	return refusal.Forbidden("user may not reach the cluster").About(cluster)
}

// testOptions returns the options of a proxy for tests, without Hub.
func testOptions(
	transport func(context.Context, types.NamespacedName) (http.RoundTripper, error), log logr.Logger,
) Options {
	return Options{
		Authenticate: authenticateForTest, Authorize: authorizeForTest, Transport: transport, Log: log,
		Hub: &rest.Config{Host: "http://127.0.0.1:1"},
	}
}

func newHubSide(t testing.TB, change ...func(*Options)) *hubSide {
	t.Helper()
	h := &hubSide{log: &logLines{}}
	h.agent, h.hub = newArrivals(t, httptest.NewServer), newArrivals(t, startHTTP2)
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64}
	t.Cleanup(transport.CloseIdleConnections)
	h.members = &fakeMembers{transport: toAgent{host: h.agent.Listener.Addr().String(), next: transport}}
	options := testOptions(h.members.Transport, h.log.logger())
	options.Hub = &rest.Config{Host: h.hub.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	for _, f := range change {
		f(&options)
	}
	handler, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	h.handler = handler
	h.Server = httptest.NewUnstartedServer(handler)
	h.Config.ErrorLog = log.New(h.log, "", 0)
	h.Start()
	t.Cleanup(h.Close)
	return h
}

// request returns a request of alice for a path in team-a/prod.
func (h *hubSide) request(t testing.TB, method, path string, body io.Reader, header http.Header) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, h.URL+path, body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer t-alice")
	maps.Copy(r.Header, header)
	return r
}

// do sends a request and returns the response and its body.
func (h *hubSide) do(t testing.TB, r *http.Request) (*http.Response, string) {
	t.Helper()
	response, err := h.Client().Transport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

const podsPath = "/k8s/clusters/team-a/prod/api/v1/pods"

// get calls do for the pods of team-a/prod.
func (h *hubSide) get(t testing.TB, header http.Header) (*http.Response, string) {
	t.Helper()
	return h.do(t, h.request(t, http.MethodGet, podsPath, nil, header))
}

// raw sends bytes unchanged, and returns the response.
func (h *hubSide) raw(t *testing.T, request string) (*http.Response, string) {
	t.Helper()
	conn, err := net.Dial("tcp", h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	return response, string(body)
}

// rawGet returns a GET request with additional header lines.
func rawGet(target string, lines ...string) string {
	return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: hub.example\r\n"+
		"Authorization: Bearer t-alice\r\nConnection: close\r\n%s\r\n",
		target, strings.Join(append(lines, ""), "\r\n"))
}

// wantStatus checks that a response is a Status that kubectl can print.
func wantStatus(
	t *testing.T, response *http.Response, body string, code int, reason metav1.StatusReason, words ...string,
) metav1.Status {
	t.Helper()
	var status metav1.Status
	if err := json.Unmarshal([]byte(body), &status); err != nil {
		t.Fatalf("response %d is not a Status: %q", response.StatusCode, body)
	}
	if response.StatusCode != code || status.Code != int32(code) || status.Reason != reason || status.Kind != "Status" ||
		status.APIVersion != "v1" || status.Status != metav1.StatusFailure ||
		response.Header.Get("Content-Type") != "application/json" {
		t.Errorf("got %d %s %s, want %d %s",
			response.StatusCode, response.Header.Get("Content-Type"), body, code, reason)
	}
	for _, word := range words {
		if !strings.Contains(status.Message, word) {
			t.Errorf("got message %q, want %q in it", status.Message, word)
		}
	}
	return status
}

func parseURL(t testing.TB, s string) *url.URL {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// contextWith returns a request's context with a call in it.
func contextWith(r *http.Request, c *call) context.Context {
	return context.WithValue(r.Context(), callKey{}, c)
}

func mustIdentity(t testing.TB) identity.Identity {
	t.Helper()
	id, err := identity.New(aliceInfo)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// answerRecorder records a response without a network.
type answerRecorder struct {
	header http.Header
	code   int
	body   strings.Builder
}

func (w *answerRecorder) Header() http.Header         { return w.header }
func (w *answerRecorder) WriteHeader(code int)        { w.code = code }
func (w *answerRecorder) Write(p []byte) (int, error) { return w.body.Write(p) }

func (w *answerRecorder) response(r *http.Request) *http.Response {
	return &http.Response{
		StatusCode: w.code, Status: http.StatusText(w.code), Header: w.header,
		Body: io.NopCloser(strings.NewReader(w.body.String())), Request: r,
	}
}
