// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chromium"
	"github.com/drover-dev/drover/test/testkit"
)

// signedIn returns a page that shows a fleet of clusters.
func signedIn(t *testing.T, clusters int) (*fleet, *chromium.Page) {
	t.Helper()
	chromium.Find(t)
	f := newFleet(t, clusters)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview", "StaticText: Live")
	return f, p
}

// press presses a key together with Control, or without it.
func press(p *chromium.Page, key string, control bool) {
	modifiers := 0
	if control {
		modifiers = 2
	}
	text := key
	if control {
		text = ""
	}
	for _, kind := range []string{"keyDown", "keyUp"} {
		p.Call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "text": text, "modifiers": modifiers}, nil)
	}
}

func TestAddressesCanBeSharedAndBackWorks(t *testing.T) {
	_, p := signedIn(t, 3)
	moved := map[string]string{"#clusters": "#/clusters", "#plans": "#/plans", "#hosts": "#/hosts", "#can": "#/access/why"}
	for old, now := range moved {
		at(p, old)
		eventually(t, p, `location.hash`, now)
	}
	at(p, "#/clusters?q=c0001")
	eventually(t, p, `[...document.querySelectorAll("main tbody th")].map(e => e.textContent).join()`, "c0001")
	eventually(t, p, `document.querySelector(".search").value`, "c0001")
	click(t, p, "main tbody a")
	eventually(t, p, `location.hash`, "#/clusters/team/c0001")
	eventually(t, p, `document.title`, "c0001 · team – Drover")
	eventually(t, p, `document.activeElement.textContent`, "c0001") // the heading has the focus
	p.Evaluate(`history.back()`, nil)
	eventually(t, p, `location.hash`, "#/clusters?q=c0001")
	eventually(t, p, `document.activeElement.tagName + document.activeElement.textContent`, "H1Clusters")
	at(p, "#/no/such/view")
	sees(t, p, "heading: There is no such view")
}

func TestTheCommandPaletteJumpsToAnyCluster(t *testing.T) {
	_, p := signedIn(t, 3)
	press(p, "k", true)
	sees(t, p, "dialog: Commands", "option: Go to Clusters")
	p.Type("c0002")
	eventually(t, p, `document.querySelector("[role=option][aria-selected=true] .palette-title").textContent`, "c0002")
	p.Press("Enter")
	eventually(t, p, `location.hash`, "#/clusters/team/c0002")
	press(p, "g", false)
	press(p, "p", false)
	eventually(t, p, `location.hash`, "#/plans")
	press(p, "?", false)
	sees(t, p, "dialog: Keyboard")
	p.Press("Escape")
	eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
}

// TestAnOpenDialogKeepsItsState changes the fleet, and leaves the view, while a user fills in a form.
func TestAnOpenDialogKeepsItsState(t *testing.T) {
	f, p := signedIn(t, 3)
	at(p, "#/clusters")
	sees(t, p, "button: Import a cluster")
	click(t, p, ".actions .primary")
	p.Type("team")
	p.Press("Tab")
	p.Type("half-typed")
	p.Evaluate(`window.kept = document.activeElement`, nil)
	f.send(cluster("c0000", "False", "TunnelLost", "gone"))
	f.send(map[string]any{"type": "RESET", "kind": "clusters"})
	f.send(cluster("other", "True", "Connected", ""))
	f.send(map[string]any{"type": "BOOKMARK", "resume": "r"})
	eventually(t, p, `[...document.querySelectorAll("main tbody th")].map(e => e.textContent).join()`, "other")
	at(p, "#/plans")
	eventually(t, p, `document.title`, "Plans – Drover")
	eventually(t, p, `[...document.querySelectorAll("dialog input")].map(e => e.value).join()`, "team,half-typed")
	eventually(t, p, `document.activeElement === window.kept && window.kept.isConnected`, true)
}

func TestActionsAreShownOnlyToUsersWhoMayUseThem(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	f.denied = map[string]bool{"create": true, "delete": true}
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview")
	at(p, "#/clusters")
	sees(t, p, "link: c0001")
	reviews := func() int {
		n := 0
		for _, request := range p.Requests() {
			if strings.HasSuffix(request, "/selfsubjectaccessreviews") {
				n++
			}
		}
		return n
	}
	// answered waits until each review has been answered and the answers are shown. It returns the number of reviews.
	answered := func() int {
		n := 0
		testkit.Eventually(t, 20*time.Second, func(context.Context) error {
			n = reviews()
			var done int
			p.Evaluate(painted+`.then(() => performance.getEntriesByType("resource")
				.filter(e => e.name.endsWith("/selfsubjectaccessreviews")).length)`, &done)
			if now := reviews(); done != now || n != now {
				return fmt.Errorf("got answers to %d of %d reviews, want all", done, now)
			}
			return nil
		})
		return n
	}
	answered()
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: c0001", "link: Connect")
	asked := answered()
	eventually(t, p, `document.querySelectorAll("[title=Delete], .actions .primary").length`, 0)
	at(p, "#/clusters")
	sees(t, p, "link: c0001")
	now := answered()
	eventually(t, p, `document.querySelectorAll(".actions .primary").length`, 0)
	if asked == 0 || now != asked {
		t.Errorf("the page has sent %d reviews and then %d, want some and no more: it keeps their answers", asked, now)
	}
}

// TestHostileTextIsBoundedAndVisible sends what members and tenants can write: direction and control characters,
// terminal codes, and a megabyte.
func TestHostileTextIsBoundedAndVisible(t *testing.T) {
	f, p := signedIn(t, 0)
	attack := "safe\u202egnp.exe \x1b[31mred\x1b[0m a\u200bb " + strings.Repeat("<b>x", 250_000)
	message := cluster("c0000", "False", "AgentGone\u202e", attack)
	metadata := message["object"].(map[string]any)["metadata"].(map[string]any)
	metadata["labels"] = map[string]any{"env": strings.Repeat("p", 10_000)}
	f.send(message)
	at(p, "#/clusters/team/c0000")
	sees(t, p, "heading: c0000")
	var text string
	p.Evaluate(`document.querySelector(".message").textContent`, &text)
	if !strings.HasPrefix(text, "safe⟨202E⟩gnp.exe ⟨001B⟩[31mred") || len(text) > 10_000 {
		t.Errorf("the page shows %d bytes, %.100q, want the hidden characters by their numbers and at most 10,000",
			len(text), text)
	}
	for _, hash := range []string{"#/", "#/clusters", "#/clusters/team/c0000"} {
		at(p, hash)
		eventually(t, p, `/[\u202a-\u202e\u001b\u200b]/.test(document.documentElement.textContent)`, false)
		eventually(t, p, `document.documentElement.textContent.length < 50000`, true)
		eventually(t, p, wideElements, 0)
	}
}

func TestThemeAndDensityAreKept(t *testing.T) {
	f, p := signedIn(t, 3)
	choose := func(name string) {
		p.Evaluate(`[...document.querySelectorAll(".segments button")]
			.find(b => b.textContent === "`+name+`").click(); `+painted, nil)
	}
	choose("Dark")
	choose("Compact")
	signIn(t, p, f.url, "secret") // opens the page again
	sees(t, p, "heading: Overview")
	eventually(t, p, `Object.values(document.documentElement.dataset).sort().join()`, "compact,dark")
	eventually(t, p, `getComputedStyle(document.body).backgroundColor`, "rgb(14, 16, 20)")
	eventually(t, p, `Object.keys(localStorage).sort().join()`, "drover.ui.density,drover.ui.theme")
}

func TestALostConnectionCannotBeOverlooked(t *testing.T) {
	f, p := signedIn(t, 3)
	f.cut(true)
	sees(t, p, "alert", "StaticText: Not connected.", "button: Try now")
	eventually(t, p, `document.querySelectorAll(".banner button").length`, 1)
	f.mu.Lock()
	f.refusing = false
	f.mu.Unlock()
	click(t, p, ".banner button")
	eventually(t, p, `document.querySelector(".banner").textContent`, "")
	sees(t, p, "StaticText: Live")
}

// TestThePaletteShowsCommandsThatAreRegisteredLater opens the palette before a view has registered its commands.
func TestThePaletteShowsCommandsThatAreRegisteredLater(t *testing.T) {
	_, p := signedIn(t, 0)
	press(p, "k", true)
	sees(t, p, "dialog: Commands", "option: Go to Clusters")
	p.Evaluate(`import("/ui/shell/commands.js").then(({ register }) => {
		register([{ id: "late", title: "A late command", run() {} }]); return 0; })`, nil)
	sees(t, p, "option: A late command")
}

// TestTenThousandClustersStaySmooth reports figures for docs/bench/page.md, and checks facts that do not depend on the
// machine: how many elements there are, and that sorting, filtering and scrolling to the end work.
func TestTenThousandClustersStaySmooth(t *testing.T) {
	const clusters = 10_000
	chromium.Find(t)
	f := newFleet(t, clusters)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	at(p, "#/clusters")
	reportFirstSight(t, p, clusters)
	eventually(t, p, `document.querySelector("main table")?.ariaRowCount`, "10001")
	eventually(t, p, `document.querySelectorAll("main tbody tr").length < 100`, true)
	reportChanges(t, p, f)
	p.Evaluate(`document.querySelector(".table-scroll").scrollTop = 1e9; `+painted, nil)
	eventually(t, p, `[...document.querySelectorAll("main tbody th")].at(-1).textContent`, "c9999")
	for _, pixels := range []int{100, 400} {
		var rate float64
		p.Evaluate(fmt.Sprintf(`new Promise(done => {
			const list = document.querySelector(".table-scroll"), began = performance.now();
			let frames = 0;
			const step = () => {
				list.scrollTop = frames++ * %d;
				if (performance.now() - began < 2000) requestAnimationFrame(step);
				else done(frames / (performance.now() - began) * 1000);
			};
			step();
		})`, pixels), &rate)
		t.Logf("%.0f frames a second while scrolling %d pixels a frame", rate, pixels)
	}
	var memory struct{ JSHeapUsedSize float64 }
	p.Call("HeapProfiler.collectGarbage", nil, nil)
	p.Call("Runtime.getHeapUsage", nil, &struct{ UsedSize *float64 }{&memory.JSHeapUsedSize})
	t.Logf("%.1f MB of memory for objects", memory.JSHeapUsedSize/1e6)
	at(p, "#/clusters?sort=-name")
	eventually(t, p, `document.querySelector("main tbody tr:not(.space) th").textContent`, "c9999")
	at(p, "#/clusters?q=c12&sort=-name")
	eventually(t, p, `document.querySelector("main tbody th").textContent`, "c1299")
}
