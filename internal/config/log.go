// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
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

// startLog makes everything in this process log as the options say: JSON with times of RFC 3339 by default. Stack
// traces are of panics only, since an error names what was done to what; "-zap-stacktrace-level=error" adds them.
func startLog(options zap.Options) {
	log := newLog(options)
	ctrl.SetLogger(log)
	klog.SetLogger(log.WithName("client-go"))
}

// newLog makes the manager's one log, which its libraries write to as well.
func newLog(options zap.Options) logr.Logger {
	if options.StacktraceLevel == nil && !options.Development {
		options.StacktraceLevel = zapcore.PanicLevel
	}
	options.ZapOpts = append(options.ZapOpts, uberzap.WrapCore(func(core zapcore.Core) zapcore.Core { return quietConflicts{Core: core} }))
	return zapr.NewLogger(zap.NewRaw(zap.UseFlagOptions(&options)))
}

// quietConflicts logs a conflict of optimistic concurrency at level debug: it is not an error, since the write is tried
// again.
type quietConflicts struct {
	zapcore.Core
	fields []zapcore.Field
}

// With implements zapcore.Core. It keeps the fields until something is logged: each reconcile has a logger with values,
// most log nothing, and to encode the values takes a buffer of a KiB each time.
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

// isConflict reports whether what is logged is that an object has changed since it was read.
func isConflict(fields []zapcore.Field) bool {
	for i := range fields {
		if err, ok := fields[i].Interface.(error); ok && fields[i].Type == zapcore.ErrorType && apierrors.IsConflict(err) {
			return true
		}
	}
	return false
}
