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
	"strings"
	"syscall"
)

// levelBody is the body of a request or response, in the format of zap's HTTP handler for log levels.
type levelBody struct {
	Level string `json:"level,omitempty"`
	Error string `json:"error,omitempty"`
}

// listenSocket creates the socket for probes and for changing the log level. Only the agent's own user can open the
// socket. If a crashed agent has left a socket at the same path, listenSocket replaces that socket. If a running agent
// is listening on the path, listenSocket returns an error.
func listenSocket(ctx context.Context, path string) (net.Listener, error) {
	if conn, err := (&net.Dialer{Timeout: exchangeTimeout}).DialContext(ctx, "unix", path); err == nil {
		_ = conn.Close() // the connection was needed only to find out that an agent is listening
		return nil, fmt.Errorf("listen at %s: another agent already listens there: set DROVER_SOCKET to another path", path)
	}
	// The socket is created under another name and renamed once its mode has been set, so that other users can never open
	// it.
	draft := fmt.Sprintf("%s.%d", path, os.Getpid())
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", draft)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	if unix, ok := listener.(*net.UnixListener); ok {
		unix.SetUnlinkOnClose(false) // otherwise closing the listener would remove the draft's path
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

// serveSocket serves requests on a listener from listenSocket until ctx is done, and then removes the socket.
func serveSocket(ctx context.Context, listener net.Listener, path string, h http.Handler) error {
	err := serve(ctx, listener, h)
	if removed := os.Remove(path); removed != nil && !errors.Is(removed, fs.ErrNotExist) {
		return fmt.Errorf("remove socket: %w", removed)
	}
	if err != nil {
		return fmt.Errorf("serve the socket: %w", err)
	}
	return nil
}

// SetLogLevel sets the log level of the agent that is listening on the given socket. It returns the new level.
func SetLogLevel(ctx context.Context, path, level string) (string, error) {
	if level != "debug" && level != "info" {
		return "", fmt.Errorf("set log level: %q is not a level: use debug or info", level)
	}
	payload, err := json.Marshal(levelBody{Level: level})
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://agent/", bytes.NewReader(payload))
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	resp, err := askAgent(req, path)
	if err != nil {
		return "", fmt.Errorf("set log level: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	var answer levelBody
	if err := json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&answer); err != nil {
		return "", fmt.Errorf("set log level: decode response: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("set log level: the agent responded with %s: %s", resp.Status, answer.Error)
	}
	return answer.Level, nil
}

// askAgent sends a request to the agent that is listening on a socket.
func askAgent(req *http.Request, socket string) (*http.Response, error) {
	client := &http.Client{Timeout: exchangeTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	resp, err := client.Do(req)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("no agent listens at %s: run this where the agent runs, with the same DROVER_SOCKET", socket)
	}
	return resp, err
}

// Probe requests a path, such as /readyz, from the agent that is listening on the socket. It returns an error unless
// the agent reports success.
func Probe(ctx context.Context, socket, path string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	resp, err := askAgent(req, socket)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	defer func() { _ = resp.Body.Close() }()
	said, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("probe %s: %s", path, strings.TrimSpace(string(said)))
	}
	return nil
}
