// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationv1client "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1client "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
)

// benchRole says which part of the benchmark a process runs. It is empty for the test itself. benchProfile is the file
// for the manager's CPU profile.
const (
	benchRole    = "DROVER_BENCH_ROLE"
	benchProfile = "DROVER_BENCH_PROFILE"
)

// TestBenchmarkPart is not a test. BenchmarkRequest runs it in the processes on a request's path.
func TestBenchmarkPart(t *testing.T) {
	roles := map[string]func(*testing.T) string{"backend": benchBackend, "manager": benchManager, "agent": benchAgent}
	role := roles[os.Getenv(benchRole)]
	if role == nil {
		t.SkipNow()
	}
	if path := os.Getenv(benchProfile); path != "" {
		file, err := os.Create(filepath.Join(path, os.Getenv(benchRole)+".pprof"))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if err := pprof.StartCPUProfile(file); err != nil {
			t.Fatal(err)
		}
		defer pprof.StopCPUProfile()
	}
	address := role(t)
	fmt.Fprintln(os.Stderr, address)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the benchmark ends
}

// BenchmarkRequest measures a small GET in three ways: directly, on its whole path (client, manager, tunnel, agent, API
// server, each in its own process), and without the hub (client, agent, API server). Wall times depend on other load.
// The CPU time and the context switches of the manager and the agent for each request do not.
func BenchmarkRequest(b *testing.B) {
	backend := startPart(b, "backend")
	manager := startPart(b, "manager")
	user, agents, _ := strings.Cut(manager.address, " ")
	agent := startPart(b, "agent", "BENCH_HUB="+agents, "BENCH_BACKEND="+backend.address)
	own, bearer, _ := strings.Cut(agent.address, " ")
	for _, atOnce := range []int{1, 16} {
		for _, way := range []struct{ name, base string }{{"direct", backend.address},
			{"hub", user + "/k8s/clusters/bench/member"}, {"agent", own}} {
			for _, what := range []struct{ name, path string }{{"GET", "/api/v1/namespaces/a/configmaps/b"},
				{"LIST", "/api/v1/namespaces"}} {
				b.Run(fmt.Sprintf("%s/%s/%d", what.name, way.name, atOnce), func(b *testing.B) {
					client := &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
						TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
					defer client.CloseIdleConnections()
					benchGet(b, client, way.base+what.path, bearer)
					parts := map[string]*part{"manager": manager, "agent": agent, "backend": backend}
					before := map[string]usage{}
					for name, p := range parts {
						before[name] = p.usage(b)
					}
					b.ResetTimer()
					benchRepeat(b, client, way.base+what.path, bearer, atOnce)
					b.StopTimer()
					for name, p := range parts {
						after := p.usage(b)
						b.ReportMetric(float64(after.cpu-before[name].cpu)/float64(time.Microsecond)/float64(b.N), name+"-µs/op")
						b.ReportMetric(float64(after.switches-before[name].switches)/float64(b.N), name+"-switches/op")
					}
				})
			}
		}
	}
}

func benchRepeat(b *testing.B, client *http.Client, url, bearer string, atOnce int) {
	var left atomic.Int64
	left.Store(int64(b.N))
	var running sync.WaitGroup
	for range atOnce {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				benchGet(b, client, url, bearer)
			}
		})
	}
	running.Wait()
}

func benchGet(b *testing.B, client *http.Client, url, bearer string) {
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Error(err)
		return
	}
	request.Header.Set("Authorization", "Bearer "+bearer)
	request.Header.Set("User-Agent", "bench")
	response, err := client.Do(request)
	if err != nil {
		b.Error(err)
		return
	}
	defer response.Body.Close()
	if n, err := io.Copy(io.Discard, response.Body); err != nil || n < 500 || response.StatusCode != http.StatusOK {
		b.Errorf("answered %s with %d bytes, %v", response.Status, n, err)
	}
}

// part is a process on the path.
type part struct {
	pid     int
	address string
}

func startPart(b *testing.B, role string, env ...string) *part {
	b.Helper()
	command := exec.CommandContext(context.Background(), os.Args[0], "-test.run=^TestBenchmarkPart$")
	command.Env = append(append(os.Environ(), benchRole+"="+role), env...)
	keepOpen, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	said, err := command.StderrPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = keepOpen.Close()
		_ = command.Wait()
	})
	line := make([]byte, 4096)
	n, err := said.Read(line)
	if err != nil {
		b.Fatal(err)
	}
	go func() { _, _ = io.Copy(os.Stderr, said) }()
	return &part{pid: command.Process.Pid, address: strings.TrimSpace(string(line[:n]))}
}

// usage is the resource usage of a process so far.
type usage struct {
	cpu      time.Duration
	switches int
}

func (p *part) usage(b *testing.B) usage {
	b.Helper()
	var u usage
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", p.pid))
	if err != nil {
		b.Fatal(err)
	}
	for _, task := range tasks {
		if text, err := os.ReadFile(task + "/schedstat"); err == nil {
			ns, _ := strconv.ParseInt(strings.Fields(string(text))[0], 10, 64)
			u.cpu += time.Duration(ns)
		}
		text, err := os.ReadFile(task + "/status")
		if err != nil {
			continue // the thread has ended
		}
		for line := range bytes.Lines(text) {
			if rest, found := bytes.CutPrefix(line, []byte("voluntary_ctxt_switches:")); found {
				n, _ := strconv.Atoi(string(bytes.TrimSpace(rest)))
				u.switches += n
			}
		}
	}
	return u
}

// benchBackend stands in for a member's API server.
func benchBackend(t *testing.T) string {
	item := `{"metadata":{"name":"b","namespace":"a","labels":{"x":"` + strings.Repeat("y", 500) + `"}}}`
	list := `{"items":[` + strings.Repeat(item+",", 8) + item + `]}`
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Audit-Id", "x")
		w.Header().Set("Cache-Control", "no-cache, private")
		w.WriteHeader(http.StatusOK)
		if strings.HasSuffix(r.URL.Path, "/namespaces") {
			_, _ = io.WriteString(w, list)
			return
		}
		_, _ = io.WriteString(w, item)
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.URL
}

// benchAgent forwards requests from the hub to the backend.
func benchAgent(t *testing.T) string {
	config := &rest.Config{Host: os.Getenv("BENCH_BACKEND"), BearerToken: "agent",
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	transport, err := forward.Transport(config)
	if err != nil {
		t.Fatal(err)
	}
	base, err := forward.BaseURL(config)
	if err != nil {
		t.Fatal(err)
	}
	dialer := &tunnel.Dialer{TLS: &tls.Config{InsecureSkipVerify: true}}
	conn, err := dialer.Dial(t.Context(), os.Getenv("BENCH_HUB"), nil)
	if err != nil {
		t.Fatal(err)
	}
	next := forward.New(t.Context(), base, transport, logr.Discard())
	go func() {
		_ = conn.Serve(t.Context(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(r.URL.Path, protocol.PathKubernetes) {
				next.ServeHTTP(w, r)
				return
			}
			_ = http.NewResponseController(w).Flush() // an agent whose report ends leaves the tunnel
			<-r.Context().Done()
		}))
	}()
	address, bearer := benchDirect(t, next)
	return address + " " + bearer
}

// benchManager serves the port as New creates it, with reviews that always permit. Its agents connect to a separate
// address.
func benchManager(t *testing.T) string {
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, trust.State{Active: ca})
	holder, err := trust.New([]string{"https://127.0.0.1"}, nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.LoadAuthority(secret); err != nil {
		t.Fatal(err)
	}
	registry := members.New(logr.Discard(), time.Now)
	observed := observe(nil, registry.States, prometheus.NewRegistry())
	access := identity.NewAccess(permitting{})
	handler, err := proxy.New(proxy.Options{
		Authenticate: heldByUser(identity.NewAuthenticator(reviewing{}, identity.Audiences{}).Authenticate),
		Authorize:    identity.Chain{access.ClusterProxy}.Authorize,
		Transport:    transports{agents: registry.Transports, states: registry.States}.Transport,
		Hub:          &rest.Config{Host: "https://127.0.0.1:1"},
		Observer:     observed.proxy.observer(),
		Limiter:      limit.New(limit.Defaults(), observed.proxy.limits()),
		Log:          logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	log, err := audit.Open(audit.Settings{}, audit.Observer{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		Trust: holder, Members: registry, Proxy: handler, Audit: log, Stop: Stop{Calls: request.NewGroup()},
		Registration: &registration.Server{},
		telemetry:    observed, pace: newPace(observed.turnedAway.Inc), Tunnel: observed.tunnels.observe(tunnel.Config{}),
	}
	return benchListen(t, s.port(s.handler(t.Context(), t.Context()))) + " wss" +
		strings.TrimPrefix(benchListen(t, s.port(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			session, err := tunnel.Accept(w, r, s.Tunnel)
			if err != nil {
				t.Error(err)
				return
			}
			registry.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: "bench", Name: "member"}, Key: "k"}, session)
		}))), "https")
}

func benchListen(t *testing.T, server *http.Server) string {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.ServeTLS(smallBuffers{listener}, "", "") }()
	return "https://" + listener.Addr().String()
}

// reviewing accepts every token.
type reviewing struct {
	authenticationv1client.TokenReviewInterface
}

func (reviewing) Create(_ context.Context, review *authenticationv1.TokenReview,
	_ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	review.Status = authenticationv1.TokenReviewStatus{Authenticated: true,
		User: authenticationv1.UserInfo{Username: "alice", UID: "1", Groups: []string{"dev", "system:authenticated"}}}
	return review, nil
}

// permitting permits everything.
type permitting struct {
	authorizationv1client.SubjectAccessReviewInterface
}

func (permitting) Create(_ context.Context, review *authorizationv1.SubjectAccessReview,
	_ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	review.Status.Allowed = true
	return review, nil
}
