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

// levelAt serves a log level at a path. It returns the level, and a function that stops serving.
func levelAt(t *testing.T, path string) (zap.AtomicLevel, func() error) {
	t.Helper()
	listener, err := listenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	level := zap.NewAtomicLevel()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- serveSocket(ctx, listener, path, level) }()
	stop := func() error { cancel(); return <-ended }
	t.Cleanup(cancel)
	return level, stop
}

func TestLevel(t *testing.T) {
	t.Parallel()
	t.Run("the level changes and is returned", func(t *testing.T) {
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
			t.Errorf("read the socket: got the error %v, want it removed", err)
		}
	})

	t.Run("only the agent's own user may open the socket", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "s")
		_, _ = levelAt(t, path)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("got the mode %v and the error %v, want 0600", info.Mode(), err)
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

	t.Run("the socket of a crashed agent is replaced, that of a running agent is not", func(t *testing.T) {
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
