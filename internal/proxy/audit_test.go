// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/limit"
)

// newAudited returns a proxy with an audit log, and a function that returns the log after the last request.
func newAudited(
	t *testing.T, level audit.Level, change ...func(*Options),
) (h *hubSide, read func() (string, []map[string]any)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "audit.log")
	log, err := audit.Open(audit.Settings{Level: level, Path: path}, audit.Observer{}, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	h = newHubSide(t, change...)
	plain := h.Config.Handler
	h.Close()
	var handlers sync.WaitGroup // includes handlers of hijacked connections, which Close does not wait for
	written := log.Wrap(plain)
	h.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handlers.Add(1)
		defer handlers.Done()
		written.ServeHTTP(w, r)
	}))
	t.Cleanup(h.Close)
	return h, func() (string, []map[string]any) {
		h.Close()
		handlers.Wait()
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var all []map[string]any
		for line := range strings.Lines(string(raw)) {
			var one map[string]any
			if err := json.Unmarshal([]byte(line), &one); err != nil {
				t.Fatalf("%q: %v, want a line of JSON", line, err)
			}
			all = append(all, one)
		}
		return string(raw), all
	}
}

func wantFields(t *testing.T, line, want map[string]any) {
	t.Helper()
	for key, value := range want {
		got, _ := json.Marshal(line[key])
		wanted, _ := json.Marshal(value)
		if string(got) != string(wanted) {
			t.Errorf("%s is %s, want %s", key, got, wanted)
		}
	}
}

func TestAudit(t *testing.T) {
	alice := map[string]any{"name": "alice", "uid": "u-1", "groups": []string{"dev", "system:authenticated"},
		"extra": map[string][]string{"example.org/Team": {"red", "blue"}}}
	one := func(*Options) {}
	full, _ := limited(limit.Settings{Short: limit.Bounds{All: 1, Member: 1}}, limit.Observers{})
	for name, tt := range map[string]struct {
		change  func(*Options)
		prepare func(*hubSide)
		path    string
		header  http.Header
		want    map[string]any
	}{
		"a served request names user, member and object": {
			one, nil, "/k8s/clusters/team-a/prod/apis/apps/v1/namespaces/web/deployments/a/scale", nil,
			map[string]any{"user": alice, "member": "team-a/prod", "verb": "get", "apiGroup": "apps", "resource": "deployments",
				"subresource": "scale",
				"namespace":   "web", "name": "a", "code": 200, "reason": nil, "sourceIP": "127.0.0.1",
				"stage": "ResponseComplete"}},
		"the code is the member's code": {one, func(h *hubSide) {
			h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(418) })
		},
			podsPath, nil, map[string]any{"code": 418, "reason": nil}},
		"a request to the hub itself has the member local": {one, nil, "/k8s/local/api/v1/namespaces", nil,
			map[string]any{"user": alice, "member": "local", "verb": "list", "resource": "namespaces", "code": 200}},
		"a 401 has no user and no part of the token": {one, nil, podsPath, http.Header{"Authorization": {"Bearer t-s3cret"}},
			map[string]any{"user": nil, "code": 401, "reason": "Unauthorized", "resource": "pods"}},
		"403 names who was refused": {one, nil, podsPath, http.Header{"Authorization": {"Bearer t-bob"}},
			map[string]any{"user": map[string]any{"name": "bob"}, "code": 403, "reason": "Forbidden"}},
		"404 names the member that is none": {one, nil, "/k8s/clusters/team-a/none/api/v1/pods", nil,
			map[string]any{"user": alice, "member": "team-a/none", "code": 404, "reason": "NotFound"}},
		"an impersonated ServiceAccount is shown with the caller, even in a refusal": {
			one, nil, podsPath,
			http.Header{"Impersonate-User": {"system:serviceaccount:drover-agent:x"}},
			map[string]any{"user": alice, "impersonatedUser": map[string]any{"name": "system:serviceaccount:drover-agent:x"},
				"code": 403}},
		"an impersonated user is shown with the caller, even in a refusal": {
			one, nil, podsPath,
			http.Header{"Impersonate-User": {"system:admin"}, "Impersonate-Group": {"x"}},
			map[string]any{"user": alice, "impersonatedUser": map[string]any{"name": "system:admin",
				"groups": []string{"x"}}, "code": 403}},
		"an invalid path is not written to the log": {one, nil, "/k8s/clusters/t-s3cret%0A/x", nil,
			map[string]any{"user": nil, "code": 400, "reason": "BadRequest", "member": nil}},
	} {
		t.Run(name, func(t *testing.T) {
			h, read := newAudited(t, audit.LevelMetadata, tt.change)
			if tt.prepare != nil {
				tt.prepare(h)
			}
			response, _ := h.do(t, h.request(t, http.MethodGet, tt.path+"?token=t-s3cret", nil, tt.header))
			raw, all := read()
			if len(all) != 1 {
				t.Fatalf("got %d lines, want 1: %s", len(all), raw)
			}
			wantFields(t, all[0], tt.want)
			if ids := response.Header["Audit-Id"]; len(ids) != 1 || ids[0] != all[0]["id"] {
				t.Errorf("got audit IDs %q in the response, want one", ids)
			}
			if name != "an invalid path is not written to the log" && strings.Contains(raw, "s3cret") ||
				strings.Contains(raw, "t-alice") {
				t.Errorf("got log %s, want no token in it", raw)
			}
		})
	}
	t.Run("a 429 is recorded", func(t *testing.T) {
		h, read := newAudited(t, audit.LevelMetadata, full)
		member := newGated()
		h.agent.answerWith(member.ServeHTTP)
		first := make(chan struct{})
		go func() { defer close(first); h.get(t, nil) }()
		<-member.arrived
		h.get(t, nil)
		close(member.answer)
		<-first
		_, all := read()
		wantFields(t, all[0], map[string]any{"code": 429, "reason": "TooManyRequests", "user": alice})
	})
	t.Run("a session has a line at its start and at its end, without the token in its subprotocols", func(t *testing.T) {
		h, read := newAudited(t, audit.LevelMetadata)
		h.agent.answerWith(func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
			_ = conn.Close()
		})
		conn, err := net.Dial("tcp", h.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		token := base64.RawURLEncoding.EncodeToString([]byte("t-alice"))
		_, _ = io.WriteString(conn, "GET /k8s/clusters/team-a/prod/api/v1/namespaces/x/pods/y/exec?command=sh HTTP/1.1\r\n"+
			"Host: hub\r\nConnection: Upgrade\r\n"+
			"Upgrade: websocket\r\n"+
			"Sec-WebSocket-Protocol: v5.channel.k8s.io, base64url.bearer.authorization.k8s.io."+token+"\r\n\r\n")
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("got %+v, %v, want 101", response, err)
		}
		_, _ = io.Copy(io.Discard, conn)
		_ = conn.Close() // the session ends when both ends have closed it
		raw, all := read()
		if len(all) != 2 || strings.Contains(raw, token) {
			t.Fatalf("got lines %s, want two without the token", raw)
		}
		wantFields(t, all[0], map[string]any{
			"stage": "ResponseStarted", "code": 101, "subresource": "exec", "user": alice,
		})
		wantFields(t, all[1], map[string]any{"stage": "ResponseComplete", "code": 101, "id": all[0]["id"]})
	})
	t.Run("the bodies of Secrets are not written, even at the level Request", func(t *testing.T) {
		h, read := newAudited(t, audit.LevelRequest)
		for path, body := range map[string]string{
			"secrets": `{"kind":"Secret","data":{"a":"czNjcmV0"}}`, "configmaps": `{"kind":"ConfigMap","data":{"a":"b"}}`,
		} {
			h.do(t, h.request(t, http.MethodPost,
				"/k8s/clusters/team-a/prod/api/v1/namespaces/web/"+path, strings.NewReader(body), nil))
		}
		raw, _ := read()
		if strings.Contains(raw, "czNjcmV0") || !strings.Contains(raw, `"body":{"data":{"a":"b"},"kind":"ConfigMap"}`) {
			t.Errorf("got lines %s, want the ConfigMap's body but not the Secret's", raw)
		}
		if sent := len(h.agent.bodies); sent != 2 {
			t.Errorf("%d bodies arrived, want 2", sent)
		}
	})
}
