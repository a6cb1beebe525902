// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// insideProxied is set in the process that TestThroughAProxy starts, because a process reads the proxies from its
// environment only once.
const insideProxied = "DROVER_TEST_PROXIED"

// TestThroughAProxy runs an agent whose environment names a proxy. The agent reaches the hub through the proxy, but
// never its own API server. The proxy is Debian's tinyproxy. Go uses no proxy for "localhost" and loopback addresses,
// but it does for LOCALHOST, which is the same host.
func TestThroughAProxy(t *testing.T) {
	t.Parallel()
	if os.Getenv(insideProxied) != "" {
		proxied(t)
		return
	}
	program, err := exec.LookPath("tinyproxy")
	if err != nil {
		t.Skip("tinyproxy is not installed: apt-get install tinyproxy")
	}
	for name, tc := range map[string]struct{ asks, given, outcome string }{
		"without a password":          {"", "", "connected"},
		"with a password":             {"BasicAuth agent swordfish", "agent:swordfish@", "connected"},
		"with the wrong password":     {"BasicAuth agent swordfish", "agent:hunter2@", "refused"},
		"without a required password": {"BasicAuth agent swordfish", "", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, address := t.TempDir(), freeAddress(t)
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				t.Fatal(err)
			}
			config, logged := filepath.Join(dir, "tinyproxy.conf"), filepath.Join(dir, "proxy.log")
			text := fmt.Sprintf("Port %s\nListen %s\nLogFile %q\nLogLevel Connect\nTimeout 600\n%s\n", port, host, logged,
				tc.asks)
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			process, err := lab.Command{Path: program, Args: []string{"-d", "-c", config},
				LogFile: filepath.Join(dir, "out.log")}.Start()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = process.Kill() })
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			if err := process.WaitReady(ctx, func(context.Context) error {
				conn, err := net.Dial("tcp", address)
				if err == nil {
					err = conn.Close()
				}
				return err
			}); err != nil {
				t.Fatal(err)
			}
			inside := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestThroughAProxy$", "-test.timeout=100s", "-test.v")
			proxy := "http://" + tc.given + address
			inside.Env = append(os.Environ(), insideProxied+"="+tc.outcome, "HTTPS_PROXY="+proxy, "HTTP_PROXY="+proxy,
				"https_proxy="+proxy, "http_proxy="+proxy, "NO_PROXY=", "no_proxy=")
			out, err := inside.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			seen, err := os.ReadFile(logged)
			if err != nil {
				t.Fatal(err)
			}
			for line := range strings.Lines(string(seen)) {
				if _, asked, ok := strings.Cut(line, "Request (file descriptor"); ok &&
					!strings.Contains(asked, "CONNECT LOCALHOST:"+said(out, "hub")+" ") {
					t.Errorf("the proxy got the request %s, want requests for the hub only", line)
				}
			}
			if !strings.Contains(string(seen), "CONNECT LOCALHOST:"+said(out, "hub")+" ") {
				t.Errorf("got the proxy's log %s, want a request for the hub", seen)
			}
		})
	}
}

// said returns the value that the inner process logged under a name.
func said(out []byte, name string) string {
	_, after, _ := strings.Cut(string(out), "port of the "+name+": ")
	port, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(port)
}

// proxied runs an agent in this process, with an environment that names a proxy.
func proxied(t *testing.T) {
	w := newWorld(t)
	for name, url := range map[string]*string{"hub": &w.hub.URL, "API server": &w.api.URL} {
		*url = strings.Replace(*url, "127.0.0.1", "LOCALHOST", 1)
		t.Logf("port of the %s: %s", name, (*url)[strings.LastIndexByte(*url, ':')+1:])
	}
	w.start(t)
	if os.Getenv(insideProxied) == "connected" {
		s := w.session(t)
		if resp, body := ask(t, s, http.MethodGet, "/v1/k8s/api/v1/nodes/n1", http.Header{"Impersonate-User": {"hub:alice"}},
			""); resp.StatusCode != http.StatusOK {
			t.Errorf("forwarded GET: got %s %s, want the node", resp.Status, body)
		}
	} else {
		for begun := time.Now(); !strings.Contains(w.log.String(), " refused the connection with 40"); {
			if time.Since(begun) > time.Minute {
				t.Fatalf("want a log that says that the proxy refuses, got:\n%s", w.log)
			}
			<-time.After(20 * time.Millisecond)
		}
	}
	if len(w.api.Seen()) == 0 {
		t.Error("the API server got no request, want some")
	}
	if strings.Contains(w.log.String(), "hunter2") || strings.Contains(w.log.String(), "swordfish") {
		t.Error("the password is in the log, want it kept secret")
	}
}
