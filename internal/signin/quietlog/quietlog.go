// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package quietlog contains a logger that anonymous clients cannot flood.
package quietlog

import (
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
)

// Log is a logger for anonymous requests. The embedded Logger has no rate limit. Use the embedded Logger only for
// messages that anonymous clients cannot cause.
type Log struct {
	logr.Logger
	seldom rate.Sometimes
}

// New returns a Log.
func New(log logr.Logger) *Log {
	return &Log{Logger: log, seldom: rate.Sometimes{First: 1, Interval: time.Second}}
}

// Complain logs an error that occurred on the hub. It logs at most one message per second.
func (l *Log) Complain(err error, what string) {
	l.seldom.Do(func() { l.Error(err, what) })
}

// Remark logs a message. Complain and Remark share one rate limit.
func (l *Log) Remark(what string, details ...any) {
	l.seldom.Do(func() { l.Info(what, details...) })
}
