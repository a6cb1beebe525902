// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing creates OpenTelemetry spans for requests, and propagates the trace context from the hub to its
// replicas, agents and API servers.
//
// A nil *Tracer does nothing. Spans never contain the name of a person, a path, a query, a header or a body.
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

// Attributes that OpenTelemetry's semantic conventions do not define.
const (
	// AttributeCluster is the namespace and name of a Cluster.
	AttributeCluster = "drover.cluster"
	// AttributeVerb is the RBAC verb. AttributeResource is resource[.group][/subresource].
	AttributeVerb     = "drover.verb"
	AttributeResource = "drover.resource"

	attributeStatus = "http.response.status_code"
	attributeMethod = "http.request.method"
)

// maxText is the maximum length of a string in a span, in bytes. The limit is needed because unauthenticated clients
// can also send requests.
const maxText = 128

// Options configures a Tracer.
type Options struct {
	// Endpoint is the base URL of a collector that accepts OTLP over HTTP. The tracer appends /v1/traces to it. An
	// empty Endpoint turns tracing off.
	Endpoint string
	// Ratio is the fraction of requests that are traced, from 0 to 1. It applies to traces that start in this process.
	// If a request arrives with a trusted trace context, the sampling decision in that context applies.
	Ratio float64
	// Service, Version and Instance identify this process. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take
	// precedence over them.
	Service, Version, Instance string
	// Environ looks up an OTEL_* variable in the same way as os.LookupEnv.
	Environ func(string) (string, bool)
	Log     logr.Logger
}

// Tracer creates spans. Use New to create a Tracer. A nil Tracer does nothing. All methods are safe for concurrent use.
type Tracer struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
}

// New returns a tracer, or nil if tracing is off. The caller must close it.
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

// Close sends the spans that have not been sent yet. It stops when ctx is done.
func (t *Tracer) Close(ctx context.Context) error {
	if t == nil {
		return nil
	}
	if err := t.provider.Shutdown(ctx); err != nil {
		return fmt.Errorf("send the last spans: %w", err)
	}
	return nil
}

// About contains the span attributes that describe a request.
type About struct {
	// Name is the name of the span. The number of different names should be small.
	Name string
	// Cluster, Verb and Resource are omitted if they are empty.
	Cluster, Verb, Resource string
}

// Entrance serves requests from clients outside Drover. Each request starts a new trace. A trace context in the
// client's headers is only added as a link. A client that could continue a trace could control sampling, and add spans
// to other clients' traces. These headers are removed even if tracing is off.
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
			// the trace state is dropped because it is free text
			options = append(options, trace.WithLinks(trace.Link{SpanContext: named.WithTraceState(trace.TraceState{})}))
		}
		t.serve(w, r, next, about(r), options)
	})
}

// Continue serves requests from other parts of Drover and continues their traces. Requests without a trace context are
// not traced.
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

// serve serves a request in a new span. It replaces the trace context in the request's headers, so that this span
// becomes the parent of the spans downstream.
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

// named returns the request's context, extended with the trace context from the request's headers.
func named(r *http.Request) context.Context {
	return propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
}

// forget removes the headers that contain the trace context.
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

// Kubernetes returns the attributes of a request to a Kubernetes API. The path argument is the path in that API, and
// where is the part of Drover that serves the request. The cluster argument may be empty.
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

// Endpoint returns the value of OTEL_EXPORTER_OTLP_ENDPOINT. It returns "" if the variable is not set.
func Endpoint(environ func(string) (string, bool)) string {
	return first(environ, "OTEL_EXPORTER_OTLP_ENDPOINT")
}
