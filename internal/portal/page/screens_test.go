// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/chromium"
)

// screen is a view with its address, and a script that opens something in it.
type screen struct{ name, hash, open string }

func screens() []screen {
	return []screen{
		{name: "overview", hash: "#/"},
		{name: "clusters", hash: "#/clusters"},
		{name: "clusters-grouped", hash: "#/clusters?group=workspace&sort=-cpu"},
		{name: "tiles", hash: "#/clusters?view=tiles"},
		{name: "no-result", hash: "#/clusters?q=nothing-has-this-name"},
		{name: "cluster", hash: "#/clusters/retail/eu-west-07"},
		{name: "cluster-broken", hash: "#/clusters/retail/eu-west-03"},
		{name: "cluster-nodes", hash: "#/clusters/retail/eu-west-07/nodes"},
		{name: "cluster-events", hash: "#/clusters/retail/eu-west-07/events"},
		{name: "cluster-waiting", hash: "#/clusters/retail/eu-west-17"},
		{name: "cluster-access", hash: "#/clusters/retail/eu-west-07/access"},
		{name: "cluster-connect", hash: "#/clusters/retail/eu-west-07/connect"},
		{name: "plans", hash: "#/plans"},
		{name: "plan", hash: "#/plans/retail/kernel-6-12"},
		{name: "baselines", hash: "#/baselines"},
		{name: "baseline", hash: "#/baselines/retail/essentials"},
		{name: "roll-back", hash: "#/baselines/retail/essentials",
			open: clicks(`document.querySelector("main .list .link")`)},
		{name: "projects", hash: "#/projects"},
		{name: "access", hash: "#/access"},
		{name: "why", hash: "#/access/why"},
		{name: "hosts", hash: "#/hosts"},
		{name: "account", hash: "#/account"},
		{name: "project", hash: "#/projects/retail/shop"},
		{name: "project-usage", hash: "#/projects/retail/shop/usage?cluster=eu-west-07"},
		{name: "project-members", hash: "#/projects/retail/shop/members"},
		{name: "access-grouped", hash: "#/access?group=person"},
		{name: "binding", hash: "#/access/bindings/retail/cluster/anna"},
		{name: "roles", hash: "#/access/roles"},
		{name: "role", hash: "#/access/roles/cluster-operator"},
		{name: "why-not",
			hash: "#/access/why?cluster=retail/eu-west-07&who=github:anna&verb=delete&resource=pods&namespace=shop",
			open: clicks(`document.querySelector("main .primary")`)},
		{name: "grant", hash: "#/access", open: clicks(`document.querySelector(".actions .primary")`)},
		{name: "plan-failed", hash: "#/plans/retail/containerd-2-2"},
		{name: "pause", hash: "#/plans/retail/kernel-6-12", open: clicks(`document.querySelector(".actions button")`)},
		{name: "host", hash: "#/hosts/factory/rack5"},
		{name: "installations", hash: "#/hosts/installations"},
		{name: "snapshots", hash: "#/hosts/snapshots"},
		{name: "token", hash: "#/account", open: clicks(`[...document.querySelectorAll("main button")]
			.find(b => b.textContent === "Create a token")`)},
		{name: "unknown", hash: "#/no/such/view"},
		{name: "import", hash: "#/clusters", open: clicks(`document.querySelector(".actions .primary")`)},
		{name: "selection", hash: "#/clusters",
			open: `[...document.querySelectorAll("tbody [type=checkbox]:not(:checked)")].slice(0, 3).forEach(e => e.click())`},
		{name: "labels", hash: "#/clusters/retail/eu-west-07",
			open: clicks(`[...document.querySelectorAll("main .link")].find(e => e.textContent === "Edit labels")`)},
		{name: "delete", hash: "#/clusters/retail/eu-west-07", open: clicks(`document.querySelector("[title=Delete]")`)},
		{name: "palette", hash: "#/", open: clicks(`document.querySelector(".palette-button")`)},
		{name: "user-menu", hash: "#/", open: clicks(`document.querySelector(".user")`)},
	}
}

// clicks returns a script that clicks on an element. It waits for the element, because most buttons appear once the hub
// has said that the user may use them.
func clicks(element string) string {
	return `new Promise((done, fail) => {
		let frames = 0;
		const look = () => {
			const found = ` + element + `;
			if (found) { found.click(); done(0); }
			else if (frames++ < 1200) requestAnimationFrame(look);
			else fail(new Error("the element does not appear"));
		};
		look();
	})`
}

// TestLong_EveryViewFitsEveryScreen shows a realistic fleet on three screens, light and dark. Nothing may be wider than
// its place, and axe-core may find nothing.
func TestLong_EveryViewFitsEveryScreen(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 0)
	fetched(f)
	p := chromium.Open(t, true)
	size := func(width int) {
		height := map[int]int{1440: 900, 1024: 768, 390: 844}[width]
		p.Call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1,
			"mobile": false}, nil)
	}
	size(1440)
	p.Go(f.url + Path)
	sees(t, p, "heading: Sign in to Drover")
	p.Shot("signin-1440-light")
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview")
	realistic(f)
	eventually(t, p, `document.querySelector(".figure")?.textContent`, "140")
	for _, theme := range []string{"light", "dark"} {
		p.Scheme(theme)
		for _, width := range []int{1440, 1024, 390} {
			size(width)
			for _, view := range screens() {
				at(p, view.hash)
				eventually(t, p, `document.querySelectorAll("main .loading").length`, 0)
				eventually(t, p, `/ is gone, |does not exist, |no such view/.test(document.querySelector("main").textContent)`,
					view.name == "unknown")
				if view.open != "" {
					p.Evaluate(view.open, nil)
					p.Evaluate(painted, nil)
				}
				name := fmt.Sprintf("%s-%d-%s", view.name, width, theme)
				if view.name == "overview" && width == 1440 {
					eventually(t, p, `(e => e.scrollHeight <= e.clientHeight)(document.querySelector("main"))`, true)
				}
				var wide []string
				p.Evaluate(`[document.documentElement,
					...document.querySelectorAll("main, .view, dialog, .card, .top, .dialog-body")]
					.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.tagName + "." + e.className)`, &wide)
				if len(wide) > 0 {
					t.Errorf("%s: wider than their place: %q", name, wide)
				}
				p.Shot(name)
				if found := checked(t, p, width, theme); len(found) > 0 {
					t.Errorf("%s: %.1500q", name, found)
				}
				p.Evaluate(`document.querySelectorAll("dialog").forEach(d => d.close());
					document.querySelectorAll(".menu[open]").forEach(m => m.open = false); `+painted, nil)
			}
		}
	}
}

// realistic sends a fleet as an operator may have it, with problems, work in progress and people.
func realistic(f *fleet) {
	regions := []string{"eu-west", "eu-north", "us-east", "ap-south"}
	versions := []string{"v1.36.3", "v1.36.3", "v1.36.3", "v1.36.1", "v1.35.6", "v1.34.9"}
	distributions := []string{"k3s", "k3s", "rke2", "eks", "gke", "kubernetes"}
	for w, workspace := range []string{"retail", "payments", "factory", "platform", "research"} {
		for i := range 28 {
			n := w*28 + i
			region := regions[n%4]
			if workspace == "retail" {
				region = "eu-west"
			}
			object := member(fmt.Sprintf("%s-%02d", region, i), "True", "Connected",
				"The agent is connected and its API server is healthy")
			object["metadata"].(map[string]any)["namespace"] = workspace
			object["metadata"].(map[string]any)["uid"] = fmt.Sprintf("uid-%d", n)
			object["metadata"].(map[string]any)["labels"] = map[string]any{"region": region,
				"env": []string{"prod", "prod", "staging"}[n%3], "tier": []string{"edge", "core"}[n%2]}
			status := object["status"].(map[string]any)
			status["version"], status["distribution"] = versions[n*7%6], distributions[n*5%6]
			nodes := 3 + n%9
			status["nodes"] = map[string]any{"ready": nodes, "total": nodes, "summary": fmt.Sprintf("%d/%d", nodes, nodes)}
			status["allocatable"] = map[string]any{"cpu": fmt.Sprint(nodes * 16), "memory": fmt.Sprintf("%dGi", nodes*64)}
			status["requested"] = map[string]any{"cpu": fmt.Sprintf("%dm", nodes*160*(20+n*13%78)),
				"memory": fmt.Sprintf("%dGi", nodes*(8+n*11%55))}
			status["agent"] = map[string]any{"version": "v0.9.2", "replicas": 2,
				"image": "registry.example.com/drover/agent:v0.9.2"}
			troubled(n, status)
			if n == 17 || n == 118 {
				object["status"] = joining(object["metadata"].(map[string]any)["name"].(string), v1.ReasonAwaitingAgent,
					"")["object"].(map[string]any)["status"]
			}
			f.send(map[string]any{"type": "CHANGED", "kind": "clusters", "object": object})
		}
	}
	people(f)
	worked(f)
	for name, at := range map[string]struct{ done, failed int }{"kernel-6-12": {2, 0}, "containerd-2-2": {1, 1}} {
		message := plan(at.done, at.failed)
		object := message["object"].(map[string]any)
		object["metadata"] = map[string]any{"namespace": "retail", "name": name}
		status := object["status"].(map[string]any)
		status["members"].([]any)[0].(map[string]any)["name"] = "eu-west-07"
		status["failures"].([]any)[0].(map[string]any)["cluster"] = "eu-west-03"
		for _, c := range status["conditions"].([]any) {
			message, _ := c.(map[string]any)["message"].(string)
			c.(map[string]any)["message"] = strings.ReplaceAll(message, "c0000", "eu-west-03")
		}
		atWork(status, at.failed)
		if at.failed == 0 {
			delete(status, "failures")
			status["nodes"].(map[string]any)["failed"] = 0
		}
		f.send(message)
	}
	kept := baseline(1)
	object := kept["object"].(map[string]any)
	object["metadata"].(map[string]any)["namespace"] = "retail"
	object["status"].(map[string]any)["failures"].([]any)[0].(map[string]any)["cluster"] = "eu-west-03"
	f.send(kept)
	for i := range 9 {
		ready, reason := "True", "Active"
		if i == 4 {
			ready, reason = "False", "InstructionFailed"
		}
		message := host(ready, reason, "")
		object := message["object"].(map[string]any)
		object["metadata"] = map[string]any{"namespace": "factory", "name": fmt.Sprintf("rack%d", i+1)}
		if i == 4 {
			status := object["status"].(map[string]any)
			status["state"] = "Failed"
			status["plan"] = map[string]any{"output": "Unpacking kernel …\nE: no space left on device"}
		}
		f.send(message)
	}
	f.send(map[string]any{"type": "BOOKMARK", "resume": "r"})
}

// joinCommand is a command as a hub with a publicly trusted certificate creates it.
const joinCommand = `(m=$(curl -sS -w '%{http_code}' https://hub.example.com/v1/import/k3x9m2.yaml) && case "$m" in ` +
	`*200) printf %s "${m%200}" | kubectl apply --server-side --force-conflicts -f - ;; ` +
	`*) printf '%s\n' "${m%???}" >&2; exit 1 ;; esac)`

// fetched lets the hub answer what views fetch.
func fetched(f *fleet) {
	event := func(name, workspace, kind, reason, message string, ago time.Duration) any {
		e := warning(name, reason, message, ago)
		e["type"] = kind
		e["metadata"].(map[string]any)["namespace"] = workspace
		e["involvedObject"].(map[string]any)["namespace"] = workspace
		return e
	}
	lost := "The agent disconnected. It connects again by itself, unless the network prevents it."
	f.respond("GET /k8s/local/api/v1/events", replies(200, map[string]any{"items": []any{
		event("eu-north-05", "factory", "Warning", "TunnelLost", lost, 12*time.Minute),
		event("eu-west-03", "retail", "Warning", "TunnelLost", lost, 12*time.Minute),
		event("eu-west-17", "retail", "Warning", "IdentityMismatch",
			"Another cluster has presented the token of this Cluster. Its UID is 4be1.", 31*time.Minute),
		event("eu-west-12", "payments", "Warning", "ApiServerUnhealthy",
			"The API server reports these checks as failed: etcd, rbac/bootstrap-roles.", 3*time.Hour),
		event("ap-south-03", "factory", "Warning", "AgentRolledBack", "The new agent did not become ready.", 4*time.Hour)}}))
	manifests(f, strings.ReplaceAll(baselinePath, "/team/", "/retail/"))
	f.respond("GET /k8s/local/api/v1/namespaces/retail/events", replies(200, map[string]any{"items": []any{
		event("eu-west-07", "retail", "Normal", "AgentUpdated", "The agent runs v0.9.2 with 2 replicas.", 26*time.Minute),
		event("eu-west-07", "retail", "Warning", "TunnelLost", lost, 28*time.Minute)}}))
	f.on("GET /k8s/local/api/v1/namespaces/retail/secrets/eu-west-17-registration", always(map[string]any{
		"metadata": map[string]any{"uid": "uid-of-the-secret", "ownerReferences": []any{map[string]any{"uid": "uid-17"}},
			"labels": map[string]any{v1.LabelCluster: "eu-west-17", v1.LabelSecretKind: v1.SecretKindRegistration}},
		"data": map[string]any{"command": []byte(joinCommand)}}))
	var nodes []any
	for i := range 10 {
		ready, labels := "True", map[string]any{}
		if i < 3 {
			labels["node-role.kubernetes.io/control-plane"] = ""
		}
		if i == 6 {
			ready = "Unknown"
		}
		nodes = append(nodes, map[string]any{"spec": map[string]any{"unschedulable": i == 8},
			"metadata": map[string]any{"name": fmt.Sprintf("eu-west-07-node-%d", i), "labels": labels,
				"creationTimestamp": time.Now().Add(-90 * 24 * time.Hour).UTC().Format(time.RFC3339)},
			"status": map[string]any{"allocatable": map[string]any{"cpu": "16", "memory": "64Gi"},
				"nodeInfo": map[string]any{"kubeletVersion": "v1.36.3", "osImage": "Debian GNU/Linux 13 (trixie)",
					"architecture": "amd64"},
				"conditions": []any{map[string]any{"type": "Ready", "status": ready}}}})
	}
	f.respond("GET /k8s/clusters/retail/eu-west-07/api/v1/nodes", replies(200, map[string]any{"items": nodes}))
}

// member returns the object of a Cluster with its usual conditions.
func member(name, ready, reason, message string) map[string]any {
	object := cluster(name, ready, reason, message)["object"].(map[string]any)
	status := object["status"].(map[string]any)
	since := time.Now().Add(-26 * time.Hour).UTC().Format(time.RFC3339)
	status["conditions"].([]any)[0].(map[string]any)["lastTransitionTime"] = since
	for _, other := range [][2]string{{"Connected", "Connected"},
		{"AgentUpToDate", "AgentUpdated"}, {"GuardsApplied", "GuardsApplied"}} {
		status["conditions"] = append(status["conditions"].([]any), map[string]any{"type": other[0], "status": "True",
			"reason": other[1], "lastTransitionTime": since,
			"message": map[string]string{"AgentUpToDate": "The agent's Deployment is as spec.agent says"}[other[0]]})
	}
	object["spec"] = map[string]any{"deletionPolicy": "Uninstall"}
	return object
}

// troubled gives some Clusters a problem.
func troubled(n int, status map[string]any) {
	set := func(kind, value, reason, message string, ago time.Duration) {
		for _, c := range status["conditions"].([]any) {
			if condition := c.(map[string]any); condition["type"] == kind {
				condition["status"], condition["reason"], condition["message"] = value, reason, message
				condition["lastTransitionTime"] = time.Now().Add(-ago).UTC().Format(time.RFC3339)
			}
		}
	}
	switch n {
	case 3, 61:
		message := "The agent's tunnel has ended: no heartbeat; it comes back by itself. If it does not, see the log of " +
			"the agent in the cluster: kubectl -n drover-agent logs deploy/drover-agent"
		set("Ready", "False", "TunnelLost", message, 12*time.Minute)
		set("Connected", "False", "TunnelLost", message, 12*time.Minute)
		status["lastSeen"] = time.Now().Add(-12 * time.Minute).UTC().Format(time.RFC3339)
	case 40:
		set("Ready", "False", "ApiServerUnhealthy", "The agent finds its API server unhealthy: checks of /readyz fail: "+
			"etcd, poststarthook/rbac/bootstrap-roles", 3*time.Hour)
		status["nodes"] = map[string]any{"ready": 2, "total": 5, "summary": "2/5"}
	case 90:
		set("Ready", "False", "VersionSkew", "Agent v0.7.1 speaks protocol 1, the hub needs 3 or newer; upgrade the agent",
			40*time.Hour)
	case 7, 8, 99:
		set("AgentUpToDate", "False", "AgentWaiting", "The agent waits for its turn to get a Deployment of this version of "+
			"the hub: the hub upgrades agents in stages, as agent.rollout of its configuration says. See all of them with: "+
			"kubectl drover agents -A", 2*time.Hour)
	}
}

// people sends Projects and bindings.
func people(f *fleet) {
	roles := []string{"cluster-viewer", "cluster-operator", "project-member", "project-owner"}
	for i, name := range strings.Fields("anna bruno chen dalia emil fatou goran hana ines jonas kemal lea") {
		spec := map[string]any{"subject": map[string]any{"kind": "User", "name": "github:" + name},
			"roleTemplateName": roles[i%4]}
		kind := "clusterroletemplatebindings"
		if i%4 > 1 {
			kind, spec["projectName"] = "projectroletemplatebindings", []string{"shop", "billing"}[i%2]
		} else {
			spec["clusterSelector"] = map[string]any{"matchLabels": map[string]any{"region": "eu-west"}}
		}
		if i%5 == 0 {
			spec["expiresAt"] = time.Now().Add(time.Duration(i+2) * 24 * time.Hour).UTC().Format(time.RFC3339)
		}
		f.send(map[string]any{"type": "CHANGED", "kind": kind, "object": map[string]any{
			"metadata": map[string]any{"namespace": "retail", "name": name}, "spec": spec,
			"status": map[string]any{"clusters": map[string]any{"summary": "28/28"}, "conditions": []any{map[string]any{
				"type": "Ready", "status": "True", "reason": "Applied", "lastTransitionTime": "2026-11-20T10:00:00Z"}}}}})
	}
	states := [][2]string{{"True", "Applied"}, {"True", "Applied"}, {"False", "Delivering"}, {"True", "Applied"}}
	for i, name := range []string{"shop", "billing", "search", "telemetry"} {
		f.send(map[string]any{"type": "CHANGED", "kind": "projects", "object": map[string]any{
			"metadata": map[string]any{"namespace": "retail", "name": name},
			"spec": map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"env": "prod"}},
				"namespaces":    []any{name, name + "-jobs"}[:1+i%2],
				"resourceQuota": map[string]any{"limits.cpu": "64", "limits.memory": "256Gi", "pods": "400"}},
			"status": map[string]any{"clusters": map[string]any{"desired": 18, "ready": 18, "summary": "18/18"},
				"conditions": []any{map[string]any{"type": "Ready", "status": states[i][0], "reason": states[i][1]}}}}})
	}
}

// checked returns what axe-core finds. It takes seconds, so it looks at the widest and the narrowest screen.
func checked(t *testing.T, p *chromium.Page, width int, theme string) []string {
	t.Helper()
	if width == 1440 && theme == "light" || width == 390 && theme == "dark" {
		return p.Axe(t)
	}
	return nil
}
