// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"

	"github.com/drover-dev/drover/test/chromium"
)

// Revisions of the Baseline in these tests.
const (
	oldRevision = "1111111111111111"
	newRevision = "2222222222222222"
)

// baseline returns a Baseline that is complete in two of ten Clusters, and has failed in the given number.
func baseline(failed int) map[string]any {
	reason, message, stalled := "Applying", "2/10 clusters have it", "False"
	failures := []any{}
	if failed > 0 {
		reason, message, stalled = "TooManyFailures", "1 cluster failed and rollout.maxFailedClusters allows 0", "True"
		failures = append(failures, map[string]any{"cluster": "c0000", "object": "StorageClass fast",
			"message": "provisioner: field is immutable <b>"})
	}
	wave := func(name string, complete, total, failed int) any {
		return map[string]any{"name": name, "clusters": map[string]any{"complete": complete, "failed": failed, "total": total,
			"applying": 0, "held": 0, "summary": fmt.Sprintf("%d/%d", complete, total)}}
	}
	return map[string]any{"type": "CHANGED", "kind": "baselines", "object": map[string]any{
		"metadata": map[string]any{"namespace": "team", "name": "essentials", "uid": "u", "generation": 3},
		"spec": map[string]any{"clusterSelector": map[string]any{"matchLabels": map[string]any{"env": "prod"}},
			"roleTemplateName": "essentials-role", "rollout": map[string]any{"maxConcurrentClusters": 1}},
		"status": map[string]any{
			"clusters": map[string]any{"desired": 10, "applied": 2, "failed": failed, "summary": "2/10"},
			"waves":    []any{wave("canary", 2, 2+failed, failed), wave("rest", 0, 8-failed, 0)}, "failures": failures,
			"objects": 4, "revision": newRevision, "completeRevision": oldRevision,
			"history": []any{
				map[string]any{"revision": newRevision, "roleTemplateName": "essentials-role", "since": "2026-11-23T10:00:00Z",
					"objects": 4},
				map[string]any{"revision": oldRevision, "roleTemplateName": "wider-role", "since": "2026-11-20T10:00:00Z",
					"objects": 3}},
			"conditions": []any{condition("Ready", "False", reason, message), condition("Stalled", stalled, reason, message)},
		},
	}}
}

const baselinePath = bindingsPath + "baselines/essentials"

// manifests lets the hub return the Baseline with the objects that the stream omits.
func manifests(f *fleet, path string) {
	object := baseline(0)["object"].(map[string]any)
	spec := object["spec"].(map[string]any)
	spec["manifests"] = []any{map[string]any{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
		"metadata": map[string]any{"name": "fast"}}}
	spec["from"] = []any{map[string]any{"kind": "ConfigMap", "name": "flux"}}
	f.on("GET "+path, always(object))
}

func TestABaselineIsShownWithItsFailuresObjectsAndHistory(t *testing.T) {
	f, p := signedIn(t, 0)
	manifests(f, baselinePath)
	for _, name := range []string{"c0000", "c0001"} {
		connected := map[string]string{"c0000": "True", "c0001": "False"}[name]
		message := cluster(name, connected, "Connected", "")
		status := message["object"].(map[string]any)["status"].(map[string]any)
		status["conditions"] = append(status["conditions"].([]any), condition("Connected", connected, "Connected", ""))
		f.send(message)
	}
	f.send(baseline(0))
	at(p, "#/baselines")
	sees(t, p, "article: Baseline team/essentials", "progressbar: canary: 2/2", "StaticText: 2/10 clusters have it")
	f.send(baseline(1))
	sees(t, p, "progressbar: canary: 2/3, 1 failed", "link: Baselines 1 failed")
	at(p, "#/baselines/team/essentials")
	sees(t, p, "heading: essentials", "heading: Failures: 1", "StaticText: StorageClass fast",
		"StaticText: provisioner: field is immutable <b>", "heading: Not connected: 1", "link: c0001",
		"table: Objects in manifests", "cell: fast", "StaticText: Also all objects in ConfigMap flux.",
		"heading: History", "StaticText: "+oldRevision, "link: essentials-role")
	at(p, "#/clusters/team/c0000")
	sees(t, p, "table: Baselines of this cluster", "cell: StorageClass fast: provisioner: field is immutable <b>")
	at(p, "#/clusters/team/c0001")
	sees(t, p, "cell: Not connected: keeps what it has")
}

func TestABaselineIsPausedAndRolledBack(t *testing.T) {
	f, p := signedIn(t, 0)
	manifests(f, baselinePath)
	f.on("PATCH "+baselinePath, always(map[string]any{}))
	changed := func(want string) {
		t.Helper()
		sent := f.awaitSent(t, "PATCH "+baselinePath)
		if got := fmt.Sprint(sent.body); got != want {
			t.Errorf("the page sent %s, want %s", got, want)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.sent = nil
	}
	f.send(baseline(1))
	at(p, "#/baselines/team/essentials")
	activate(t, p, "main button", "Pause")
	activate(t, p, "dialog button", "Pause")
	changed("map[metadata:map[uid:u] spec:map[paused:true]]")
	activate(t, p, "main button", "Roll back to "+oldRevision)
	sees(t, p, "dialog: Roll essentials back?", "StaticText: wider-role")
	activate(t, p, "dialog button", "Roll back")
	changed("map[metadata:map[uid:u] spec:map[revision:" + oldRevision + " roleTemplateName:wider-role]]")
	pinned := baseline(0)
	pinned["object"].(map[string]any)["spec"].(map[string]any)["revision"] = oldRevision
	f.send(pinned)
	activate(t, p, "main button", "Follow the manifests")
	activate(t, p, "dialog button", "Follow")
	changed("map[metadata:map[uid:u] spec:map[revision:<nil>]]")
}

// TestABaselineOffersNoChangeToReaders shows a Baseline to a user who may not change it.
func TestABaselineOffersNoChangeToReaders(t *testing.T) {
	chromium.Find(t)
	f := newFleet(t, 0)
	f.denied = map[string]bool{"patch": true}
	manifests(f, baselinePath)
	p := chromium.Open(t, true)
	signIn(t, p, f.url, "secret")
	sees(t, p, "heading: Overview", "StaticText: Live")
	f.send(baseline(1))
	at(p, "#/baselines/team/essentials")
	sees(t, p, "heading: History", "table: Objects in manifests")
	answered(t, p)
	unseen(t, p, "button: Pause", "button: Roll back")
}
