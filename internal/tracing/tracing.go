// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing makes OpenTelemetry spans of requests and hands their trace on, from hub to replica, agent and API
// server.
//
// A nil *Tracer traces nothing and costs nothing. No span has a name of a person, a path, a query, a header or a body.
package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/drover-dev/drover/internal/request"
)

// Attributes that are not those of OpenTelemetry's conventions.
const (
	// AttributeCluster is the namespace and name of a Cluster.
	AttributeCluster = "drover.cluster"
	// AttributeVerb is as in RBAC, AttributeResource is resource[.group][/subresource].
	AttributeVerb     = "drover.verb"
	AttributeResource = "drover.resource"

	attributeStatus = "http.response.status_code"
	attributeMethod = "http.request.method"
)

// maxText bounds a text in a span, in bytes: unauthenticated clients send requests, too.
const maxText = 128

// Options of a Tracer.
type Options struct {
	// Endpoint is the base URL of a collector that takes OTLP over HTTP, to which /v1/traces is added. Empty turns tracing
	// off.
	Endpoint string
	// Ratio of requests that are traced, of those that begin here: 0 to 1. Those that come with a trusted trace follow
	// that.
	Ratio float64
	// Service, Version and Instance name this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
	Service, Version, Instance string
	// Environ has OTEL_* variables: os.LookupEnv.
	Environ func(string) (string, bool)
	Log     logr.Logger
}

// Tracer makes spans. New makes it; nil is one that does nothing. All methods may be called concurrently.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New makes a tracer, nil if tracing is off. Close it.
func New(ctx context.Context, o Options) (*Tracer, error) {
	if o.Environ == nil {
		o.Environ = func(string) (string, bool) { return "", false }
	}
	disabled, _ := o.Environ("OTEL_SDK_DISABLED")
	exporter, err := newExporter(o)
	if err != nil {
		return nil, fmt.Errorf("set up tracing: %w", err)
	}
	if exporter == nil || disabled == "true" {
		return nil, nil
	}
	about, err := resource.New(ctx, resource.WithTelemetrySDK(), resource.WithAttributes(
		attribute.String("service.name", o.Service), attribute.String("service.version", o.Version),
		attribute.String("service.instance.id", o.Instance),
	), resource.WithFromEnv())
	if err != nil && !errors.Is(err, resource.ErrPartialResource) && !errors.Is(err, resource.ErrSchemaURLConflict) {
		return nil, fmt.Errorf("set up tracing: read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	provider := sdk.NewTracerProvider(
		sdk.WithBatcher(exporter), sdk.WithResource(about),
		sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(o.Ratio))),
	)
	return &Tracer{provider: provider, tracer: provider.Tracer("github.com/drover-dev/drover")}, nil
}

// Close sends what is not sent yet, until ctx ends.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// About has the attributes of a span that describe a request.
type About struct {
	// Name of the span. It should have few values.
	Name string
	// Cluster, Verb and Resource are left out where they are empty.
	Cluster, Verb, Resource string
}

// Entrance serves requests of clients outside of Drover. Each begins a new trace: a client that could continue one
// would decide what is sampled, and could add spans to the traces of others. The trace that the client names becomes a
// link. Its headers are removed, whether or not tracing is on.
func (t *Tracer) Entrance(next http.Handler, about func(*http.Request) About) http.Handler {
	if t == nil {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			forget(r.Header)
			next.ServeHTTP(w, r)
		})
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		options := []trace.SpanStartOption{trace.WithNewRoot()}
		if named := trace.SpanContextFromContext(named(r)); named.IsValid() {
			// the state is free text
			options = append(options, trace.WithLinks(trace.Link{SpanContext: named.WithTraceState(trace.TraceState{})}))
		}
		t.serve(w, r, next, about(r), options)
	})
}

// Continue serves requests of parts of Drover that have a trace already. Without one nothing is traced.
func (t *Tracer) Continue(next http.Handler, about func(*http.Request) About) http.Handler {
	if t == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := named(r)
		if !trace.SpanContextFromContext(ctx).IsSampled() {
			next.ServeHTTP(w, r)
			return
		}
		t.serve(w, r.WithContext(ctx), next, about(r), nil)
	})
}

// serve serves a request in a span of its own, which the request's header names from then on.
func (t *Tracer) serve(w http.ResponseWriter, r *http.Request, next http.Handler, about About,
	options []trace.SpanStartOption) {
	options = append(options, trace.WithSpanKind(trace.SpanKindServer),
		trace.WithAttributes(about.attributes(r.Method)...))
	ctx, span := t.tracer.Start(r.Context(), clip(about.Name), options...)
	defer span.End()
	forget(r.Header)
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(r.Header))
	if !span.IsRecording() {
		next.ServeHTTP(w, r.WithContext(ctx))
		return
	}
	recorder := request.NewRecorder(w)
	defer func() {
		status := recorder.Status()
		if status == request.Aborted {
			span.SetStatus(codes.Error, "no answer")
			return
		}
		span.SetAttributes(attribute.Int(attributeStatus, status))
		if status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(status))
		}
	}()
	next.ServeHTTP(recorder, r.WithContext(ctx))
	recorder.Done()
}

func (a About) attributes(method string) []attribute.KeyValue {
	all := []attribute.KeyValue{attribute.String(attributeMethod, clip(method))}
	for _, entry := range []struct{ key, value string }{
		{AttributeCluster, a.Cluster}, {AttributeVerb, a.Verb}, {AttributeResource, a.Resource},
	} {
		if entry.value != "" {
			all = append(all, attribute.String(entry.key, clip(entry.value)))
		}
	}
	return all
}

// named returns r's context with the trace that its header names.
func named(r *http.Request) context.Context {
	return propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
}

// forget removes the fields of a header that name a trace.
func forget(h http.Header) {
	delete(h, "Traceparent")
	delete(h, "Tracestate")
}

func clip(s string) string {
	if len(s) > maxText {
		return strings.Clone(s[:maxText])
	}
	return s
}

// Kubernetes returns the attributes of a request to a Kubernetes API. path is the path in that API, and where names the
// part of Drover that serves it. cluster may be empty.
func Kubernetes(r *http.Request, path, where, cluster string) About {
	info := request.Of(r, path)
	resource := info.Resource
	if info.Group != "" {
		resource += "." + info.Group
	}
	if info.Subresource != "" {
		resource += "/" + info.Subresource
	}
	return About{Name: strings.TrimSpace(where + " " + info.Verb + " " + resource), Cluster: cluster, Verb: info.Verb,
		Resource: resource}
}

// Endpoint returns OTEL_EXPORTER_OTLP_ENDPOINT of an environment, empty if it is not set.
func Endpoint(environ func(string) (string, bool)) string {
	return first(environ, "OTEL_EXPORTER_OTLP_ENDPOINT")
}
