// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

func TestPageLoadsOnlyItsOwnFiles(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux)
	ask := func(path, tag string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
		r.Header.Set("If-None-Match", tag)
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		return w
	}
	if w := ask("/", ""); w.Code != http.StatusFound || w.Header().Get("Location") != Path {
		t.Errorf("the root got %d to %q, want a redirect to the page", w.Code, w.Header().Get("Location"))
	}
	for path, kind := range map[string]string{"": "text/html", "style.css": "text/css", "app.js": "text/javascript",
		"index.html": "text/html"} {
		w := ask(Path+path, "")
		if w.Code != http.StatusOK || !strings.HasPrefix(w.Header().Get("Content-Type"), kind) || w.Body.Len() == 0 {
			t.Errorf("%q got %d %q", path, w.Code, w.Header())
		}
		for _, want := range []string{"default-src 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"} {
			if !strings.Contains(w.Header().Get("Content-Security-Policy"), want) {
				t.Errorf("%q: the policy %q has no %s", path, w.Header().Get("Content-Security-Policy"), want)
			}
		}
		if again := ask(Path+path, w.Header().Get("ETag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%q got %d although it has not changed, want 304", path, again.Code)
		}
	}
	for _, path := range []string{Path + "page.go", Path + "..%2fpage.go", "/ui", Path + "static/app.js"} {
		if w := ask(path, ""); w.Code == http.StatusOK {
			t.Errorf("%q got %.60q", path, w.Body)
		}
	}
}

// TestPageStaysSmall checks that the page consists of plain modules, sets no text as HTML, and has at most 2,000
// lines.
func TestPageStaysSmall(t *testing.T) {
	lines := 0
	unsafe := regexp.MustCompile(
		`innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setAttribute\("on|localStorage|document\.cookie|https?://[a-z]`)
	entries, err := fs.ReadDir(static, "static")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		content, err := fs.ReadFile(static, "static/"+entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		lines += bytes.Count(content, []byte("\n"))
		if types[strings.TrimPrefix(entry.Name(), strings.TrimRight(entry.Name(), "abcdefghijklmnopqrstuvwxyz"))] == "" &&
			!slices.ContainsFunc([]string{".html", ".css", ".js"},
				func(end string) bool { return strings.HasSuffix(entry.Name(), end) }) {
			t.Errorf("%s has no media type", entry.Name())
		}
		if found := unsafe.Find(content); found != nil {
			t.Errorf("%s has %q", entry.Name(), found)
		}
	}
	if lines > 2000 {
		t.Errorf("the page has %d lines, want at most 2,000", lines)
	}
}

// fleet is a fake hub. It identifies the user and streams the objects of a test. Tests with real hubs are in test/e2e.
type fleet struct {
	url  string
	mu   sync.Mutex // guards conn and writes to it, and secret
	conn *websocket.Conn
	// secret contains each registration Secret, by name.
	secret map[string]any
}

func newFleet(t *testing.T, clusters int) *fleet {
	t.Helper()
	f := &fleet{}
	mux := http.NewServeMux()
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
		upgrader := websocket.Upgrader{Subprotocols: []string{"v1.subscribe.drover.dev"}}
		conn, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		f.mu.Lock()
		f.conn = conn
		for _, kind := range []string{"clusters", "projects", "clusterroletemplatebindings", "projectroletemplatebindings",
			"plans", "hosts"} {
			f.sendLocked(map[string]any{"type": "RESET", "kind": kind})
		}
		for i := range clusters {
			f.sendLocked(cluster(fmt.Sprintf("c%04d", i), "True", "Ready", ""))
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

func (f *fleet) send(message any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sendLocked(message)
}

func cluster(name, ready, reason, message string) map[string]any {
	return map[string]any{"type": "CHANGED", "kind": "clusters", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": name, "labels": map[string]any{"env": "prod"}},
		"status": map[string]any{
			"version": "v1.36.3", "nodes": map[string]any{"ready": 3, "total": 3},
			"conditions": []any{
				map[string]any{
					"type": "Ready", "status": ready, "reason": reason, "message": message,
					"lastTransitionTime": "2026-11-23T10:00:00Z",
				},
			},
		},
	}}
}

// signIn enters a token with the keyboard.
func signIn(t *testing.T, p *chromium.Page, url, token string) {
	t.Helper()
	p.Go(url + Path)
	sees(t, p, "textbox: Or a token, which this page forgets when it is closed")
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

func TestPageShowsTheFleetAsItChanges(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "wrong")
	sees(t, p, "alert", "textbox: Or a token")
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Drover", "link: Clusters", "button: c0000 team · v1.36.3 Ready", "button: c0002",
		"button: Sign out", "button: Import a cluster", "searchbox: Search by name")
	t.Run("CVE-2021-25313, CVE-2022-43760, CVE-2023-32192, CVE-2023-32193, CVE-2024-52281, CVE-2022-31035, "+
		"CVE-2024-28175, CVE-2025-47933, CVE-2026-45738: the page shows text from the hub as text", func(t *testing.T) {
		attack := `javascript:alert(0) <img src=x onerror=alert(1)><script>alert(2)</script>`
		f.send(cluster("c0001", "False", "AgentGone", attack))
		sees(t, p, "button: c0001 team · v1.36.3 Not ready: AgentGone")
		p.Evaluate(`document.querySelectorAll(".tile")[1].click()`, nil)
		sees(t, p, "dialog: c0001 Not ready", "cell: "+attack, "term: Nodes", "button: Close")
		var images int
		p.Evaluate(`document.querySelectorAll("img,main script,dialog script,a[href^=javascript]").length`, &images)
		if images > 0 {
			t.Errorf("text from the hub created %d elements, want none", images)
		}
	})
	t.Run("empty values are not shown, and the rest fits on a phone", func(t *testing.T) {
		p.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": 320, "height": 640, "deviceScaleFactor": 1,
			"mobile": false}, nil)
		var loose, wide int
		p.Evaluate(`[...document.querySelector("dialog").childNodes].filter(n => n.nodeType === Node.TEXT_NODE).length`,
			&loose)
		p.Evaluate(`[document.documentElement, document.querySelector("dialog")].filter(e => e.scrollWidth > e.clientWidth).length`, &wide)
		if loose > 0 || wide > 0 {
			t.Errorf("%d texts without an element and %d elements wider than their place, want none", loose, wide)
		}
		p.Call("Emulation.clearDeviceMetricsOverride", nil, nil)
	})
	t.Run("a selection survives changes, which are shown once it is given up", func(t *testing.T) {
		var selected string
		p.Evaluate(`getSelection().selectAllChildren(document.querySelector("dialog td:last-child"))`, nil)
		p.Evaluate(`getSelection().toString()`, &selected)
		f.send(cluster("c0001", "False", "AgentGone", "still away"))
		f.send(cluster("c0000", "False", "Selected", "")) // ensures that the page has read the message before
		firstTile(t, p, "Selected")
		var now string
		if p.Evaluate(`getSelection().toString()`, &now); selected == "" || now != selected {
			t.Errorf("the selection is %q, want %q as before", now, selected)
		}
		p.Evaluate(`getSelection().removeAllRanges()`, nil)
		sees(t, p, "cell: still away")
		f.send(cluster("c0000", "True", "Ready", ""))
		firstTile(t, p, "Ready")
	})
	t.Run("the page follows the stream", func(t *testing.T) {
		f.send(cluster("c0001", "True", "Ready", "connected again"))
		sees(t, p, "dialog: c0001 Ready", "cell: connected again")
		f.send(map[string]any{"type": "DELETED", "kind": "clusters",
			"object": map[string]any{"metadata": map[string]any{"namespace": "team", "name": "c0001"}}})
		sees(t, p, "dialog: team/c0001", "paragraph")
		p.Evaluate(`document.querySelector("dialog").close()`, nil)
		var left []string
		p.Evaluate(`[...document.querySelectorAll(".tile span")].map(e => e.textContent)`, &left)
		if !slices.Equal(left, []string{"c0000", "c0002"}) {
			t.Errorf("the page shows the fleet %v", left)
		}
	})
	t.Run("a Cluster that the user can only reach has an address, and neither conditions nor bindings",
		func(t *testing.T) {
			reached := cluster("c0003", "True", "Ready", "")
			f.send(map[string]any{"type": "CHANGED", "kind": "clusters", "object": reached["object"], "partial": true})
			sees(t, p, "button: c0003 team · v1.36.3 Ready")
			p.Evaluate(`document.querySelectorAll(".tile")[2].click()`, nil)
			sees(t, p, "dialog: c0003 Ready", "DisclosureTriangle: kubectl")
			var others int
			p.Evaluate(`document.querySelectorAll("dialog table, dialog #who").length`, &others)
			if others > 0 {
				t.Errorf("the dialog has %d tables of conditions or bindings, want none", others)
			}
			p.Evaluate(`document.querySelector("dialog").close()`, nil)
		})
	t.Run("the page says that no manager leads, until one does", func(t *testing.T) {
		const says = "No manager leads: no one watches the fleet, and the states on this page are out of date."
		alert := func(want string) {
			t.Helper()
			testkit.Eventually(t, 10*time.Second, func(context.Context) error {
				var text string
				if p.Evaluate(`document.querySelector("[role=alert]").textContent`, &text); text != want {
					return fmt.Errorf("the page says %q, want %q", text, want)
				}
				return nil
			})
		}
		alert("")
		f.send(map[string]any{"type": "BOOKMARK", "resume": "r", "unmanaged": true})
		alert(says)
		sees(t, p, "alert", "StaticText: "+says)
		p.Screenshot("unmanaged", 1000, 700)
		f.send(map[string]any{"type": "BOOKMARK", "resume": "r"})
		alert("")
	})
	t.Run("the page shows the progress of a Plan", func(t *testing.T) {
		f.send(plan(1, 0))
		p.Evaluate(`location.hash = "#plans"`, nil)
		sees(t, p, "article: Plan team/kernel", "progressbar: canary: 1/2", "progressbar: rest: 0/8",
			"DisclosureTriangle: Failures: 1")
		f.send(plan(2, 0))
		sees(t, p, "progressbar: canary: 2/2")
	})
	t.Run("a failed wave does not show a full bar", func(t *testing.T) {
		f.send(plan(0, 2))
		sees(t, p, "progressbar: canary: 0/2, 2 failed")
		var bar string
		p.Evaluate(`(({ className, value }) => className + " " + value)(document.querySelector("progress"))`, &bar)
		if bar != "failed 0" {
			t.Errorf("the bar has class and value %q, want %q", bar, "failed 0")
		}
	})
	t.Run("the page shows a Host with its state and the reason", func(t *testing.T) {
		f.send(host("True", "Active", ""))
		p.Evaluate(`location.hash = "#hosts"`, nil)
		sees(t, p, "table: Machines with an agent", "cell: team/rack1", "cell: Active", "cell: Active: a message <b>",
			"cell: Debian, amd64")
		f.send(host("False", "InstructionFailed", "E: no space left"))
		sees(t, p, "cell: InstructionFailed: a message <b>", "DisclosureTriangle: Last lines")
	})
	t.Run("axe reports nothing in light and dark mode", func(t *testing.T) { accessible(t, p) })
	t.Run("a stream that is cut is opened again from the beginning", func(t *testing.T) {
		f.mu.Lock()
		_ = f.conn.Close()
		f.mu.Unlock()
		sees(t, p, "button: c0001")
	})
	if problems := slices.DeleteFunc(p.Problems(), func(s string) bool {
		return strings.Contains(s, "status of 401") || strings.Contains(s, "status of 404") ||
			strings.Contains(s, "WebSocket connection") || strings.Contains(s, "Password field is not contained")
	}); len(problems) > 0 {
		t.Errorf("the browser reported %q, want nothing", problems)
	}
	for _, address := range p.Requests() {
		if !strings.HasPrefix(address, f.url+"/") {
			t.Errorf("the page sent a request to %s, want only its own hub", address)
		}
	}
}

// firstTile waits until the first tile has a text. While a dialog is open, a screen reader does not find the tiles.
func firstTile(t *testing.T, p *chromium.Page, want string) {
	t.Helper()
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		var text string
		if p.Evaluate(`document.querySelector(".tile").textContent`, &text); !strings.Contains(text, want) {
			return fmt.Errorf("the first tile is %q, want %q in it", text, want)
		}
		return nil
	})
}

// TestTwoThousandClustersAreShownQuickly reports how long the page takes to show a fleet and a change. The figures are
// in docs/bench/page.md. The test has no time limit.
func TestTwoThousandClustersAreShownQuickly(t *testing.T) {
	chromium.Find(t)
	const clusters = 2000
	f := newFleet(t, clusters)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	awaited := func(expression string) float64 {
		var ms float64
		p.Evaluate(`new Promise(done => { const look = () => (`+expression+`) ? requestAnimationFrame(() => done(performance.now())) : requestAnimationFrame(look); look(); })`, &ms)
		return ms
	}
	full := awaited(fmt.Sprintf(`document.querySelectorAll(".tile").length === %d`, clusters))
	var began, paint float64
	p.Evaluate(`performance.getEntriesByType("resource").filter(e => e.name.includes("whoami")).at(-1).startTime`, &began)
	p.Evaluate(`performance.getEntriesByName("first-contentful-paint")[0].startTime`, &paint)
	t.Logf("first paint after %.0f ms; %d Clusters shown %.0f ms after the user was known", paint, clusters, full-began)
	var slowest float64
	for i := range 20 {
		before := float64(time.Now().UnixNano()) / 1e6
		f.send(cluster(fmt.Sprintf("c%04d", i*97), "False", "Lost", ""))
		shown := awaited(fmt.Sprintf(`document.querySelectorAll(".tile")[%d].className === "tile false"`, i*97))
		var origin float64
		p.Evaluate(`performance.timeOrigin`, &origin)
		slowest = max(slowest, origin+shown-before)
	}
	t.Logf("the slowest of 20 changes was shown after %.0f ms", slowest)
	p.Screenshot("fleet", 1280, 800)
}

// plan returns a Plan in its first wave, with the given numbers of complete and failed Clusters out of two.
func plan(done, failed int) map[string]any {
	progress := func(complete, total, failed int) map[string]any {
		return map[string]any{"complete": complete, "failed": failed, "total": total,
			"summary": fmt.Sprintf("%d/%d", complete, total)}
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
					"name": "c0000", "wave": "canary", "nodes": "2/3", "reason": "Running", "since": "2026-11-23T10:00:00Z",
				},
			},
			"failures": []any{
				map[string]any{
					"cluster": "c0000", "node": "n1", "reason": "Failed", "message": "exit code 1",
					"log": "E: no space left on device",
				},
			},
			"conditions": []any{
				map[string]any{"type": "Ready", "status": "False", "reason": "Progressing", "message": "wave canary is at work"},
			},
		},
	}}
}

// host returns a Host whose agent is connected.
func host(ready, reason, output string) map[string]any {
	return map[string]any{"type": "CHANGED", "kind": "hosts", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "rack1"},
		"status": map[string]any{
			"state": "Active", "machine": map[string]any{"os": "Debian", "architecture": "amd64"},
			"plan":       map[string]any{"output": output},
			"conditions": []any{map[string]any{"type": "Ready", "status": ready, "reason": reason, "message": "a message <b>"}},
		},
	}}
}

// painted is a promise that the page has been painted twice.
const painted = `new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))`

// accessible checks each view, light and dark, with axe-core.
func accessible(t *testing.T, p *chromium.Page) {
	t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		p.Scheme(scheme)
		for _, view := range []struct{ name, hash, open string }{
			{name: "clusters", hash: "#clusters"},
			{name: "plans", hash: "#plans", open: `document.querySelectorAll("details").forEach(d => d.open = true)`},
			{name: "hosts", hash: "#hosts", open: `document.querySelectorAll("details").forEach(d => d.open = true)`},
			{name: "why", hash: "#can"},
			{
				name: "cluster", hash: "#clusters",
				open: `document.querySelector(".tile").click(); document.querySelectorAll("details").forEach(d => d.open = true)`,
			},
			{name: "import", hash: "#clusters", open: `document.querySelector("button.main").click()`},
		} {
			p.Evaluate(`location.hash = "`+view.hash+`"; `+painted, nil)
			p.Evaluate(view.open+`; `+painted, nil)
			if found := p.Axe(t); len(found) > 0 {
				t.Errorf("%s, %s: %q", view.name, scheme, found)
			}
			p.Screenshot(view.name+"-"+scheme, 1000, 700)
			p.Evaluate(`document.querySelector("dialog").close()`, nil)
		}
	}
	p.Scheme("")
}
