// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/drover-dev/drover/test/agenttest"
)

func TestReadyz(t *testing.T) {
	t.Parallel()
	// The list is longer than the part of an error that client-go keeps.
	checks := strings.Repeat("[+]poststarthook/some-check-with-a-long-name ok\n", 100)
	for name, c := range map[string]struct {
		code        int
		contentType string
		body        string
		want        string
	}{
		"ready": {http.StatusOK, "text/plain; charset=utf-8", "ok", ""},
		"etcd is away": {http.StatusInternalServerError, "text/plain; charset=utf-8",
			"[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n", "checks of /readyz fail: etcd"},
		"a late check": {http.StatusInternalServerError, "text/plain; charset=utf-8",
			checks + "[-]shutdown failed: reason withheld\n", "checks of /readyz fail: shutdown"},
		"no type": {http.StatusInternalServerError, "", "[-]etcd failed: reason withheld\n",
			"checks of /readyz fail: etcd"},
		"a proxy that has no server": {http.StatusBadGateway, "text/html", "<html>", "/readyz responds with Bad Gateway"},
		"no right to read it":        {http.StatusForbidden, "application/json", "{}", ""},
		"credentials that do not work": {http.StatusUnauthorized, "application/json", "{}",
			"the API server does not accept the agent's credentials"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := agenttest.Client(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header()["Content-Type"] = []string{c.contentType}
				w.WriteHeader(c.code)
				_, _ = io.WriteString(w, c.body)
			}))
			p := &probe{client: client.REST}
			if got := p.readyz(t.Context()); got != c.want {
				t.Errorf("got the problem %q, want %q", got, c.want)
			}
		})
	}
}
