// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// frontIdle replaces the 60 s of silence after which a front proxy closes a connection. The interval of the tunnel's
// pings is reduced by a little more.
const (
	frontIdle  = 8 * time.Second
	frontPings = time.Second
)

// longHeader is the size of the response header of a login by a user with the largest number of groups that a code can
// carry.
const longHeader = 20 << 10

// A proxy that terminates TLS in front of the hub has its own certificate, closes silent connections, and uses HTTP/1.1
// to the hub. The programs come from Debian.
func TestFrontProxiesThatTerminateTLS(t *testing.T) {
	t.Parallel()
	for name, front := range map[string]struct {
		program, config string
		args            func(dir, config string) []string
		edit            func(dir string) []string // pairs of old and new text
		// the line that it logs when its own check has found the hub ready; until then it may not use the hub
		checked string
	}{
		"HAProxy": {
			"haproxy", "haproxy.cfg", func(_, config string) []string { return []string{"-db", "-f", config} },
			func(string) []string { return nil }, "Health check for server hub/manager succeeded",
		},
		"nginx": {"nginx", "nginx.conf", func(dir, config string) []string {
			return []string{"-p", dir, "-c", config, "-e", "stderr", "-g", "daemon off; master_process off; pid " +
				filepath.Join(dir, "pid") + "; error_log stderr;"}
		}, func(dir string) []string {
			own := "http {\n access_log off;\n" // the folders that are compiled in belong to root
			for _, kind := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
				own += kind + "_temp_path " + filepath.Join(dir, kind) + ";\n"
			}
			return []string{"http {\n", own}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			program, err := exec.LookPath(front.program)
			if err != nil {
				t.Skipf("%s is not installed: apt-get install haproxy nginx-light", front.program)
			}
			w := newWorld(t)
			w.server.Tunnel.PingInterval = frontPings
			stop := w.start() // ready, because HAProxy stops using the hub for seconds if its first check fails
			dir := t.TempDir()
			address := w.front(t, dir, filepath.Join("../../docs/operations/front", front.config), front.edit(dir)...)
			log := filepath.Join(dir, "log")
			process, err := lab.Command{Path: program, Args: front.args(dir, filepath.Join(dir, front.config)),
				LogFile: log}.Start()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				_ = process.Kill()
				if said, err := os.ReadFile(log); t.Failed() {
					t.Logf("%s said: %s (%v)", name, said, err)
				}
			})
			limited, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := process.WaitReady(limited, func(context.Context) error {
				conn, err := net.Dial("tcp", address)
				if err != nil {
					return err
				}
				said, err := os.ReadFile(log)
				if err == nil && !strings.Contains(string(said), front.checked) {
					err = fmt.Errorf("its log does not contain %q, but %q", front.checked, said)
				}
				return errors.Join(err, conn.Close())
			}); err != nil {
				t.Fatal(err)
			}
			w.base = address
			w.awaitReady(t)
			testFront(t, w)
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// awaitReady waits until the hub, or the proxy in front of it, responds that the hub is ready.
func (w *world) awaitReady(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		if got := w.send(w.client(true), http.MethodGet, "/readyz", ""); got.code != http.StatusOK {
			return fmt.Errorf("%d %s", got.code, got.body)
		}
		return nil
	})
}

// testFront sends all kinds of requests through the front proxy.
func testFront(t *testing.T, w *world) {
	m, user := w.moves(t, "behind"), w.reader("front-user")
	for _, h2 := range []bool{true, false} {
		c := w.client(h2)
		if got := w.send(c, http.MethodGet, m.path+"/api/v1/pods", user); got.body != "answer" {
			t.Errorf("HTTP/2 %t: %d %s, want the member's answer", h2, got.code, got.body)
		}
		if got := w.send(c, http.MethodGet, m.path+"/api/v1/pods", "wrong"); got.code != http.StatusUnauthorized {
			t.Errorf("a wrong token got %d, want 401", got.code)
		}
		if got := w.send(c, http.MethodGet, m.path+"/api/v1/header", user); len(got.header.Get("X-Long")) != longHeader {
			t.Errorf("HTTP/2 %t: %d with a header of %d bytes, want %d", h2, got.code, len(got.header.Get("X-Long")), longHeader)
		}
		const size = 2 << 20
		if got := w.upload(t, c, m.path+"/api/v1/size", user, size); got != fmt.Sprint(size) {
			t.Errorf("the member got %[2]s of %[1]d bytes, want all", size, got)
		}
	}
	sh := w.shell(t, m.path, user)
	for _, word := range []string{"one", "two"} {
		if err := sh.says(word); err != nil {
			t.Errorf("a shell: %v, want it to go on", err)
		}
	}
	for range 2 { // client-go opens a new watch
		begun := time.Now()
		if err := w.silence(t, m.path, user); err == nil || errors.Is(err, errNoEvent) {
			t.Errorf("a silent watch ended with %v, want an event, and the connection cut", err)
		}
		if took := time.Since(begun); took < frontIdle/2 {
			t.Errorf("the watch ended after %s, want it to end after the silence", took)
		}
	}
	if m.dials.Load() != 1 {
		t.Errorf("the agent opened %d tunnels, want the first one to outlast the silence", m.dials.Load())
	}
	m.await(t, func(s members.State) bool { return s.Report != nil })
	if got := w.send(w.client(true), http.MethodGet, m.path+"/api/v1/pods", user); got.body != "answer" {
		t.Errorf("afterwards: %d %s, want the member's answer", got.code, got.body)
	}
}

// upload posts a body of the given size and returns the size that the member reports.
func (w *world) upload(t *testing.T, c *http.Client, path, bearer string, size int) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+w.base+path,
		strings.NewReader(strings.Repeat("x", size)))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

var errNoEvent = errors.New("the first event did not arrive")

// silence follows a watch that sends one event and then nothing, and returns how it ended.
func (w *world) silence(t *testing.T, path, bearer string) error {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+w.base+path+"/api/v1/silent?watch=true",
		nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+bearer)
	resp, err := w.client(false).Do(req)
	if err != nil {
		return fmt.Errorf("%w: %w", errNoEvent, err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	begun := time.Now()
	if _, err := lines.ReadString('\n'); err != nil {
		return fmt.Errorf("%w within %s: %w", errNoEvent, time.Since(begun), err)
	}
	_, err = lines.ReadString('\n')
	return err
}

// front writes a configuration from docs/operations for this hub into dir, and returns the address that it listens on.
func (w *world) front(t *testing.T, dir, config string, edits ...string) (address string) {
	t.Helper()
	cert, err := trust.IssueServing(w.ca, []string{"127.0.0.1"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	key := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	address = freeAddress(t)
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	edits = append(edits, "/etc/front", dir, "drover.drover-system.svc:443", w.base, "bind :443", "bind "+address,
		"listen 443", "listen "+address, "maxconn 20000", "maxconn 200", "worker_connections 10000", "worker_connections 200",
		"60s", fmt.Sprintf("%ds", int(frontIdle.Seconds())))
	for i := 0; i < len(edits); i += 2 {
		text = []byte(strings.ReplaceAll(string(text), edits[i], edits[i+1]))
	}
	for name, content := range map[string][]byte{"tls.pem": slices.Concat(chain, key), "ca.crt": w.ca.Cert,
		filepath.Base(config): text} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return address
}
