// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// levelAt runs an agent's end and returns its level and how to end it.
func levelAt(t *testing.T, path string) (zap.AtomicLevel, func() error) {
	t.Helper()
	listener, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	level := zap.NewAtomicLevel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveLevel(ctx, listener, path, level) }()
	stop := func() error { cancel(); return <-ended }
	t.Cleanup(cancel)
	return level, stop
}

func TestLevel(t *testing.T) {
	t.Parallel()
	t.Run("changes and says what it is now", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		level, stop := levelAt(t, path)
		for _, want := range []string{"debug", "info"} {
			got, err := SetLogLevel(t.Context(), path, want)
			if err != nil || got != want || level.String() != want {
				t.Errorf("got %q, %v, level %s", got, err, level)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})

	t.Run("only the agent's own user may open the socket", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		_, _ = levelAt(t, path)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v, %v", info.Mode(), err)
		}
	})

	t.Run("another level is refused", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		level, _ := levelAt(t, path)
		if _, err := SetLogLevel(t.Context(), path, "panic"); err == nil || level.Level() != zapcore.InfoLevel {
			t.Errorf("%v, level %s", err, level)
		}
	})

	t.Run("the error says that no agent listens", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		if _, err := SetLogLevel(t.Context(), path, "debug"); err == nil ||
			!strings.Contains(err.Error(), "no agent listens") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("what a crashed agent left is replaced, a running agent's socket is not", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		left, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		left.(*net.UnixListener).SetUnlinkOnClose(false)
		_ = left.Close()
		if _, err := SetLogLevel(t.Context(), path, "debug"); err == nil ||
			!strings.Contains(err.Error(), "no agent listens") {
			t.Errorf("got %v", err)
		}
		_, _ = levelAt(t, path)
		if _, err := listenSocket(t.Context(), path); err == nil || !strings.Contains(err.Error(), "another agent") {
			t.Errorf("got %v", err)
		}
	})
}
