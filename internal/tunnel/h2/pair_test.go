// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"io"
	"log"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// patience is how long a test waits for something that must happen. Only a failing test waits that long.
const patience = 20 * time.Second

// config holds the settings that the tunnel uses for its client.
func config() Config {
	return Config{
		MaxHeaderBytes: 64 << 10, StreamWindow: 16 << 20, MaxFrameSize: 64 << 10, WriteTimeout: patience,
		Omit: func(string) bool { return false }, Ends: func() {}, CountError: func(string) {},
	}
}

// start returns a client of the server at the other end of a connection after the server has answered a PING.
func start(t *testing.T, conn net.Conn) *Client {
	t.Helper()
	client, err := New(conn, config())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	if err := client.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return client
}

// serve returns a client of the HTTP/2 server of golang.org/x/net, which the agent's end of a tunnel uses.
func serve(t *testing.T, h http.Handler) *Client {
	t.Helper()
	near, far := net.Pipe()
	served := make(chan struct{})
	go func() {
		defer close(served)
		base := &http.Server{ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: patience}
		server := &http2.Server{MaxUploadBufferPerConnection: 1<<31 - 1, MaxUploadBufferPerStream: 1 << 20}
		server.ServeConn(far, &http2.ServeConnOpts{BaseConfig: base, Handler: h})
	}()
	t.Cleanup(func() { await(t, "the end of the server", served) })
	return start(t, near)
}

// openStreams returns the number of open streams of the client.
func (c *Client) openStreams() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.streams)
}

func request(t *testing.T, method, path string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "https://member"+path, body)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// get sends a GET that must succeed.
func get(t *testing.T, c *Client) {
	t.Helper()
	if _, err := whole(c.RoundTrip(request(t, http.MethodGet, "/", nil))); err != nil {
		t.Fatal(err)
	}
}

// whole reads the whole body of a response.
func whole(response *http.Response, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// await receives a value from a channel.
func await[T any](t *testing.T, what string, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatalf("waited too long for %s", what)
		panic("unreachable")
	}
}
