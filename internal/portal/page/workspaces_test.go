// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/drover-dev/drover/test/chromium"
)

const provisionPath = "/k8s/local/apis/provision.cluster.drover.dev/v1/"

// TestListsOfOneWorkspaceAreShownToItsUsers signs in a user who may not list in all namespaces, but in the workspace
// team. The workspace other also has a Cluster.
func TestListsOfOneWorkspaceAreShownToItsUsers(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 3)
	f.denied = map[string]bool{"list in ": true, "list in other": true, "create in ": true, "create in other": true}
	f.on("GET /k8s/local/apis",
		always(map[string]any{"groups": []any{map[string]any{"name": "provision.cluster.drover.dev"}}}))
	events := f.respond("GET /k8s/local/api/v1/namespaces/team/events", replies(http.StatusOK,
		map[string]any{"items": []any{warning("c0001", "TunnelLost", "it is gone", time.Minute)}}))
	object := func(name string) any {
		return map[string]any{"metadata": map[string]any{"namespace": "team", "name": name},
			"spec": map[string]any{"clusterName": "c0000", "distribution": "k3s", "version": "v1.36.3+k3s1",
				"clusterRef": map[string]any{"kind": "ClusterInstallation", "name": "edge"}}}
	}
	f.on("GET "+provisionPath+"namespaces/team/clusterinstallations",
		always(map[string]any{"items": []any{object("edge")}}))
	f.on("GET "+provisionPath+"namespaces/team/etcdsnapshots", always(map[string]any{
		"metadata": map[string]any{"continue": "more"}, "items": []any{object("nightly")}}))
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview")
	other := cluster("c0009", "True", "Connected", "")
	other["object"].(map[string]any)["metadata"].(map[string]any)["namespace"] = "other"
	f.send(other)
	sees(t, p, "heading: Recent warnings", "StaticText: it is gone")
	receives(t, events,
		"/k8s/local/api/v1/namespaces/team/events?limit=500&fieldSelector=involvedObject.kind%3DCluster%2Ctype%3DWarning")
	at(p, "#/clusters")
	sees(t, p, "link: c0009", "button: Import a cluster")
	at(p, "#/access")
	sees(t, p, "button: Grant a role")
	at(p, "#/hosts/installations")
	sees(t, p, "rowheader: team/edge")
	at(p, "#/hosts/snapshots")
	sees(t, p, "rowheader: team/nightly", "StaticText:  It is longer than the hub lists at once.")
	activate(t, p, "main button", "Take a snapshot")
	eventually(t, p, `[...document.querySelectorAll("dialog option")].map(e => e.value).join()`, ",team/edge")
}

// TestOnlySomeOfManyWorkspacesAreAsked checks that a user with many workspaces does not flood the hub with questions,
// and is told what is missing.
func TestOnlySomeOfManyWorkspacesAreAsked(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 0)
	f.denied = map[string]bool{"list in ": true}
	f.on("GET /k8s/local/apis",
		always(map[string]any{"groups": []any{map[string]any{"name": "provision.cluster.drover.dev"}}}))
	for i := range 60 {
		namespace := fmt.Sprintf("w%02d", i)
		f.on("GET /k8s/local/api/v1/namespaces/"+namespace+"/events", always(map[string]any{}))
		f.on("GET "+provisionPath+"namespaces/"+namespace+"/etcdsnapshots", always(map[string]any{"items": []any{
			map[string]any{"metadata": map[string]any{"namespace": namespace, "name": "nightly"},
				"spec": map[string]any{"clusterRef": map[string]any{"name": "edge"}}}}}))
	}
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview")
	for i := range 60 {
		message := cluster("c", "True", "Connected", "")
		message["object"].(map[string]any)["metadata"].(map[string]any)["namespace"] = fmt.Sprintf("w%02d", i)
		f.send(message)
	}
	at(p, "#/clusters")
	eventually(t, p, `document.querySelector("main table")?.ariaRowCount`, "61")
	at(p, "#/")
	sees(t, p, "heading: Recent warnings", "StaticText: Only some of your workspaces are asked.")
	at(p, "#/hosts/snapshots")
	sees(t, p, "rowheader: w00/nightly", "StaticText:  It has the objects of some workspaces only.")
	eventually(t, p, `document.querySelector("main table").ariaRowCount`, "51")
}
