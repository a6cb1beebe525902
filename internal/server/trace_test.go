// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/peer"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/tracing"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// span contains the parts of a collector's span that the test checks.
type span struct {
	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	Name         string `json:"name"`
	Links        []struct{ TraceID string }
}

// collector receives OTLP over HTTP.
type collector struct {
	*httptest.Server
	mu    sync.Mutex // guards the fields below
	spans map[string]span
	raw   string
}

func newCollector(t *testing.T) *collector {
	c := &collector{spans: map[string]span{}}
	c.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var request struct {
			ResourceSpans []struct{ ScopeSpans []struct{ Spans []span } }
		}
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = json.Unmarshal(body, &request)
		}
		if err != nil {
			t.Error(err)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.raw += string(body)
		for _, resource := range request.ResourceSpans {
			for _, s := range resource.ScopeSpans[0].Spans {
				c.spans[s.Name] = s
			}
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *collector) tracer(t *testing.T, service string, ratio float64) *tracing.Tracer {
	t.Helper()
	tracer, err := tracing.New(t.Context(), tracing.Options{Endpoint: c.URL, Ratio: ratio, Service: service,
		Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

// tracedReplica is a replica of the hub, linked to others.
type tracedReplica struct {
	*telemetry
	fleet *members.Registry
	links *peer.Network
}

// tracedReplicas returns two linked replicas. Only the first one starts traces.
func tracedReplicas(t *testing.T, c *collector) [2]tracedReplica {
	t.Helper()
	authority, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	secret := &corev1.Secret{}
	trust.WriteSecret(secret, trust.State{Active: authority})
	var listeners [2]net.Listener
	var addresses []string
	for i := range listeners {
		if listeners[i], err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
		addresses = append(addresses, listeners[i].Addr().String())
	}
	var all [2]tracedReplica
	for i, listener := range listeners {
		holder, err := trust.New([]string{"https://hub.test"}, nil, time.Now)
		if err == nil {
			err = holder.LoadAuthority(secret)
		}
		if err != nil {
			t.Fatal(err)
		}
		registry := members.New(logr.Discard(), time.Now)
		seen := observe(c.tracer(t, "drover-manager", float64(1-i)), registry.States, prometheus.NewRegistry())
		all[i] = tracedReplica{seen, registry, peer.New(peer.Options{
			Members: registry.Replicas, Transports: registry.Transports, TLS: holder.ReplicaTLS,
			Find: peer.Static(addresses), Calls: seen.hop, Log: logr.Discard(),
		})}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := all[i].links.Serve(ctx, listener); err != nil {
				t.Error(err)
			}
		}()
		t.Cleanup(func() { cancel(); <-ended; registry.Close() })
	}
	return all
}

// connectAgent connects the agent of a member with an API server to a replica.
func connectAgent(t *testing.T, at *members.Registry, name types.NamespacedName, tracer *tracing.Tracer,
	apiServer string) {
	t.Helper()
	base, err := url.Parse(apiServer)
	if err != nil {
		t.Fatal(err)
	}
	forwarding := tracer.Continue(forward.New(t.Context(), base, &http.Transport{}, logr.Discard()),
		func(r *http.Request) tracing.About {
			return tracing.Kubernetes(r, strings.TrimPrefix(r.URL.Path, protocol.PathKubernetes), "agent", "")
		})
	opened := testkit.OpenTunnel(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != protocol.PathReport {
			forwarding.ServeHTTP(w, r)
			return
		}
		_, _ = io.WriteString(w, "{}\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}))
	at.Add(members.Peer{Cluster: protocol.ClusterRef{Namespace: name.Namespace, Name: name.Name, UID: "uid"}, Key: "key",
		Instance: "a"}, opened.Session)
}

// One request of a user goes all the way: hub, the replica with the tunnel, agent, API server.
func TestTraceCoversTheWholePath(t *testing.T) {
	c := newCollector(t)
	arrived := make(chan http.Header, 1)
	apiServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- r.Header.Clone()
		_, _ = io.WriteString(w, "hush")
	}))
	t.Cleanup(apiServer.Close)
	all := tracedReplicas(t, c)
	member, agent := types.NamespacedName{Namespace: "team-a", Name: "prod"}, c.tracer(t, "drover-agent", 0)
	known := make(chan struct{}, 1)
	all[0].fleet.OnChange(func(types.NamespacedName) {
		select {
		case known <- struct{}{}:
		default:
		}
	})
	connectAgent(t, all[1].fleet, member, agent, apiServer.URL)
	for late := time.After(testkit.Patience * 20 * time.Second); !all[0].fleet.State(member).Connected(); {
		select {
		case <-known:
		case <-late:
			t.Fatal("the other replica does not know the member")
		}
	}
	handler, err := proxy.New(proxy.Options{
		Authenticate: func(*http.Request) (identity.Identity, error) {
			return identity.New(authenticationv1.UserInfo{Username: "alice-hush"})
		},
		Authorize: func(context.Context, identity.Identity, types.NamespacedName) error { return nil },
		Transport: transports{agents: all[0].fleet.Transports, states: all[0].fleet.States}.Transport,
		Hub:       &rest.Config{Host: "https://127.0.0.1:1"},
		Log:       logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	hub := httptest.NewServer(all[0].serve(handler))
	t.Cleanup(hub.Close)

	const strangers = "4bf92f3577b34da6a3ce929d0e0e4736"
	request, err := http.NewRequest(http.MethodGet,
		hub.URL+"/k8s/clusters/team-a/prod/api/v1/namespaces/x/secrets/hush?q=hush", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = http.Header{"Authorization": {"Bearer hush"},
		"Traceparent": {"00-" + strangers + "-00f067aa0ba902b7-01"}, "Tracestate": {"x=hush"}}
	response, err := hub.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if err != nil || response.StatusCode != http.StatusOK || string(body) != "hush" {
		t.Fatalf("got %s, %q, %v, want 200 and the secret body", response.Status, body, err)
	}
	hub.Close() // waits for the handler, and so for its span
	for _, tracer := range []*tracing.Tracer{all[0].tracer, all[1].tracer, agent} {
		if err := tracer.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	first, hop, last := c.spans["hub get secrets"], c.spans["replica get secrets"], c.spans["agent get secrets"]
	if len(c.spans) != 3 || first.TraceID == "" || first.TraceID != hop.TraceID || hop.TraceID != last.TraceID {
		t.Fatalf("got spans %+v, want one trace", c.spans)
	}
	if first.ParentSpanID != "" || hop.ParentSpanID != first.SpanID || last.ParentSpanID != hop.SpanID {
		t.Errorf("got spans %+v, want other parents", c.spans)
	}
	if first.TraceID == strangers || len(first.Links) != 1 || first.Links[0].TraceID != strangers {
		t.Errorf("got span %+v, want only a link to the user's own trace", first)
	}
	header := <-arrived
	if got, want := header.Get("Traceparent"), "00-"+last.TraceID+"-"+last.SpanID+"-01"; got != want ||
		header.Get("Tracestate") != "" {
		t.Errorf("the API server got %q, want %q", got, want)
	}
	if strings.Contains(c.raw, "hush") {
		t.Errorf("the spans %s contain private data, want none", c.raw)
	}
}
