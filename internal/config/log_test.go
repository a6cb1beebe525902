// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap/zapcore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
)

func TestLogLinesHaveReadableTimesAndNoStack(t *testing.T) {
	conflict := fmt.Errorf("write status: %w",
		apierrors.NewConflict(schema.GroupResource{Resource: "clusters"}, "prod", errors.New("it has changed")))
	said := func(level zapcore.Level, err error) string {
		out := &bytes.Buffer{}
		newLog(zap.Options{DestWriter: out, Level: level}).WithName("cluster").WithValues("namespace", "team-a").Error(err,
			"Reconciler error")
		return out.String()
	}
	t.Run("a failure is logged as an error, with a readable time and without a stack trace", func(t *testing.T) {
		var line map[string]string
		if err := json.Unmarshal([]byte(said(zapcore.InfoLevel, errors.New("no room"))), &line); err != nil {
			t.Fatal(err)
		}
		if _, err := time.Parse(time.RFC3339, line["ts"]); err != nil || line["level"] != "error" ||
			line["error"] != "no room" || line["namespace"] != "team-a" || line["stacktrace"] != "" {
			t.Errorf("the line is %v: %v, want a readable time, the error, the logger's values, and no stack trace", err, line)
		}
	})
	t.Run("a conflict is not logged by default, because the write is retried", func(t *testing.T) {
		if got := said(zapcore.InfoLevel, conflict); got != "" {
			t.Errorf("logged %v, want no line for a conflict", got)
		}
	})
	t.Run("a conflict is logged at level debug", func(t *testing.T) {
		if got := said(zapcore.DebugLevel, conflict); !strings.Contains(got, `"level":"debug"`) ||
			!strings.Contains(got, "it has changed") {
			t.Errorf("logged %v, want a conflict at level debug", got)
		}
	})
	t.Run("values of a logger that logs nothing are not encoded", func(t *testing.T) {
		encoded := 0
		value := zapcore.ObjectMarshalerFunc(func(zapcore.ObjectEncoder) error { encoded++; return nil })
		log := newLog(zap.Options{DestWriter: &bytes.Buffer{}}).WithValues("object", value).WithValues("id", 1)
		if log.V(1).Info("a detail"); encoded != 0 {
			t.Errorf("encoded %d times before anything was logged, want 0", encoded)
		}
		if log.Info("a fact"); encoded != 1 {
			t.Errorf("encoded %d times in one line, want 1", encoded)
		}
	})
	t.Run("client-go writes into the same log", func(t *testing.T) {
		out := &bytes.Buffer{}
		startLog(zap.Options{DestWriter: out})
		defer klog.ClearLogger()
		klog.ErrorS(errors.New("no route"), "Failed to watch")
		if got := out.String(); !strings.Contains(got, `"logger":"client-go"`) || !strings.Contains(got, `"level":"error"`) {
			t.Errorf("logged %v, want client-go's error in the same log", got)
		}
	})
}
