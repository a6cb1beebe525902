// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chromium"
)

const (
	bindingsPath = "/k8s/local/apis/cluster.drover.dev/v1/namespaces/team/"
	reviewsPath  = "/k8s/clusters/team/c0001/apis/authorization.k8s.io/v1/"
)

// object returns a message of the stream with an object.
func object(kind, namespace, name string, spec map[string]any) map[string]any {
	metadata := map[string]any{"name": name, "uid": "uid-of-" + name, "generation": 1}
	if namespace != "" {
		metadata["namespace"] = namespace
	}
	return map[string]any{"type": "CHANGED", "kind": kind, "object": map[string]any{"metadata": metadata, "spec": spec}}
}

func role(name, context string, inherits []string, verbs, resources []string) map[string]any {
	message := object("roletemplates", "", name, map[string]any{"context": context, "inherits": inherits,
		"rules": []any{map[string]any{"verbs": verbs, "apiGroups": []string{""}, "resources": resources}}})
	message["object"].(map[string]any)["status"] = map[string]any{"conditions": []any{
		map[string]any{"type": "Ready", "status": "True", "reason": "Available"}}}
	return message
}

func grant(kind, name, who, role string, target map[string]any) map[string]any {
	target["subject"], target["roleTemplateName"] = map[string]any{"kind": "User", "name": who}, role
	return object(kind, "team", name, target)
}

// withAccess returns a page with two roles, a Project and three bindings.
func withAccess(t *testing.T) (*fleet, *chromium.Page) {
	t.Helper()
	f, p := signedIn(t, 3)
	f.send(role("viewer", "Project", nil, []string{"get", "list"}, []string{"pods"}))
	f.send(role("operator", "Cluster", []string{"viewer"}, []string{"delete"}, []string{"pods"}))
	f.send(object("projects", "team", "shop", map[string]any{"clusterName": "c0001", "namespaces": []string{"web", "db"},
		"resourceQuota":                 map[string]any{"limits.cpu": "8", "limits.memory": "16Gi"},
		"namespaceDefaultResourceQuota": map[string]any{"limits.cpu": "2", "limits.memory": "4Gi"}}))
	f.send(grant("projectroletemplatebindings", "alice-viewer", "local:alice", "viewer",
		map[string]any{"projectName": "shop"}))
	f.send(grant("clusterroletemplatebindings", "bob-operator", "github:bob", "operator",
		map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"env": "prod"}}}))
	f.send(grant("clusterroletemplatebindings", "alice-old", "local:alice", "operator",
		map[string]any{"clusterName": "c0001", "expiresAt": "2026-01-01T00:00:00Z"}))
	return f, p
}

// activate puts the focus on the element with a text or label, and presses Enter.
func activate(t *testing.T, p *chromium.Page, selector, text string) {
	t.Helper()
	eventually(t, p, `(() => { const e = [...document.querySelectorAll("`+selector+`")]
		.find(e => (e.ariaLabel ?? e.textContent).trim() === "`+text+`");
		e?.focus(); return document.activeElement === e; })()`, true)
	p.Press("Enter")
}

// fillGrant fills the form for grants in workspace team and returns the YAML that the form shows. The kind of the place
// is Cluster or Project.
func fillGrant(t *testing.T, p *chromium.Page, user, role, kind, place string) string {
	t.Helper()
	sees(t, p, "dialog: Grant a role")
	choose(t, p, "Name", "github:"+user)
	choose(t, p, "Workspace", "team")
	choose(t, p, kind, place)
	choose(t, p, "Role", role)
	eventually(t, p, `document.querySelector("dialog pre")?.textContent.includes("name: `+
		strings.Join([]string{user, role, place}, "-")+`-")`, true)
	var yaml string
	p.Evaluate(`document.querySelector("dialog pre").textContent`, &yaml)
	return yaml
}

// choose selects an option of a field with the keyboard, as a user does who types its first letters.
func choose(t *testing.T, p *chromium.Page, label, option string) {
	t.Helper()
	field := `[...document.querySelectorAll("dialog label, main label")]
		.find(l => l.textContent === "` + label + `")?.control`
	eventually(t, p, `(() => { const e = `+field+`; e?.focus(); return Boolean(e) && document.activeElement === e; })()`,
		true)
	p.Evaluate(`(() => { const e = `+field+`;
		e.value = "`+option+`";
		e.dispatchEvent(new Event("input", { bubbles: true }));
		e.dispatchEvent(new Event("change", { bubbles: true })); })(); `+painted, nil)
}

func TestARoleIsGrantedAndRevokedByKeyboard(t *testing.T) {
	f, p := withAccess(t)
	at(p, "#/access")
	activate(t, p, "main button", "Grant a role")
	eventually(t, p, `document.activeElement.labels?.[0]?.textContent`, "Name")
	p.Type("github:carol")
	choose(t, p, "Workspace", "team")
	choose(t, p, "Cluster", "c0002")
	choose(t, p, "Role", "operator")
	choose(t, p, "Ends", "7d")
	var yaml string
	eventually(t, p, `/name: carol-operator-c0002-[^]*expiresAt: /
		.test(document.querySelector("dialog pre")?.textContent)`, true)
	p.Evaluate(`document.querySelector("dialog pre").textContent`, &yaml)
	for _, want := range []string{"kind: ClusterRoleTemplateBinding\n", "  namespace: team\n", "  clusterName: c0002\n",
		"  subject:\n    kind: User\n    name: \"github:carol\"\n", "  expiresAt: \"20"} {
		if !strings.Contains(yaml, want) {
			t.Errorf("the manifest has no %q:\n%s", want, yaml)
		}
	}
	f.on("PATCH "+bindingsPath+"clusterroletemplatebindings/"+nameIn(yaml), always(map[string]any{}))
	activate(t, p, "dialog button", "Grant")
	sent := f.awaitSent(t, "PATCH "+bindingsPath+"clusterroletemplatebindings/carol-operator-c0002-")
	spec := sent.body["spec"].(map[string]any)
	if got, want := fmt.Sprint(sent.kind, sent.query, spec["clusterName"], spec["subject"]),
		"application/apply-patch+yamlfieldManager=drover-page&force=falsec0002map[kind:User name:github:carol]"; got != want {
		t.Errorf("the page sent %s, want %s", got, want)
	}
	end, err := time.Parse(time.RFC3339, spec["expiresAt"].(string))
	if left := time.Until(end); err != nil || left < 167*time.Hour || left > 169*time.Hour {
		t.Errorf("the grant ends in %s (%v), want a week", left, err)
	}
	eventually(t, p, `document.querySelectorAll("dialog").length`, 0)
	sees(t, p, "StaticText: github:carol has the role operator in cluster c0002.")

	f.on("DELETE "+bindingsPath+"clusterroletemplatebindings/bob-operator", always(map[string]any{}))
	activate(t, p, "main tbody a", "github:bob")
	sees(t, p, "heading: github:bob is operator", "button: Revoke")
	activate(t, p, "main button", "Revoke")
	sees(t, p, "dialog: Revoke this role?")
	activate(t, p, "dialog button", "Revoke")
	body := f.awaitSent(t, "DELETE "+bindingsPath+"clusterroletemplatebindings/bob-operator").body
	if got := fmt.Sprint(body["preconditions"]); got != "map[uid:uid-of-bob-operator]" {
		t.Errorf("the page deleted with the preconditions %s, want the UID of the shown binding", got)
	}
	eventually(t, p, `location.hash`, "#/access")
}

// nameIn returns the name in a manifest.
func nameIn(yaml string) string {
	_, after, _ := strings.Cut(yaml, "  name: ")
	name, _, _ := strings.Cut(after, "\n")
	return name
}

func TestARefusedGrantKeepsTheForm(t *testing.T) {
	f, p := withAccess(t)
	at(p, "#/access/roles/viewer")
	sees(t, p, "heading: viewer", "cell: get, list", "cell: pods")
	activate(t, p, "main button", "Grant this role")
	yaml := fillGrant(t, p, "dan", "viewer", "Project", "shop")
	f.on("PATCH "+bindingsPath+"projectroletemplatebindings/"+nameIn(yaml), func(map[string]any) (int, any) {
		return http.StatusForbidden, map[string]any{"message": "user local:alice cannot bind roletemplates viewer"}
	})
	activate(t, p, "dialog button", "Grant")
	sees(t, p, "alert", "StaticText: user local:alice cannot bind roletemplates viewer")
	eventually(t, p, `[...document.querySelectorAll("dialog input")].map(e => e.value).join()`, "github:dan,team,shop")
}

// TestAGroupWithoutAProviderIsRefused grants a role as kubectl drover grant does, which refuses such a group.
func TestAGroupWithoutAProviderIsRefused(t *testing.T) {
	_, p := withAccess(t)
	at(p, "#/access")
	activate(t, p, "main button", "Grant a role")
	sees(t, p, "dialog: Grant a role")
	choose(t, p, "Grant to a", "Group")
	choose(t, p, "Name", "github:web")
	choose(t, p, "Workspace", "team")
	choose(t, p, "Cluster", "c0001")
	choose(t, p, "Role", "operator")
	const yaml = `document.querySelector("dialog pre")?.textContent.includes("name: web-operator-c0001-") ?? false`
	eventually(t, p, yaml, true)
	choose(t, p, "Name", "web")
	eventually(t, p, yaml, false)
	activate(t, p, "dialog button", "Grant")
	sees(t, p, "alert",
		"StaticText: The group web has no provider: use the name that clusters see, such as github:acme/web.")
}

func TestBindingsAreGroupedByPersonAndRole(t *testing.T) {
	_, p := withAccess(t)
	groups := `[...document.querySelectorAll("main tr.group th")].map(e => e.textContent.trim()).join("; ")`
	at(p, "#/access?group=person")
	eventually(t, p, groups, "github:bob 1; local:alice 2")
	at(p, "#/access?group=role")
	eventually(t, p, groups, "operator 2; viewer 1")
	at(p, "#/access?ends=ended")
	eventually(t, p, `[...document.querySelectorAll("main tbody tr")].map(e => e.children[2].textContent).join()`,
		"cluster c0001")
	at(p, "#/access/roles/operator")
	sees(t, p, "heading: operator", "cell: delete", "cell: viewer", "heading: Granted to: 1", "link: github:bob")
}

func TestWhyExplainsTheRules(t *testing.T) {
	f, p := withAccess(t)
	f.on("POST "+reviewsPath+"selfsubjectaccessreviews",
		always(map[string]any{"status": map[string]any{"allowed": false}}))
	ask := func(query string) {
		at(p, "#/")
		at(p, "#/access/why?"+query)
		activate(t, p, "main button", "Ask")
	}
	tree := func(name string) string {
		return `[...document.querySelectorAll("[aria-label='` + name + `'] li")].map(e =>
			[...e.querySelectorAll("p")].map(p => p.textContent.trim()).join(": ")).join("; ")`
	}
	ask("cluster=team/c0001&verb=delete&resource=pods&namespace=web")
	sees(t, p, "StaticText: You may not delete pods in namespace web of team/c0001.")
	eventually(t, p, tree("Explanation"),
		"local:alice is viewer in project shop alice-viewer: No rule of viewer allows it.; "+
			"local:alice is operator in cluster c0001 alice-old: It has expired.")
	eventually(t, p, tree("Who else"), "github:bob is operator in clusters with env=prod bob-operator")
	ask("cluster=team/c0001&verb=get&resource=pods&namespace=kube-system")
	eventually(t, p, tree("Explanation")+
		`.includes("The namespace kube-system is not listed in a project, and not in shop.")`, true)
	f.on("POST "+reviewsPath+"subjectaccessreviews", always(map[string]any{"status": map[string]any{"allowed": true,
		"reason": "RBAC: allowed by RoleBinding"}}))
	ask("cluster=team/c0001&who=github:bob&verb=get&resource=pods&namespace=web")
	sees(t, p, "StaticText: github:bob may get pods in namespace web of team/c0001.",
		"StaticText: RBAC: allowed by RoleBinding")
	eventually(t, p, tree("Explanation"), "github:bob is operator in clusters with env=prod bob-operator: "+
		"operator → viewer: get, list pods")
	asked := f.awaitSent(t, "POST "+reviewsPath+"subjectaccessreviews").body["spec"].(map[string]any)
	if user := asked["user"]; user != "github:bob" {
		t.Errorf("the page asked about %v, want github:bob", user)
	}
}

func TestTokensForScriptsAreCreatedShownOnceAndRevoked(t *testing.T) {
	f, p := signedIn(t, 1)
	const path = "/v1/auth/tokens"
	info := map[string]any{"id": "abc123", "description": "nightly <b>", "cluster": "team/c0000",
		"created": "2026-11-27T00:00:00Z", "expires": "2126-11-27T00:00:00Z"}
	items := []any{}
	f.on("GET "+path, func(map[string]any) (int, any) { return http.StatusOK, map[string]any{"items": items} })
	f.on("POST "+path, func(body map[string]any) (int, any) {
		items = []any{info}
		return http.StatusCreated, map[string]any{"id": "abc123", "cluster": "team/c0000", "expires": info["expires"],
			"token": "drover-secret"}
	})
	f.on("DELETE "+path+"/abc123", func(map[string]any) (int, any) { items = nil; return http.StatusOK, map[string]any{} })
	at(p, "#/account")
	sees(t, p, "StaticText: You have no tokens.")
	activate(t, p, "main button", "Create a token")
	eventually(t, p, `document.activeElement.labels?.[0]?.textContent`, "Description")
	p.Type("nightly <b>")
	p.Press("Tab")
	p.Type("team/c0000")
	choose(t, p, "Valid for", "24h")
	activate(t, p, "dialog button", "Create")
	sees(t, p, "StaticText: drover-secret", "StaticText: Copy the token now.")
	got := fmt.Sprint(f.awaitSent(t, "POST "+path).body)
	if want := "map[cluster:team/c0000 description:nightly <b> ttl:24h]"; got != want {
		t.Errorf("the page sent %s, want %s", got, want)
	}
	activate(t, p, "dialog button", "Done")
	sees(t, p, "cell: nightly <b>", "cell: never", "button: Revoke the token nightly <b>")
	eventually(t, p, `document.documentElement.textContent.includes("drover-secret")`, false)
	activate(t, p, "main button", "Revoke the token nightly <b>")
	activate(t, p, "dialog button", "Revoke")
	sees(t, p, "StaticText: The token is revoked.", "StaticText: You have no tokens.")
	f.on("GET "+path, func(map[string]any) (int, any) {
		return http.StatusForbidden,
			map[string]any{"message": "only users of the hub, local:<name>, can have tokens for scripts"}
	})
	at(p, "#/")
	at(p, "#/account")
	sees(t, p, "StaticText: only users of the hub, local:<name>, can have tokens for scripts")
	eventually(t, p, `[...document.querySelectorAll("main button")]
		.filter(b => b.textContent === "Create a token").length`, 0)
}

func TestInstallationsAndSnapshotsAreShownWhereTheyAreInstalled(t *testing.T) {
	f, p := signedIn(t, 1)
	at(p, "#/hosts")
	sees(t, p, "heading: Hosts", "StaticText: There are no hosts that you can see")
	eventually(t, p, `document.querySelectorAll("main .tabs").length`, 0)
	const provision = "/k8s/local/apis/provision.cluster.drover.dev/v1/"
	f.on("GET /k8s/local/apis",
		always(map[string]any{"groups": []any{map[string]any{"name": "provision.cluster.drover.dev"}}}))
	meta := func(name string) map[string]any { return map[string]any{"namespace": "team", "name": name} }
	waiting := []any{map[string]any{"host": "rack1", "message": "waits for its agent"}}
	f.on("GET "+provision+"clusterinstallations", always(map[string]any{"items": []any{map[string]any{
		"metadata": meta("edge"),
		"spec":     map[string]any{"clusterName": "c0000", "distribution": "k3s", "version": "v1.36.3+k3s1"},
		"status":   map[string]any{"summary": "2/3", "waiting": waiting}}}}))
	f.on("GET "+provision+"etcdsnapshots", always(map[string]any{"items": []any{map[string]any{
		"metadata": meta("before-upgrade"),
		"spec":     map[string]any{"clusterRef": map[string]any{"kind": "ClusterInstallation", "name": "edge"}},
		"status":   map[string]any{"phase": "Succeeded", "host": "rack1", "snapshot": "etcd-1"}}}}))
	signIn(t, p, f.url, "secret") // opens the page again
	sees(t, p, "heading: Overview")
	at(p, "#/hosts/installations")
	sees(t, p, "rowheader: team/edge", "cell: k3s v1.36.3+k3s1", "cell: 2/3", "cell: rack1: waits for its agent")
	at(p, "#/hosts/snapshots")
	sees(t, p, "rowheader: team/before-upgrade", "cell: Succeeded", "cell: rack1: etcd-1")
	activate(t, p, "main button", "Take a snapshot")
	eventually(t, p, `document.querySelectorAll("dialog option").length`, 2)
	choose(t, p, "Installation", "team/edge")
	activate(t, p, "dialog button", "Take")
	sent := f.awaitSent(t, "POST "+provision[:len(provision)-1]+"/namespaces/team/etcdsnapshots")
	if got := fmt.Sprint(sent.body["spec"]); got != "map[clusterRef:map[kind:ClusterInstallation name:edge]]" {
		t.Errorf("the page sent %s, want a snapshot of the installation", got)
	}
}

func TestHostileTextInBindingsRolesAndPlansIsText(t *testing.T) {
	f, p := withAccess(t)
	attack := "<img src=x onerror=alert(1)>\u202egnp \x1b[31m " + strings.Repeat("<b>x", 100_000)
	f.send(grant("clusterroletemplatebindings", "evil", attack, attack, map[string]any{"clusterName": "c0001"}))
	m := plan(0, 1)
	status := m["object"].(map[string]any)["status"].(map[string]any)
	status["members"].([]any)[0].(map[string]any)["message"] = attack
	failure := status["failures"].([]any)[0].(map[string]any)
	failure["log"], failure["message"], failure["reason"] = attack, attack, attack
	f.send(m)
	for _, hash := range []string{"#/access", "#/access?group=person", "#/access/bindings/team/cluster/evil",
		"#/access/roles", "#/plans", "#/plans/team/kernel", "#/projects/team/shop"} {
		at(p, hash)
		eventually(t, p, `/[\u202a-\u202e\u001b]/.test(document.documentElement.textContent)`, false)
		eventually(t, p, `document.querySelectorAll("main img").length`, 0)
		eventually(t, p, `document.documentElement.textContent.length < 60000`, true)
		eventually(t, p, wideElements, 0)
	}
}

// TestARoleOffersNoChangesToReaders shows all views to a user who may only read.
func TestARoleOffersNoChangesToReaders(t *testing.T) {
	f, p := withAccess(t)
	f.mu.Lock()
	f.denied = map[string]bool{"create": true, "patch": true, "delete": true, "bind": true}
	f.mu.Unlock()
	f.send(plan(0, 1))
	for hash, heading := range map[string]string{"#/access": "Access", "#/access/roles/operator": "operator",
		"#/access/bindings/team/cluster/bob-operator": "github:bob is operator", "#/projects/team/shop/members": "shop",
		"#/plans/team/kernel": "kernel", "#/hosts/snapshots": "Hosts"} {
		at(p, hash)
		sees(t, p, "heading: "+heading)
		eventually(t, p, `document.querySelectorAll(".actions button:not([title=YAML]), table button.link, main .primary").length`, 0)
	}
}
