// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// otlpRequest is the JSON form of the OTLP 1 message ExportTraceServiceRequest. It contains only the fields that
// Drover's spans need. IDs are hexadecimal, enums are numbers, and 64-bit numbers are strings.
type otlpRequest struct {
	ResourceSpans []otlpResourceSpans `json:"resourceSpans"`
}

type otlpResourceSpans struct {
	Resource   otlpResource     `json:"resource"`
	ScopeSpans []otlpScopeSpans `json:"scopeSpans"`
}

type otlpResource struct {
	Attributes []otlpAttribute `json:"attributes,omitempty"`
}

type otlpScopeSpans struct {
	Scope otlpScope  `json:"scope"`
	Spans []otlpSpan `json:"spans"`
}

type otlpScope struct {
	Name string `json:"name"`
}

type otlpSpan struct {
	otlpContext
	ParentSpanID string          `json:"parentSpanId,omitempty"`
	Name         string          `json:"name"`
	Kind         int             `json:"kind"`
	Start        string          `json:"startTimeUnixNano"`
	End          string          `json:"endTimeUnixNano"`
	Attributes   []otlpAttribute `json:"attributes,omitempty"`
	Links        []otlpContext   `json:"links,omitempty"`
	Status       *otlpStatus     `json:"status,omitempty"`
}

type otlpContext struct {
	TraceID    string `json:"traceId"`
	SpanID     string `json:"spanId"`
	TraceState string `json:"traceState,omitempty"`
	Flags      uint32 `json:"flags,omitempty"`
}

type otlpStatus struct {
	Message string `json:"message,omitempty"`
	Code    int    `json:"code"`
}

type otlpAttribute struct {
	Key   string    `json:"key"`
	Value otlpValue `json:"value"`
}

type otlpValue struct {
	String *string `json:"stringValue,omitempty"`
	Int    *string `json:"intValue,omitempty"`
	Bool   *bool   `json:"boolValue,omitempty"`
}

// encode returns a request with the spans of one Tracer. It takes the resource and scope from the first span, because
// they are the same for all spans.
func encode(spans []sdk.ReadOnlySpan) otlpRequest {
	if len(spans) == 0 {
		return otlpRequest{ResourceSpans: []otlpResourceSpans{}}
	}
	of := otlpScopeSpans{Scope: otlpScope{Name: spans[0].InstrumentationScope().Name}}
	for _, span := range spans {
		of.Spans = append(of.Spans, encodeSpan(span))
	}
	about := otlpResource{Attributes: encodeAttributes(spans[0].Resource().Attributes())}
	return otlpRequest{ResourceSpans: []otlpResourceSpans{{Resource: about, ScopeSpans: []otlpScopeSpans{of}}}}
}

func encodeSpan(span sdk.ReadOnlySpan) otlpSpan {
	out := otlpSpan{
		otlpContext: encodeContext(span.SpanContext()), Name: span.Name(), Kind: int(span.SpanKind()),
		Start: nanoseconds(span.StartTime()), End: nanoseconds(span.EndTime()),
		Attributes: encodeAttributes(span.Attributes()),
	}
	if parent := span.Parent(); parent.IsValid() {
		out.ParentSpanID = parent.SpanID().String()
	}
	for _, link := range span.Links() {
		out.Links = append(out.Links, encodeContext(link.SpanContext))
	}
	if status := span.Status(); status.Code == codes.Error {
		out.Status = &otlpStatus{Message: status.Description, Code: 2}
	}
	return out
}

func encodeContext(c trace.SpanContext) otlpContext {
	return otlpContext{TraceID: c.TraceID().String(), SpanID: c.SpanID().String(), TraceState: c.TraceState().String(),
		Flags: uint32(c.TraceFlags())}
}

// encodeAttributes encodes lists as text. Drover's spans contain no lists.
func encodeAttributes(attributes []attribute.KeyValue) []otlpAttribute {
	var out []otlpAttribute
	for _, a := range attributes {
		var value otlpValue
		switch a.Value.Type() {
		case attribute.INT64:
			value.Int = new(strconv.FormatInt(a.Value.AsInt64(), 10))
		case attribute.BOOL:
			value.Bool = new(a.Value.AsBool())
		default:
			value.String = new(a.Value.String())
		}
		out = append(out, otlpAttribute{Key: string(a.Key), Value: value})
	}
	return out
}

func nanoseconds(t time.Time) string { return strconv.FormatInt(t.UnixNano(), 10) }
