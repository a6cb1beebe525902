// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
)

// lateOutput is the number of bytes that closedServer sends. Not all of them fit into the buffers of a connection.
const lateOutput = 64 << 20

// closedServer is an upgraded connection to a server that has sent its output and has closed the connection. The output
// arrives after the first write, which fails.
type closedServer struct {
	output io.Reader
	failed chan struct{}
	once   sync.Once
}

// RoundTrip upgrades the connection, whatever the request asks for.
func (s *closedServer) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusSwitchingProtocols, ProtoMajor: 1, ProtoMinor: 1, Body: s, Request: r,
		Header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {r.Header.Get("Upgrade")}},
	}, nil
}

func (s *closedServer) Read(p []byte) (int, error) {
	<-s.failed
	return s.output.Read(p)
}

func (s *closedServer) Write([]byte) (int, error) {
	s.once.Do(func() { close(s.failed) })
	return 0, errors.New("the server has closed the connection")
}

func (s *closedServer) CloseWrite() error { return errors.New("the server has closed the connection") }

func (s *closedServer) Close() error {
	s.once.Do(func() { close(s.failed) })
	return nil
}

// zeros is an endless reader.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// ReadUpgradeToEnd checks that a proxy delivers the whole output of a server that has already closed an upgraded
// connection, even if the user still sends data. The function serve starts the proxy with a transport to the server,
// and returns the proxy's address. The request is the head of an upgrade request.
func ReadUpgradeToEnd(t *testing.T, request string, serve func(http.RoundTripper) (address string)) {
	t.Helper()
	server := &closedServer{output: io.LimitReader(zeros{}, lateOutput), failed: make(chan struct{})}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", serve(server))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("got %s, want status 101", response.Status)
	}
	if _, err := io.WriteString(conn, "ping"); err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, reader); n != lateOutput || err != nil {
		t.Errorf("got %d bytes, %v, want all %d", n, err, lateOutput)
	}
}
