// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"

	"github.com/drover-dev/drover/internal/tracing"
)

const (
	strangersTrace  = "4bf92f3577b34da6a3ce929d0e0e4736"
	strangersParent = "00-" + strangersTrace + "-00f067aa0ba902b7-01"
)

// collector accepts OTLP over HTTP on the loopback interface.
type collector struct {
	*httptest.Server
	mu      sync.Mutex
	raw     []string
	spans   []span
	headers http.Header
	status  int
}

// span holds the fields that the tests check. It is decoded as in a collector, by the names of OTLP's JSON form.
type span struct {
	TraceID      string `json:"traceId"`
	SpanID       string `json:"spanId"`
	ParentSpanID string `json:"parentSpanId"`
	Name         string `json:"name"`
	Kind         int    `json:"kind"`
	Start        string `json:"startTimeUnixNano"`
	End          string `json:"endTimeUnixNano"`
	Attributes   []struct {
		Key   string         `json:"key"`
		Value map[string]any `json:"value"`
	} `json:"attributes"`
	Links []struct {
		TraceID string `json:"traceId"`
	} `json:"links"`
	Status struct {
		Code int `json:"code"`
	} `json:"status"`
}

func (s span) attribute(key string) any {
	for _, a := range s.Attributes {
		if a.Key == key {
			for _, v := range a.Value {
				return v
			}
		}
	}
	return nil
}

func newCollector(t *testing.T) *collector {
	c := &collector{status: http.StatusOK}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c.mu.Lock()
		defer c.mu.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("the collector got %s %s, %s, %v, want JSON at /v1/traces", r.Method, r.URL, r.Header, err)
		}
		var request struct {
			ResourceSpans []struct {
				ScopeSpans []struct{ Spans []span }
			}
		}
		if err := json.Unmarshal(body, &request); err != nil {
			t.Error(err)
		}
		for _, resource := range request.ResourceSpans {
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
		c.raw, c.headers = append(c.raw, string(body)), r.Header
		w.WriteHeader(c.status)
	}))
	t.Cleanup(c.Close)
	return c
}

// after closes the tracers, so that all spans have arrived, and returns the spans by name.
func (c *collector) after(t *testing.T, tracers ...*tracing.Tracer) map[string]span {
	t.Helper()
	for _, tracer := range tracers {
		if err := tracer.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	byName := map[string]span{}
	for _, s := range c.spans {
		byName[s.Name] = s
	}
	return byName
}

func (c *collector) tracer(t *testing.T, ratio float64, environ ...string) *tracing.Tracer {
	t.Helper()
	tracer, err := tracing.New(t.Context(), tracing.Options{
		Endpoint: c.URL, Ratio: ratio, Service: "test", Version: "v1", Instance: "a", Log: logr.Discard(),
		Environ: env(environ...),
	})
	if err != nil {
		t.Fatal(err)
	}
	return tracer
}

func env(pairs ...string) func(string) (string, bool) {
	return func(name string) (string, bool) {
		for n := 0; n+1 < len(pairs); n += 2 {
			if pairs[n] == name {
				return pairs[n+1], true
			}
		}
		return "", false
	}
}

func about(name string) func(*http.Request) tracing.About {
	return func(*http.Request) tracing.About {
		return tracing.About{Name: name, Cluster: "team-a/prod", Verb: "list", Resource: "pods"}
	}
}

// ask serves one request and returns the header that the handler saw.
func ask(serve func(http.Handler) http.Handler, status int, header ...string) http.Header {
	var seen http.Header
	handler := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Clone()
		w.WriteHeader(status)
	}))
	r := httptest.NewRequest(http.MethodGet, "https://hub/k8s/clusters/team-a/prod/api/v1/secrets/hush?token=hush",
		strings.NewReader("hush"))
	r.Header.Set("Authorization", "Bearer hush")
	for n := 0; n+1 < len(header); n += 2 {
		r.Header.Set(header[n], header[n+1])
	}
	handler.ServeHTTP(httptest.NewRecorder(), r)
	return seen
}

func entrance(t *tracing.Tracer) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler { return t.Entrance(next, about("hub")) }
}

func continued(t *tracing.Tracer) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler { return t.Continue(next, about("agent")) }
}

func TestEntrance(t *testing.T) {
	t.Run("a client's trace is linked and never continued", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 1)
		seen := ask(entrance(tracer), http.StatusOK, "Traceparent", strangersParent, "Tracestate", "them=1")
		got := c.after(t, tracer)["hub"]
		if got.TraceID == strangersTrace || got.ParentSpanID != "" || len(got.Links) != 1 ||
			got.Links[0].TraceID != strangersTrace {
			t.Errorf("the span is %+v, want a new trace with a link to the caller's trace", got)
		}
		if want := "00-" + got.TraceID + "-" + got.SpanID + "-01"; seen.Get("Traceparent") != want ||
			seen.Get("Tracestate") != "" {
			t.Errorf("got %q and %q in the handler, want %q", seen.Get("Traceparent"), seen.Get("Tracestate"), want)
		}
		if got.Kind != 2 || got.Start == "" || got.End < got.Start {
			t.Errorf("the span is %+v, want a server span with its times", got)
		}
	})
	t.Run("a client cannot request sampling", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 0)
		seen := ask(entrance(tracer), http.StatusOK, "Traceparent", strangersParent)
		if spans := c.after(t, tracer); len(spans) > 0 || !strings.HasSuffix(seen.Get("Traceparent"), "-00") ||
			strings.Contains(seen.Get("Traceparent"), strangersTrace) {
			t.Errorf("got spans %+v, and %q in the handler, want no span", spans, seen.Get("Traceparent"))
		}
	})
	t.Run("a client's trace is not passed on when tracing is off", func(t *testing.T) {
		if seen := ask(entrance(nil), http.StatusOK, "Traceparent", strangersParent, "Tracestate",
			"them=1"); seen.Get("Traceparent")+seen.Get("Tracestate") != "" {
			t.Errorf("the next server gets %v, want no trace of the caller", seen)
		}
	})
	t.Run("a span describes the request and the response, without secrets", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 1)
		ask(entrance(tracer), http.StatusBadGateway)
		got := c.after(t, tracer)["hub"]
		for key, want := range map[string]any{
			"http.request.method": "GET", "http.response.status_code": "502",
			tracing.AttributeCluster: "team-a/prod", tracing.AttributeVerb: "list", tracing.AttributeResource: "pods",
		} {
			if got.attribute(key) != want {
				t.Errorf("%s is %v, want %v", key, got.attribute(key), want)
			}
		}
		if len(got.Attributes) != 5 || got.Status.Code != 2 {
			t.Errorf("the span is %+v, want five attributes and an error", got)
		}
		if all := strings.Join(c.raw, ""); strings.Contains(all, "hush") || !strings.Contains(all, `"service.name"`) {
			t.Errorf("the collector got %v, want the service's name and no secret", all)
		}
	})
	t.Run("a request that ends without a response is an error", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 1)
		handler := tracer.Entrance(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
			about("hub"))
		func() {
			defer func() {
				if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
					t.Error("the panic did not reach net/http")
				}
			}()
			handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
		}()
		if got := c.after(t, tracer)["hub"]; got.Status.Code != 2 || got.attribute("http.response.status_code") != nil {
			t.Errorf("the span is %+v, want an error without a response code", got)
		}
	})
}

func TestContinue(t *testing.T) {
	t.Run("a sampled trace continues in a child span", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 0)
		seen := ask(continued(tracer), http.StatusOK, "Traceparent", strangersParent)
		got := c.after(t, tracer)["agent"]
		if got.TraceID != strangersTrace || got.ParentSpanID != "00f067aa0ba902b7" ||
			!strings.Contains(seen.Get("Traceparent"), got.SpanID) {
			t.Errorf("got span %+v, and %q in the handler, want a child of the caller's span", got, seen.Get("Traceparent"))
		}
	})
	for name, parent := range map[string]string{
		"a trace that is not sampled is passed on unchanged": strings.TrimSuffix(strangersParent, "1") + "0",
		"without a trace none is created":                    "",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCollector(t)
			tracer := c.tracer(t, 1)
			seen := ask(continued(tracer), http.StatusOK, "Traceparent", parent)
			if spans := c.after(t, tracer); len(spans) > 0 || seen.Get("Traceparent") != parent {
				t.Errorf("got spans %+v, and %q in the handler, want no span and the caller's header",
					spans, seen.Get("Traceparent"))
			}
		})
	}
	t.Run("a trace is passed on unchanged when tracing is off", func(t *testing.T) {
		if seen := ask(continued(nil), http.StatusOK, "Traceparent",
			strangersParent); seen.Get("Traceparent") != strangersParent {
			t.Errorf("the next server gets %v, want the caller's trace", seen)
		}
	})
}

func TestNew(t *testing.T) {
	t.Run("credentials for the collector come from the environment", func(t *testing.T) {
		c := newCollector(t)
		tracer := c.tracer(t, 1, "OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20ours, x-tenant=a")
		ask(entrance(tracer), http.StatusOK)
		c.after(t, tracer)
		if c.headers.Get("Authorization") != "Bearer ours" || c.headers.Get("X-Tenant") != "a" {
			t.Errorf("the collector got %v, want the configured headers", c.headers)
		}
	})
	for name, tt := range map[string]struct {
		endpoint string
		environ  []string
	}{
		"tracing is off without an endpoint":  {},
		"OTEL_SDK_DISABLED turns tracing off": {"http://127.0.0.1:1", []string{"OTEL_SDK_DISABLED", "true"}},
	} {
		t.Run(name, func(t *testing.T) {
			tracer, err := tracing.New(t.Context(), tracing.Options{Endpoint: tt.endpoint, Environ: env(tt.environ...)})
			if tracer != nil || err != nil || tracer.Close(t.Context()) != nil {
				t.Errorf("got %v, %v, want no tracer and no error", tracer, err)
			}
		})
	}
	for name, tt := range map[string]struct {
		endpoint, want string
		environ        []string
	}{
		"an endpoint needs a scheme":            {"collector:4318", "not a URL of the form", nil},
		"a password in the endpoint is refused": {"http://me:hush@collector:4318", "OTEL_EXPORTER_OTLP_HEADERS", nil},
		"a malformed header is refused": {"http://collector:4318", "OTEL_EXPORTER_OTLP_HEADERS",
			[]string{"OTEL_EXPORTER_OTLP_HEADERS", "hush"}},
		"a missing CA is reported": {"https://collector:4318", "OTEL_EXPORTER_OTLP_CERTIFICATE",
			[]string{"OTEL_EXPORTER_OTLP_CERTIFICATE", "/nonexistent"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tracing.New(t.Context(), tracing.Options{Endpoint: tt.endpoint, Environ: env(tt.environ...)})
			if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("got %v, want the error of this case, without the secret", err)
			}
		})
	}
}

func TestUnavailableCollectorIsLoggedOnce(t *testing.T) {
	c := newCollector(t)
	c.status = http.StatusServiceUnavailable
	var lines []string
	var mu sync.Mutex
	log := funcr.New(func(_, args string) { mu.Lock(); defer mu.Unlock(); lines = append(lines, args) }, funcr.Options{})
	tracer, err := tracing.New(t.Context(), tracing.Options{Endpoint: c.URL, Ratio: 1, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	ask(entrance(tracer), http.StatusOK)
	if err := tracer.Close(context.Background()); err != nil {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(lines) != 1 || !strings.Contains(lines[0], "503") {
		t.Errorf("got log lines %q, want one line with 503", lines)
	}
}

// BenchmarkEntrance measures the cost of tracing for a request. It should be nothing if tracing is off, and little if
// the request is not sampled. Compare with: go test -bench . -count 10 ./internal/tracing | benchstat -
func BenchmarkEntrance(b *testing.B) {
	tracer := func(ratio float64) *tracing.Tracer {
		t, err := tracing.New(b.Context(), tracing.Options{Endpoint: "http://127.0.0.1:1", Ratio: ratio, Log: logr.Discard()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = t.Close(context.Background()) }) // no collector receives the spans
		return t
	}
	nothing := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, handler := range map[string]http.Handler{
		"off":         (*tracing.Tracer)(nil).Entrance(nothing, about("hub")),
		"not sampled": tracer(0).Entrance(nothing, about("hub")),
		"sampled":     tracer(1).Entrance(nothing, about("hub")),
	} {
		b.Run(name, func(b *testing.B) {
			r, w := httptest.NewRequest(http.MethodGet, "/k8s/local/api", nil), httptest.NewRecorder()
			b.ReportAllocs()
			for b.Loop() {
				handler.ServeHTTP(w, r)
			}
		})
	}
}

func TestTracingThatIsOffAllocatesNothing(t *testing.T) {
	handler := (*tracing.Tracer)(nil).Entrance(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), about("hub"))
	r, w := httptest.NewRequest(http.MethodGet, "/k8s/local/api", nil), httptest.NewRecorder()
	if n := testing.AllocsPerRun(100, func() { handler.ServeHTTP(w, r) }); n > 0 {
		t.Errorf("got %v allocations per request, want 0", n)
	}
}
