// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"time"
)

// worked adds what the views of access, projects, hosts and the account show: roles, quotas, tokens, and the kinds of
// the provisioner.
func worked(f *fleet) {
	f.send(role("project-member", "Project", nil, []string{"get", "list", "watch"},
		[]string{"pods", "pods/log", "services"}))
	f.send(role("project-owner", "Project", []string{"project-member"}, []string{"*"}, []string{"configmaps", "secrets"}))
	f.send(role("cluster-viewer", "Cluster", []string{"project-member"}, []string{"get", "list"}, []string{"nodes"}))
	f.send(role("cluster-operator", "Cluster", []string{"cluster-viewer"}, []string{"create", "delete", "patch"},
		[]string{"pods", "pods/eviction", "nodes"}))
	const member = "GET /k8s/clusters/retail/eu-west-07/api/v1/"
	const provision = "GET /k8s/local/apis/provision.cluster.drover.dev/v1/"
	named := func(namespace, name string, more map[string]any) map[string]any {
		more["metadata"] = map[string]any{"namespace": namespace, "name": name,
			"creationTimestamp": time.Now().Add(-50 * time.Hour).UTC().Format(time.RFC3339)}
		return more
	}
	var namespaces, quotas, tokens, snapshots []any
	for i, name := range []string{"shop", "shop-jobs", "shop-canary"} {
		namespaces = append(namespaces, named("", name, map[string]any{}))
		quotas = append(quotas, named(name, "drover-project", map[string]any{"status": map[string]any{
			"hard": map[string]any{"limits.cpu": "24", "limits.memory": "96Gi", "pods": "120"},
			"used": map[string]any{"limits.cpu": fmt.Sprintf("%d500m", 5+7*i), "limits.memory": fmt.Sprintf("%dGi", 20+30*i),
				"pods": fmt.Sprint(12 + 31*i)}}}))
		tokens = append(tokens, map[string]any{"id": fmt.Sprintf("k3x9%d", i), "description": name + " deployments",
			"cluster": "retail/eu-west-07", "created": "2026-11-01T00:00:00Z", "expires": "2127-01-01T00:00:00Z"})
		snapshots = append(snapshots, named("factory", fmt.Sprintf("floor-%d", i), map[string]any{
			"spec": map[string]any{"clusterRef": map[string]any{"kind": "ClusterInstallation", "name": "floor"}},
			"status": map[string]any{"phase": []string{"Succeeded", "Running", "Failed"}[i], "host": "rack1",
				"snapshot": "etcd-1764"}}))
	}
	f.on(member+"namespaces", always(map[string]any{"items": namespaces}))
	f.on(member+"resourcequotas", always(map[string]any{"items": quotas}))
	f.on("GET /v1/auth/tokens", always(map[string]any{"items": tokens}))
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	f.on("GET /v1/auth/sessions", always(map[string]any{"items": []any{
		map[string]any{"id": "1", "client": "page", "started": ago(3 * time.Hour), "renewed": ago(4 * time.Minute),
			"expires": ago(-116 * time.Minute), "current": true},
		map[string]any{"id": "2", "client": "kubectl", "started": ago(9 * time.Hour), "renewed": ago(50 * time.Minute),
			"expires": ago(-70 * time.Minute)},
		map[string]any{"id": "3", "client": "device", "started": ago(2 * time.Minute), "expires": ago(-8 * time.Minute)}}}))
	f.on("GET /k8s/local/apis",
		always(map[string]any{"groups": []any{map[string]any{"name": "provision.cluster.drover.dev"}}}))
	f.on(provision+"etcdsnapshots", always(map[string]any{"items": snapshots}))
	f.on(provision+"clusterinstallations", always(map[string]any{"items": []any{named("factory", "floor", map[string]any{
		"spec": map[string]any{"clusterName": "floor", "distribution": "rke2", "version": "v1.36.3+rke2r1"},
		"status": map[string]any{"summary": "2/3", "waiting": []any{map[string]any{"host": "rack5",
			"message": "the instruction failed: no space left on device"}}}})}}))
	f.on("POST /k8s/clusters/retail/eu-west-07/apis/authorization.k8s.io/v1/subjectaccessreviews",
		always(map[string]any{"status": map[string]any{"allowed": false}}))
}

// atWork adds members in several states, and a node at work, to the status of a Plan with or without failures.
func atWork(status map[string]any, failed int) {
	var all []any
	for i, reason := range []string{"NodeFailed", "AwaitingWindow", "MembersAway"} {
		all = append(all, map[string]any{"name": []string{"eu-west-03", "eu-west-11", "eu-west-12"}[i],
			"wave": []string{"canary", "rest", "rest"}[i], "reason": reason, "nodes": "1/3",
			"since":   time.Now().Add(-time.Duration(i+1) * time.Hour).UTC().Format(time.RFC3339),
			"message": []string{"node n1 has no attempts left", "the window opens at 22:00 UTC", ""}[i]})
	}
	status["members"] = append(status["members"].([]any), all[1-failed:]...)
	status["applying"] = []any{map[string]any{"cluster": "eu-west-07", "node": "worker-3", "stage": "Upgrading",
		"attempt": 2, "since": time.Now().Add(-3 * time.Minute).UTC().Format(time.RFC3339)}}
}
