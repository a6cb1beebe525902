// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tracing

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// exportTimeout is the time limit for sending a batch.
const exportTimeout = 10 * time.Second

// exporter sends spans as OTLP messages, in JSON over HTTP. It replaces the SDK's exporter, which would add gRPC and
// protobuf to the agent and make its binary 50% larger. A batch that cannot be sent is dropped, because spans are not
// worth the memory that a queue would need.
type exporter struct {
	url     string
	header  http.Header
	client  *http.Client
	log     logr.Logger
	failing atomic.Bool
}

// newExporter returns an exporter for the options and the environment. It returns nil if tracing is off.
func newExporter(o Options) (*exporter, error) {
	if o.Endpoint == "" {
		return nil, nil
	}
	target, err := tracesURL(o.Endpoint)
	if err != nil {
		return nil, err
	}
	header, err := headers(first(o.Environ, "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"))
	if err != nil {
		return nil, err
	}
	header.Set("Content-Type", "application/json")
	tlsConfig := &tls.Config{MinVersion: tls.VersionTLS12}
	if path := first(o.Environ, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"); path != "" {
		bundle, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read OTEL_EXPORTER_OTLP_CERTIFICATE: %w", err)
		}
		tlsConfig.RootCAs = x509.NewCertPool()
		if !tlsConfig.RootCAs.AppendCertsFromPEM(bundle) {
			return nil,
				fmt.Errorf("read OTEL_EXPORTER_OTLP_CERTIFICATE: %s has no certificate: put the collector's CA there, as PEM", path)
		}
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig,
		IdleConnTimeout: time.Minute, MaxIdleConns: 1}
	return &exporter{
		url: target, header: header, log: o.Log,
		client: &http.Client{Transport: transport, Timeout: exportTimeout,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}, nil
}

// tracesURL returns the URL for traces at an endpoint. Its errors do not contain the endpoint, because the endpoint
// may contain a password.
func tracesURL(endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("the endpoint is not a URL of the form http[s]://host:port, for example http://collector:4318")
	case u.User != nil || u.RawQuery != "":
		return "", errors.New("the endpoint contains a user or a query: put credentials into OTEL_EXPORTER_OTLP_HEADERS")
	}
	return u.JoinPath("v1", "traces").String(), nil
}

// headers parses headers in the OpenTelemetry format: key=value,key=value. The values are percent-encoded.
func headers(list string) (http.Header, error) {
	h := http.Header{}
	for entry := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(entry) == "" {
			continue
		}
		name, value, found := strings.Cut(entry, "=")
		value, err := url.PathUnescape(strings.TrimSpace(value))
		if !found || err != nil {
			return nil, errors.New("an entry of OTEL_EXPORTER_OTLP_HEADERS does not have the form name=value")
		}
		h.Set(strings.TrimSpace(name), value)
	}
	return h, nil
}

// first returns the value of the first variable that is set.
func first(lookup func(string) (string, bool), names ...string) string {
	for _, name := range names {
		if value, ok := lookup(name); ok && value != "" {
			return value
		}
	}
	return ""
}

// ExportSpans implements sdk.SpanExporter. It logs a message when sending fails for the first time, and another message
// when sending succeeds again.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := e.send(ctx, spans)
	switch was := e.failing.Swap(err != nil); {
	case err != nil && !was:
		e.log.Error(err, "spans are lost: the collector does not accept them")
	case err == nil && was:
		e.log.Info("the collector accepts spans again")
	}
	return nil // an error would make the SDK write a log message for each batch
}

func (e *exporter) send(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	body, err := json.Marshal(encode(spans))
	if err != nil {
		return fmt.Errorf("encode spans: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, e.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("send spans: %w", err)
	}
	request.Header = e.header.Clone()
	response, err := e.client.Do(request)
	if err != nil {
		return fmt.Errorf("send spans: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 64<<10)) // allows the client to reuse the connection
	if response.StatusCode/100 != 2 {
		return fmt.Errorf("send spans: the collector answers %s", response.Status)
	}
	return nil
}

// Shutdown implements sdk.SpanExporter.
func (e *exporter) Shutdown(context.Context) error {
	e.client.CloseIdleConnections()
	return nil
}
