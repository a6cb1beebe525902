// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"

	"go.uber.org/zap"
)

// levelBody is what goes both ways, as zap has it.
type levelBody struct {
	Level string `json:"level,omitempty"`
	Error string `json:"error,omitempty"`
}

// listenSocket makes the socket that changes the log level, which only the agent's own user may open. What a crashed
// agent left at that path is replaced; a running agent's is an error.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if conn, err := (&net.Dialer{Timeout: exchangeTimeout}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close() // only to see whether an agent listens
		return nil, fmt.Errorf("listen at %s: another agent does so already: set DROVER_SOCKET to another path", path)
	}
	// Made under another name and moved when its mode is right, so that there is no moment at which others may open it.
	draft := fmt.Sprintf("%s.%d", path, os.Getpid())
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", draft)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // it would remove the draft's name
	}
	err = os.Chmod(draft, 0o600)
	if err == nil {
		err = os.Rename(draft, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", path, err), listener.Close(), os.Remove(draft))
	}
	return listener, nil
}

// serveLevel answers at a listener of listenSocket until ctx ends, and removes the socket then.
func serveLevel(ctx context.Context, listener net.Listener, path string, level zap.AtomicLevel) error {
	err := serve(ctx, listener, level)
	if removed := os.Remove(path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		return fmt.Errorf("remove socket: %w", removed)
	}
	if err != nil {
		return fmt.Errorf("serve log level: %w", err)
	}
	return nil
}

// SetLogLevel sets the log level of the agent at a socket and returns the level that it has then.
func SetLogLevel(ctx context.Context, path, level string) (string, error) {
	if level != "debug" && level != "info" {
		return "", fmt.Errorf("set log level: %q is none of [debug info]", level)
	}
	payload, err := json.Marshal(levelBody{Level: level})
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	client := &http.Client{Timeout: exchangeTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://agent/", bytes.NewReader(payload))
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	resp, err := client.Do(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return "", fmt.Errorf("set log level: no agent listens at %s: run this where the agent runs, with the same DROVER_SOCKET", path)
	}
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer levelBody
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&answer); err != nil {
		return "", fmt.Errorf("set log level: decode answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("set log level: the agent answered %s: %s", resp.Status, answer.Error)
	}
	return answer.Level, nil
}
