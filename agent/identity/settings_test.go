// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

func TestSettingsHandler(t *testing.T) {
	t.Parallel()
	bundle := agenttest.NewAuthority(t, "ca").Bundle()
	body := func(servers []string, bundle string) string {
		raw, err := json.Marshal(protocol.Settings{Servers: servers, CABundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		return string(raw)
	}
	for name, tc := range map[string]struct {
		method, body string
		fails        error
		want         int
	}{
		"servers and a bundle are stored": {"PUT", body([]string{"https://a", "https://b:8443"}, bundle), nil, 204},
		"no bundle is fine":               {"PUT", body([]string{"https://a"}, ""), nil, 204},
		"no servers are refused":          {"PUT", body(nil, bundle), nil, 400},
		"a server without TLS is refused": {"PUT", body([]string{"https://a", "http://b"}, bundle), nil, 400},
		"a bundle that does not parse":    {"PUT", body([]string{"https://a"}, "junk"), nil, 400},
		"a bundle with a key in it": {"PUT",
			body([]string{"https://a"}, bundle+"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"), nil, 400},
		"what is no JSON": {"PUT", "{", nil, 400},
		"CVE-2024-58259: too large a body": {"PUT", body([]string{"https://" + strings.Repeat("a", protocol.MaxBody)}, ""),
			nil, 413},
		"storing fails, so the hub tries again": {"PUT", body([]string{"https://a"}, ""), errors.New("conflict"), 503},
		"another method":                        {"POST", body([]string{"https://a"}, ""), nil, 405},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stored *protocol.Settings
			h := &settingsHandler{log: logr.Discard(),
				store: func(_ context.Context, s protocol.Settings) error { stored = &s; return tc.fails }}
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(tc.method, protocol.PathSettings, strings.NewReader(tc.body)))
			if answer.Code != tc.want {
				t.Errorf("got %d %s", answer.Code, answer.Body)
			}
			if (stored != nil) != (tc.want == http.StatusNoContent || tc.fails != nil) {
				t.Errorf("stored %+v", stored)
			}
			if stored != nil {
				var want protocol.Settings
				if err := json.Unmarshal([]byte(tc.body), &want); err != nil || !reflect.DeepEqual(*stored, want) {
					t.Errorf("stored %+v, want %+v", stored, want)
				}
			}
		})
	}
}
