// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// fleet is a fake hub. It identifies the user and streams the objects of a test. Tests with real hubs are in test/e2e.
type fleet struct {
	url string
	mux *http.ServeMux // tests add what their views fetch
	// opened is closed when the page has opened its first stream.
	opened chan struct{}
	mu     sync.Mutex // guards all fields below, and writes to conn
	conn   *websocket.Conn
	// secret contains each registration Secret, by name.
	secret map[string]any
	// denied contains the verbs that the user may not use, or "create in team" for one workspace, and "create in "
	// for all namespaces at once.
	denied map[string]bool
	// refusing means that the hub opens no streams.
	refusing bool
	// closing is the code with which the hub closes new streams. It is 0 if the hub does not close them.
	closing int
	// answers and sent are for requests without a handler of their own.
	answers map[string]answer
	sent    map[string]sent
}

func newFleet(t *testing.T, clusters int) *fleet {
	t.Helper()
	mux := http.NewServeMux()
	f := &fleet{mux: mux, opened: make(chan struct{})}
	Register(mux)
	mux.HandleFunc("GET /v1/whoami", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"message":"the token is not valid"}`))
			return
		}
		_, _ = w.Write([]byte(`{"status":{"userInfo":{"username":"local:alice"}}}`))
	})
	mux.HandleFunc("GET /v1/subscribe", func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		refusing := f.refusing
		f.mu.Unlock()
		if refusing {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		upgrader := websocket.Upgrader{Subprotocols: []string{"v1.subscribe.drover.dev"}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		f.mu.Lock()
		if f.closing != 0 {
			message := websocket.FormatCloseMessage(f.closing, "the token is no longer valid")
			_ = conn.WriteControl(websocket.CloseMessage, message, time.Now().Add(time.Second))
			f.mu.Unlock()
			_ = conn.Close()
			return
		}
		if f.conn == nil {
			close(f.opened)
		}
		f.conn = conn
		for _, kind := range []string{"clusters", "projects", "clusterroletemplatebindings", "projectroletemplatebindings",
			"plans", "baselines", "hosts", "roletemplates"} {
			f.sendLocked(map[string]any{"type": "RESET", "kind": kind})
		}
		for i := range clusters {
			f.sendLocked(cluster(fmt.Sprintf("c%04d", i), "True", "Connected", ""))
		}
		f.sendLocked(map[string]any{"type": "BOOKMARK", "resume": "r"})
		f.mu.Unlock()
		for {
			if _, _, err := conn.ReadMessage(); err != nil {
				return
			}
		}
	})
	mux.HandleFunc("POST /k8s/local/apis/cluster.drover.dev/v1/namespaces/team/clusters",
		func(w http.ResponseWriter, r *http.Request) {
			made := map[string]any{}
			_ = json.NewDecoder(r.Body).Decode(&made)
			made["metadata"].(map[string]any)["uid"] = "uid-of-the-cluster"
			_ = json.NewEncoder(w).Encode(made)
		})
	mux.HandleFunc("GET /k8s/local/api/v1/namespaces/team/secrets/next-registration",
		func(w http.ResponseWriter, _ *http.Request) {
			f.mu.Lock()
			defer f.mu.Unlock()
			_ = json.NewEncoder(w).Encode(f.secret)
		})
	mux.HandleFunc("POST /k8s/local/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		func(w http.ResponseWriter, r *http.Request) {
			var review struct {
				Spec struct {
					ResourceAttributes struct{ Verb, Namespace string }
				}
			}
			_ = json.NewDecoder(r.Body).Decode(&review)
			f.mu.Lock()
			defer f.mu.Unlock()
			asked := review.Spec.ResourceAttributes
			allowed := !f.denied[asked.Verb] && !f.denied[asked.Verb+" in "+asked.Namespace]
			_ = json.NewEncoder(w).Encode(map[string]any{"status": map[string]any{"allowed": allowed}})
		})
	mux.HandleFunc("/k8s/", f.serve)
	mux.HandleFunc("/v1/auth/", f.serve)
	server := httptest.NewTLSServer(mux)
	t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.conn != nil {
			_ = f.conn.Close()
		}
		server.Close()
	})
	f.url = server.URL
	return f
}

func (f *fleet) sendLocked(message any) { _ = f.conn.WriteJSON(message) }

// send waits until the page has opened a stream, because a view can appear before.
func (f *fleet) send(message any) {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sendLocked(message)
}

// cut closes the stream. A hub that refuses opens no other.
func (f *fleet) cut(refuse bool) {
	f.wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refusing = refuse
	_ = f.conn.Close()
}

// closeWith closes the stream, and new ones with a code until it is 0.
func (f *fleet) closeWith(code int) {
	f.mu.Lock()
	f.closing = code
	f.mu.Unlock()
	f.cut(false)
}

func (f *fleet) wait() {
	select {
	case <-f.opened:
	case <-time.After(30 * time.Second):
		panic("the page should open a stream within 30 seconds")
	}
}

// cluster returns a Cluster whose agent has joined.
func cluster(name, ready, reason, message string) map[string]any {
	return map[string]any{"type": "CHANGED", "kind": "clusters", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": name, "uid": "uid-of-" + name,
			"labels": map[string]any{"env": "prod"}},
		"status": map[string]any{
			"version": "v1.36.3", "nodes": map[string]any{"ready": 3, "total": 3},
			"conditions": []any{condition("Ready", ready, reason, message), condition("Registered", "True", "AgentJoined", "")},
		},
	}}
}

// signIn enters a token with the keyboard.
func signIn(t *testing.T, p *chromium.Page, url, token string) {
	t.Helper()
	p.Go(url + Path)
	sees(t, p, "textbox: Token, forgotten when this page is closed")
	p.Evaluate(`document.querySelector("input").focus()`, nil)
	p.Type(token)
	p.Press("Enter")
}

func sees(t *testing.T, p *chromium.Page, wanted ...string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		all, err := p.Elements()
		if err != nil {
			return err
		}
		for _, want := range wanted {
			if !slices.ContainsFunc(all, func(e chromium.Element) bool { return strings.HasPrefix(e.Role+": "+e.Name, want) }) {
				return fmt.Errorf("a screen reader does not find %q among\n%.3000s", want, chromium.String(all))
			}
		}
		return nil
	})
}

// condition returns a condition as the API server sends it.
func condition(kind, status, reason, message string) any {
	return map[string]any{"type": kind, "status": status, "reason": reason, "message": message,
		"lastTransitionTime": "2026-11-23T10:00:00Z"}
}

// plan returns a Plan in its first wave, with the given numbers of complete and failed Clusters out of two.
func plan(done, failed int) map[string]any {
	progress := func(complete, total, failed int) map[string]any {
		return map[string]any{"complete": complete, "failed": failed, "total": total,
			"applying": 0, "held": 0, "summary": fmt.Sprintf("%d/%d", complete, total)}
	}
	conditions := []any{condition("LatestResolved", "True", "Version", ""),
		condition("Complete", "False", "Applying", "wave canary is at work"),
		condition("Ready", "False", "Applying", "wave canary is at work")}
	if failed > 0 {
		const message = "node n1 of c0000 has no attempts left"
		conditions = []any{condition("LatestResolved", "True", "Version", ""), condition("Complete", "False", "NodeFailed",
			message), condition("Ready", "False", "NodeFailed", message), condition("Stalled", "True", "NodeFailed", message)}
	}
	return map[string]any{"type": "CHANGED", "kind": "plans", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "kernel"},
		"spec":     map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"env": "prod"}}},
		"status": map[string]any{
			"latestVersion": "6.12.48", "clusters": progress(done, 10, 0), "nodes": progress(3*done, 30, 1),
			"waves": []any{
				map[string]any{"name": "canary", "clusters": progress(done, 2, failed)},
				map[string]any{"name": "rest", "clusters": progress(0, 8, 0)},
			},
			"members": []any{
				map[string]any{
					"name": "c0000", "wave": "canary", "nodes": "2/3", "reason": "Applying", "since": "2026-11-23T10:00:00Z",
				},
			},
			"failures": []any{
				map[string]any{
					"cluster": "c0000", "node": "n1", "reason": "UpgradeFailed", "message": "exit code 1",
					"log": "E: no space left on device",
				},
			},
			"conditions": conditions,
		},
	}}
}

// host returns a Host whose agent is connected. Only InstructionFailed makes it Stalled.
func host(ready, reason, output string) map[string]any {
	conditions := []any{condition("Ready", ready, reason, "a message <b>")}
	if reason == "InstructionFailed" {
		conditions = append(conditions, condition("Stalled", "True", reason, "a message <b>"))
	}
	return map[string]any{"type": "CHANGED", "kind": "hosts", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "rack1"},
		"status": map[string]any{
			"state": "Active", "machine": map[string]any{"os": "Debian", "architecture": "amd64"},
			"plan":       map[string]any{"output": output},
			"conditions": conditions,
		},
	}}
}

// painted is a promise that the page has been painted twice.
const painted = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))`

// at shows an address of the page, and waits until it is painted.
func at(p *chromium.Page, hash string) { p.Evaluate(`location.hash = "`+hash+`"; `+painted, nil) }

// click waits for an element, which may depend on a review of the user's rights, and clicks it.
func click(t *testing.T, p *chromium.Page, selector string) {
	t.Helper()
	eventually(t, p, `document.querySelector("`+selector+`") !== null`, true)
	p.Evaluate(`document.querySelector("`+selector+`").click(); `+painted, nil)
}

// eventually waits until an expression has a value.
func eventually[T comparable](t *testing.T, p *chromium.Page, expression string, want T) {
	t.Helper()
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		var got T
		if p.Evaluate("("+expression+") ?? null", &got); got != want {
			return fmt.Errorf("%s is %v, want %v", expression, got, want)
		}
		return nil
	})
}
