// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"testing"
	"time"
)

// TestBindingsThatHaveEndedDoNotCount shows views with bindings in force, bindings that end soon, and bindings that
// have ended.
func TestBindingsThatHaveEndedDoNotCount(t *testing.T) {
	f, p := withAccess(t) // with one binding to c0001 that has ended
	ends := func(after time.Duration) string { return time.Now().Add(after).UTC().Format(time.RFC3339) }
	f.send(grant("projectroletemplatebindings", "erin-old", "local:erin", "viewer",
		map[string]any{"projectName": "shop", "expiresAt": ends(-time.Hour)}))
	old := grant("clusterroletemplatebindings", "fred-old", "local:fred", "operator",
		map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"tier": "edge"}},
			"expiresAt": ends(-time.Hour)})
	old["object"].(map[string]any)["status"] = map[string]any{"conditions": []any{map[string]any{"type": "Ready",
		"status": "True", "reason": "Expired", "message": "it has expired"}}} // as the hub reports it
	f.send(old)
	const text = `document.querySelector("main").textContent`
	at(p, "#/access?ends=ended")
	sees(t, p, "link: local:erin", "link: local:fred") // the page has received all bindings
	at(p, "#/")
	sees(t, p, "heading: Needs attention")
	eventually(t, p, text+`.includes("within a week")`, false)
	f.send(grant("clusterroletemplatebindings", "gina", "local:gina", "operator",
		map[string]any{"clusterName": "c0002", "expiresAt": ends(48 * time.Hour)}))
	sees(t, p, "link: 1 binding ends within a week")
	activate(t, p, "main a", "1 binding ends within a week")
	eventually(t, p, `[...document.querySelectorAll("main tbody th")].map(e => e.textContent.trim()).join()`,
		"local:gina")

	at(p, "#/clusters/team/c0001/access")
	sees(t, p, "heading: Who can use this cluster")
	eventually(t, p, text+`.includes("2 bindings have ended. All bindings that have ended")`, true)
	eventually(t, p, `[...document.querySelectorAll("main table")].map(e => e.textContent).join()
		.match(/local:\w+|github:\w+/g).sort().join()`, "github:bob,local:alice")
	eventually(t, p, `document.querySelector(".tabs [aria-current] .badge").textContent`, "2")
	eventually(t, p, `document.querySelector("main table").querySelectorAll("tbody tr").length`, 2)
	click(t, p, "[title=Delete]")
	sees(t, p, "dialog: Delete the cluster c0001?")
	eventually(t, p, `document.querySelector("dialog").textContent.includes("2 bindings lead to this cluster.")`, true)
	p.Press("Escape")

	at(p, "#/projects")
	sees(t, p, "rowheader: shop")
	eventually(t, p, `document.querySelector("main tbody tr").children[5].textContent`, "1")
	at(p, "#/projects/team/shop/members")
	sees(t, p, "link: local:alice")
	eventually(t, p, `document.querySelector(".tabs [aria-current] .badge").textContent`, "1")
	eventually(t, p, text+`.includes("local:erin")`, false)
	at(p, "#/access/bindings/team/cluster/fred-old")
	sees(t, p, "heading: local:fred is operator", "StaticText: This binding has ended.", "StaticText: The role has ended")

	at(p, "#/clusters/team/c0001")
	activate(t, p, "main button", "Edit labels")
	sees(t, p, "dialog: Labels of c0001")
	p.Type("tier")
	p.Press("Tab")
	p.Type("edge")
	eventually(t, p, `document.querySelector("dialog .primary").disabled`, false)
	eventually(t, p, `document.querySelector("dialog").textContent.includes("fred-old")`, false)
}
