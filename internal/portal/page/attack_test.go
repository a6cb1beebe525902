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

// reviews returns how often the page has asked what the user may do at the hub.
func reviews(p *chromium.Page) int {
	n := 0
	for _, request := range p.Requests() {
		if strings.HasSuffix(request, "/k8s/local/apis/authorization.k8s.io/v1/selfsubjectaccessreviews") {
			n++
		}
	}
	return n
}

// answered waits until all reviews have been answered and the answers are shown. It returns the number of reviews.
func answered(t *testing.T, p *chromium.Page) int {
	t.Helper()
	n := 0
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		n = reviews(p)
		var done int
		p.Evaluate(painted+`.then(() => performance.getEntriesByType("resource")
			.filter(e => e.name.endsWith("/k8s/local/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")).length)`, &done)
		if now := reviews(p); n == 0 || done != now || n != now {
			return fmt.Errorf("got answers to %d of %d reviews, want all, and at least one", done, now)
		}
		return nil
	})
	return n
}

// TestLinksCannotInjectIntoCommands follows links of an attacker, who wants the user to copy a command to a shell.
func TestLinksCannotInjectIntoCommands(t *testing.T) {
	_, p := withAccess(t)
	const shown = `document.querySelector("main .command pre")?.textContent ?? "none"`
	for _, tt := range []struct{ query, want string }{
		{"who=github:bob&verb=list&resource=pods", "kubectl drover why github:bob list pods --cluster team/c0001"},
		{"who=Domain%20Users&verb=get;id&resource=pods",
			`kubectl drover why "Domain Users" get pods --cluster team/c0001`},
		{"who=a;id%20%23'&resource=pods", "none"},
		{"who=a%26calc&resource=pods", "none"},
		{"who=a&resource=pods&namespace=$(id)%0Aid", "none"},
		{"who=x%5C&resource=pods", "none"},
		{"who=--kubeconfig=/tmp/x&resource=pods", "none"},
	} {
		at(p, "#/")
		at(p, "#/access/why?cluster=team/c0001&"+tt.query)
		activate(t, p, "main button", "Ask")
		sees(t, p, "heading: Who else may do it")
		eventually(t, p, shown, tt.want)
	}
	at(p, "#/clusters/team/x;id")
	sees(t, p, "StaticText: This cluster is gone")
	press(p, "k", true)
	sees(t, p, "dialog: Commands", "option: Go to Clusters")
	unseen(t, p, "option: Copy the kubectl command")
	p.Press("Escape")
	at(p, "#/clusters/team/c0001")
	sees(t, p, "heading: c0001")
	press(p, "k", true)
	sees(t, p, "option: Copy the kubectl command for c0001")
}

// TestManyBindingsDoNotFloodTheHub shows a Project with more bindings than the page keeps answers.
func TestManyBindingsDoNotFloodTheHub(t *testing.T) {
	f, p := withAccess(t)
	for i := range 600 {
		f.send(grant("projectroletemplatebindings", fmt.Sprintf("b%03d", i), fmt.Sprintf("github:u%03d", i), "viewer",
			map[string]any{"projectName": "shop"}))
	}
	before := reviews(p)
	at(p, "#/projects/team/shop/members")
	sees(t, p, "link: github:u000", "button: Revoke viewer of github:u000", "StaticText: And 401 more.")
	eventually(t, p, `document.querySelectorAll("main tbody tr").length`, 200)
	if asked := answered(t, p) - before; asked > 20 {
		t.Errorf("the page sent %d reviews for 601 bindings, want one for their namespace", asked)
	}
	const questions = `import("/ui/core/rights.js").then(({ may }) => {
		const ask = () => Array.from({ length: 600 }, (_, i) => may({ verb: "get", resource: "clusters", name: "n" + i }));
		ask();
		return ask().filter((answer) => answer === true).length >= 100;
	})`
	eventually(t, p, questions, true)
	testkit.Eventually(t, 20*time.Second, func(context.Context) error {
		asked := reviews(p) - before
		if p.Evaluate(painted, nil); asked < 400 || asked != reviews(p)-before {
			return fmt.Errorf("the page has sent %d reviews so far, want hundreds and then no more", asked)
		}
		return nil
	})
	if asked := reviews(p) - before; asked > 500 {
		t.Errorf("the page sent %d reviews, want at most 500 in a minute", asked)
	}
}

// TestLabelsGoOnlyToTheClusterThatWasShown replaces a Cluster by another one of its name while the dialog is open.
func TestLabelsGoOnlyToTheClusterThatWasShown(t *testing.T) {
	f, p := signedIn(t, 1)
	at(p, "#/clusters/team/c0000")
	activate(t, p, "main button", "Edit labels")
	sees(t, p, "dialog: Labels of c0000", "button: Remove env")
	other := cluster("c0000", "True", "Ready", "")
	other["object"].(map[string]any)["metadata"].(map[string]any)["uid"] = "uid-of-another"
	f.send(other)
	sees(t, p, "dialog: Labels of c0000", "StaticText: 1 selected cluster")
	eventually(t, p, `document.querySelector("dialog .primary").disabled`, true)
}

// TestTheTextOfAddressesIsVisible follows links with characters that are hidden or change the direction of text.
func TestTheTextOfAddressesIsVisible(t *testing.T) {
	_, p := signedIn(t, 1)
	at(p, "#/clusters/team/safe%E2%80%AEgnp")
	sees(t, p, "heading: team/safe⟨202E⟩gnp")
	eventually(t, p, `document.title`, "safe⟨202E⟩gnp · team – Drover")
	at(p, "#/access/why?who=%1Bx%E2%80%8B&resource=pods")
	eventually(t, p, `[...document.querySelectorAll("main input")].map(e => e.value).join()`,
		",⟨001B⟩x⟨200B⟩,pods,,")
}

// TestCopiedTextIsWhatIsShown copies names that would run a command or delete text in a terminal.
func TestCopiedTextIsWhatIsShown(t *testing.T) {
	f, p := signedIn(t, 1)
	p.Evaluate(`navigator.clipboard.writeText = async (text) => { window.copied = text; }`, nil)
	for image, want := range map[string]string{
		"agent:1":                   "agent:1",
		"agent:1\b\f\x1b[2K":        "agent:1⟨0008⟩⟨000C⟩⟨001B⟩[2K",
		"agent:1\r\nid\n":           "agent:1⟨000D⟩ id ",
		strings.Repeat("a", 16_000): "",
	} {
		message := cluster("c0000", "True", "Ready", "")
		message["object"].(map[string]any)["status"].(map[string]any)["agent"] = map[string]any{"image": image}
		f.send(message)
		at(p, "#/clusters/team/c0000")
		if want == "" {
			sees(t, p, "StaticText: Too long to copy")
			continue
		}
		eventually(t, p, `document.querySelector("main .copy-field code")?.textContent`, want)
		p.Evaluate(`window.copied = undefined; document.querySelector("main .copy-field button").click()`, nil)
		eventually(t, p, `window.copied`, want)
	}
	// Messages that contain only short escapes are cleaned, too.
	eventually(t, p, `import("/ui/lib/text.js").then(({ parse }) => parse('{"a":"x\\b"}').a)`, "x⟨0008⟩")
}

// TestNamesOfInheritedPropertiesAreNamesLikeOthers uses names that every object of JavaScript has.
func TestNamesOfInheritedPropertiesAreNamesLikeOthers(t *testing.T) {
	f, p := withAccess(t)
	message := cluster("c0001", "False", "constructor", "")
	status := message["object"].(map[string]any)["status"].(map[string]any)
	status["conditions"] = append(status["conditions"].([]any),
		map[string]any{"type": "toString", "status": "False", "reason": "valueOf", "message": "odd"})
	f.send(message)
	at(p, "#/clusters/team/c0001/constructor")
	sees(t, p, "heading: Facts", "heading: Conditions", "StaticText: Constructor", "StaticText: odd")
	for _, hash := range []string{"#/access?group=constructor", "#/clusters?group=valueOf",
		"#/clusters?group=label:toString"} {
		at(p, hash)
		sees(t, p, "rowheader: ")
		eventually(t, p, `[...document.querySelectorAll("main tr.group th")].map(e => e.textContent)
			.filter(name => !/^– [0-9]+$/.test(name.trim())).join()`, "")
	}
	at(p, "#/projects/team/shop/constructor")
	sees(t, p, "heading: Facts")
	at(p, "#/hosts/constructor")
	sees(t, p, "StaticText: There are no hosts that you can see")
	const selects = `import("/ui/core/select.js").then(({ targets }) => targets({ clusterSelector: {
		matchExpressions: [{ key: "constructor", operator: "Exists" }] } }, { metadata: { labels: {} } }))`
	eventually(t, p, selects, false)
}

// TestABindingWithTheNameOfAGrantIsNotTheGrant creates a binding with the name that the page would give to a grant.
func TestABindingWithTheNameOfAGrantIsNotTheGrant(t *testing.T) {
	f, p := withAccess(t)
	at(p, "#/access")
	activate(t, p, "main button", "Grant a role")
	yaml := fillGrant(t, p, "carol", "operator", "Cluster", "c0002")
	f.send(grant("clusterroletemplatebindings", nameIn(yaml), "github:mallory", "viewer",
		map[string]any{"clusterName": "c0002"}))
	sees(t, p, "StaticText: The binding "+nameIn(yaml)+" grants something else: github:mallory has the role viewer")
	activate(t, p, "dialog button", "Grant")
	sees(t, p, "alert", "StaticText: The binding "+nameIn(yaml)+" grants something else.")
	f.send(grant("clusterroletemplatebindings", nameIn(yaml), "github:carol", "operator",
		map[string]any{"clusterName": "c0002"}))
	eventually(t, p, `document.querySelector("dialog .note").textContent`,
		"This is granted already. Granting it again changes its end.")
}

func TestASelectorHasEachKeyOnce(t *testing.T) {
	_, p := signedIn(t, 0)
	const selectors = `import("/ui/core/access.js").then(({ selectorOf }) =>
		["env=prod, tier==edge", "", "=prod", "env=prod,=x", "env=prod,", "env=prod,env=dev", "env", "a=b=c", "a=;"]
			.map(text => JSON.stringify(selectorOf(text))).join())`
	const none = ",null,null,null,null,null,null,null,null"
	eventually(t, p, selectors, `{"matchLabels":{"env":"prod","tier":"edge"}}`+none)
}

// TestAMemberCannotBreakThePageWithItsAnswers sends what a compromised member can: odd shapes and a very long answer.
func TestAMemberCannotBreakThePageWithItsAnswers(t *testing.T) {
	f, p := signedIn(t, 2)
	f.on("POST "+reviewsPath+"selfsubjectaccessreviews",
		always(map[string]any{"status": map[string]any{"allowed": true}}))
	odd := map[string]any{"toString": 1, "valueOf": 1}
	named := func(name string) map[string]any { return map[string]any{"name": name, "creationTimestamp": odd} }
	items := []any{nil, 1, map[string]any{"metadata": nil},
		map[string]any{"metadata": named("a"), "status": nil, "spec": nil},
		map[string]any{"metadata": named("b"), "status": map[string]any{
			"conditions": []any{nil, map[string]any{"type": odd, "status": "True", "message": odd}},
			"nodeInfo":   map[string]any{"osImage": odd, "kubeletVersion": odd}, "allocatable": map[string]any{"cpu": odd}}}}
	for i := range 600 {
		items = append(items, map[string]any{"metadata": named(fmt.Sprintf("n%03d", i))})
	}
	for _, tt := range []struct {
		answer any
		wanted []string
	}{
		{map[string]any{"items": items}, []string{"table: Nodes", "rowheader: a", "rowheader: b", "StaticText: 500"}},
		{nil, []string{"StaticText: The cluster has no nodes"}},
		{map[string]any{"items": "none"}, []string{"StaticText: The cluster has no nodes"}},
		{strings.Repeat("x", 33<<20), []string{"StaticText: The answer is too long to be shown."}},
	} {
		f.on("GET /k8s/clusters/team/c0001/api/v1/nodes", always(tt.answer))
		at(p, "#/clusters")
		at(p, "#/clusters/team/c0001/nodes")
		sees(t, p, tt.wanted...)
	}
}

// TestActionsFollowTheBindingsOfTheUser begins and ends bindings, which the hub tells without a RESET.
func TestActionsFollowTheBindingsOfTheUser(t *testing.T) {
	f, p := signedIn(t, 1)
	at(p, "#/clusters")
	far := func(kind string) map[string]any {
		message := cluster("far", "True", "Connected", "")
		message["type"], message["partial"] = kind, kind == "CHANGED"
		return message
	}
	binding := func(who, kind string, generation int, reason string) map[string]any {
		message := grant("clusterroletemplatebindings", "of-"+who[6:], who, "operator",
			map[string]any{"clusterName": "c0000"})
		content := message["object"].(map[string]any)
		content["metadata"].(map[string]any)["generation"] = generation
		content["status"] = map[string]any{"conditions": []any{condition("Ready", "True", reason, "")}}
		message["type"] = kind
		return message
	}
	shown := func(want bool) { // the right to create Clusters shows the button
		t.Helper()
		eventually(t, p, `document.querySelector(".actions .primary") !== null`, want)
	}
	shown(true)
	allowed := true
	for _, message := range []map[string]any{
		far("CHANGED"), far("DELETED"), binding("local:alice", "CHANGED", 1, "Applied"),
		binding("local:alice", "CHANGED", 2, "Applied"), binding("local:alice", "CHANGED", 2, "Expired"),
		binding("local:alice", "DELETED", 2, "Expired"),
	} {
		allowed = !allowed
		f.mu.Lock()
		f.denied = map[string]bool{"create": !allowed}
		f.mu.Unlock()
		f.send(message)
		f.send(map[string]any{"type": "BOOKMARK", "resume": "r"})
		shown(allowed)
	}
	before := answered(t, p)
	f.send(cluster("c0000", "False", "TunnelLost", ""))
	f.send(binding("local:bob00", "CHANGED", 1, "Applied"))
	f.send(map[string]any{"type": "BOOKMARK", "resume": "r", "unmanaged": true})
	sees(t, p, "StaticText: No manager leads")
	if now := answered(t, p); now != before {
		t.Errorf("the page sent %d reviews after changes that do not affect the user's rights, want none", now-before)
	}
}

// TestActionsStayWhileTheirRightsAreAskedAgain resets the stream, after which the page asks again what the user may do.
func TestActionsStayWhileTheirRightsAreAskedAgain(t *testing.T) {
	_, p := signedIn(t, 1)
	const right = `({ verb: "create", resource: "clusters", namespace: "x" })`
	eventually(t, p, `import("/ui/core/rights.js").then(({ may }) => may(`+right+`) === true)`, true)
	before := reviews(p)
	var kept bool
	p.Evaluate(`import("/ui/core/rights.js").then(({ may, forget }) => { forget(); return may(`+right+`) === true; })`,
		&kept)
	if !kept {
		t.Error("the action is not allowed while its right is asked again, want it to stay")
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if now := reviews(p); now == before {
			return fmt.Errorf("the page has sent %d reviews, want one more", now)
		}
		return nil
	})
}
