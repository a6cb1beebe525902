// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net/url"
	"slices"

	"github.com/go-logr/logr"
	"github.com/go-logr/zapr"
	uberzap "go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// startLog configures logging for the whole process according to the options. The default format is JSON with RFC 3339
// timestamps. By default, only panics are logged with a stack trace, because error messages already identify the failed
// operation and its object. "-zap-stacktrace-level=error" adds stack traces to errors.
func startLog(options zap.Options) {
	log := newLog(options)
	ctrl.SetLogger(log)
	klog.SetLogger(log.WithName("client-go"))
}

// newLog returns the manager's log. Libraries write to the same log.
func newLog(options zap.Options) logr.Logger {
	if options.StacktraceLevel == nil && !options.Development {
		options.StacktraceLevel = zapcore.PanicLevel
	}
	options.ZapOpts = append(options.ZapOpts,
		uberzap.WrapCore(func(core zapcore.Core) zapcore.Core { return quietConflicts{Core: core} }))
	return zapr.NewLogger(zap.NewRaw(zap.UseFlagOptions(&options)))
}

// quietConflicts logs optimistic-concurrency conflicts at debug level, because the failed writes are retried.
type quietConflicts struct {
	zapcore.Core
	fields []zapcore.Field
}

// With implements zapcore.Core. It does not encode the fields until a line is logged, because encoding requires a
// buffer of 1 KiB. Each reconcile creates a logger with its own fields, and most of these loggers are never used.
func (c quietConflicts) With(fields []zapcore.Field) zapcore.Core {
	return quietConflicts{c.Core, slices.Concat(c.fields, fields)}
}

// Check implements zapcore.Core.
func (c quietConflicts) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// Write implements zapcore.Core.
func (c quietConflicts) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level == zapcore.ErrorLevel && isConflict(fields) {
		entry.Level, entry.Stack = zapcore.DebugLevel, ""
		if !c.Enabled(entry.Level) {
			return nil
		}
	}
	return c.Core.Write(entry, slices.Concat(c.fields, fields))
}

// isConflict reports whether a log entry contains an optimistic-concurrency conflict.
func isConflict(fields []zapcore.Field) bool {
	for i := range fields {
		if err, ok := fields[i].Interface.(error); ok && fields[i].Type == zapcore.ErrorType && apierrors.IsConflict(err) {
			return true
		}
	}
	return false
}

// defaultSampleRatio is suitable for a busy hub. Operators can temporarily set the ratio to 1 to diagnose a problem.
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
