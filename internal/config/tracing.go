// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "net/url"

// defaultSampleRatio suits a busy hub. To diagnose a problem, the ratio can temporarily be set to 1.
const defaultSampleRatio = 0.01

// Tracing configures the OpenTelemetry spans of users' requests. The spans are sent to a collector.
type Tracing struct {
	// Endpoint is the base URL of a collector that accepts OTLP over HTTP (JSON), such as http://otel-collector:4318.
	// The path /v1/traces is appended. Default: none. Without an endpoint, tracing is off. Request headers can contain
	// credentials. They come from the environment variable OTEL_EXPORTER_OTLP_HEADERS. The collector's CA comes from
	// OTEL_EXPORTER_OTLP_CERTIFICATE.
	Endpoint string `json:"endpoint,omitempty"`
	// SampleRatio is the share of requests that are traced, from 0 to 1. Default: 0.01.
	SampleRatio *float64 `json:"sampleRatio,omitempty"`
}

func (t *Tracing) setDefaults() {
	if t.SampleRatio == nil {
		t.SampleRatio = new(defaultSampleRatio)
	}
}

func (t *Tracing) validate(add func(field, format string, args ...any)) {
	if u, err := url.Parse(t.Endpoint); t.Endpoint != "" &&
		(err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" ||
			u.ForceQuery || u.Fragment != "") {
		add("tracing.endpoint", "it is not of the form http[s]://host[:port]; credentials go into OTEL_EXPORTER_OTLP_HEADERS")
	}
	if *t.SampleRatio < 0 || *t.SampleRatio > 1 {
		add("tracing.sampleRatio", "%v is not between 0 and 1", *t.SampleRatio)
	}
}
