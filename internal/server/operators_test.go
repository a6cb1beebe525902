// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// at returns the same replica, at one of its ports for operators.
func (w *world) at(t *testing.T, operator string) *world {
	t.Helper()
	at := &world{Env: w.Env, t: t, ca: w.ca}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if at.base = w.operators[operator]; at.base == "" {
			return errors.New("the port is not open yet")
		}
		return nil
	})
	return at
}

// probe sends a request to the port for probes, on its own connection, and returns the status code of the response.
func (w *world) probe(t *testing.T, path string) (int, error) {
	t.Helper()
	transport := &http.Transport{DisableKeepAlives: true}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+w.at(t, "health").base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := transport.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err
}

// If a manager is killed because clients fill its port, the flood becomes worse, because all its agents reconnect.
func TestFloodOfThePortDelaysNoProbeAndNoScrape(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	w := newReplica(t, env, env.Workspace(t), ca, "drain: {delay: 0s}, limits: {connections: {all: 3, source: 3}}")
	full := &addressQueue{gate: limit.NewGate(limit.Bounds{All: 1}, limit.Observer{}), hold: time.Hour}
	if err := full.enter(t.Context(), "flood"); err != nil {
		t.Fatal(err)
	}
	w.server.pace.agents, w.server.pace.others = full, full
	stop := w.listen() // the hub's port has no room for a request
	reader := w.user("scraper", rbacv1.PolicyRule{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}})
	answered := func(t *testing.T) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/readyz": http.StatusOK,
			"/metrics": http.StatusNotFound, "/v1/cacerts": http.StatusNotFound} {
			testkit.Eventually(t, 10*time.Second, func(context.Context) error {
				if got, err := w.probe(t, path); got != want {
					return fmt.Errorf("%s: %d %w, want %d", path, got, err, want)
				}
				return nil
			})
		}
		if got := w.at(t, "metrics").send(w.client(false), http.MethodGet, "/metrics", reader); got.code != http.StatusOK {
			t.Errorf("/metrics: %d %s, want 200", got.code, got.body)
		}
	}
	t.Run("with no handshake left", func(t *testing.T) {
		if conn, err := tls.Dial("tcp", w.base, &tls.Config{RootCAs: w.roots(), MinVersion: tls.VersionTLS13}); err == nil {
			_ = conn.Close()
			t.Error("the port accepted another handshake, want it full")
		}
		answered(t)
	})
	t.Run("with no connection left", func(t *testing.T) {
		for range 3 {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", w.base)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = conn.Close() })
		}
		answered(t)
	})
	if err := stop(); err != nil {
		t.Error(err)
	}
	if got, err := w.probe(t, "/healthz"); err == nil {
		t.Errorf("a stopped replica responded with %d, want no response", got)
	}
}
