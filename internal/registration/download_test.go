// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/test/testkit"
)

// newDownloads serves a program that is too large for the buffers of sockets.
func newDownloads(t *testing.T, d *downloads) (server *httptest.Server, size int64) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	size = 64 << 20
	if err := os.Truncate(program, size); err != nil {
		t.Fatal(err)
	}
	d.open = func(string) (*os.File, error) { return os.Open(program) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/hosts/agent/{platform}", d.serveHostAgent)
	server = httptest.NewTLSServer(mux)
	t.Cleanup(server.Close)
	return server, size
}

// stalls opens n connections from a loopback address. They request the program and read nothing of it.
func stalls(t *testing.T, server *httptest.Server, from string, n int) {
	t.Helper()
	dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}},
		Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}}}
	for range n {
		conn, err := dialer.DialContext(t.Context(), "tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if _, err := fmt.Fprint(conn, "GET /v1/hosts/agent/linux-amd64 HTTP/1.1\r\nHost: hub\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
	}
}

func downloaded(t *testing.T, server *httptest.Server) (int, int64) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+"/v1/hosts/agent/linux-amd64", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	if err != nil {
		t.Error(err)
	}
	return response.StatusCode, n
}

func TestSlowReadersDoNotBlockOtherDownloads(t *testing.T) {
	t.Parallel()
	d := &downloads{stall: time.Hour,
		gate: limit.NewGate(limit.Bounds{User: 2, All: 4, Queue: 4, QueueUser: 4, Wait: time.Hour}, limit.Observer{})}
	server, size := newDownloads(t, d)
	stalls(t, server, "127.0.0.2", 3) // two are served, and one waits
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if taken, waiting := d.gate.Load(); taken != 2 || waiting != 1 {
			return fmt.Errorf("%d downloads are running and %d waiting, want 2 and 1", taken, waiting)
		}
		return nil
	})
	if code, n := downloaded(t, server); code != http.StatusOK || n != size {
		t.Errorf("another address got %d and %d bytes, want all %d", code, n, size)
	}
}

func TestStalledDownloadIsCutOff(t *testing.T) {
	t.Parallel()
	d := &downloads{stall: 200 * time.Millisecond}
	server, _ := newDownloads(t, d)
	d.made.Do(d.make)
	var begun atomic.Int32
	open := d.open
	d.open = func(platform string) (*os.File, error) {
		begun.Add(1)
		return open(platform)
	}
	stalls(t, server, "127.0.0.2", downloadsOfSource)
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if n := begun.Load(); n != downloadsOfSource {
			return fmt.Errorf("%d downloads have begun, want the limit of one address", n)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if taken, _ := d.gate.Load(); taken > 0 {
			return fmt.Errorf("%d stalled downloads still run, want none", taken)
		}
		return nil
	})
}
