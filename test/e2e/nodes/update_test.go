// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"fmt"
	"strings"
	"testing"
)

// nextAgents is added to the hub's configuration. It sets another image for the agents, and upgrades the cluster edge
// first.
const nextAgents = `agent:
  image: IMAGE
  rollout:
    waves:
    - {name: canary, clusterSelector: {matchLabels: {env: edge}}, soak: 5s}
`

func (o *operator) updatesTheHub(t *testing.T) {
	stop := o.reads(t, "prod")
	before := o.managers(t)
	o.types(t, "hub", "kubectl -n drover-system rollout restart deployment/drover-manager")
	o.awaitsManagers(t, before)
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready cluster --all --timeout=5m")
	stop()
}

func (o *operator) updatesTheAgents(t *testing.T) {
	name, _, _ := strings.Cut(o.image, ":")
	next := name + ":next"
	// On a node, the next image is only another name for the same image. The test is about how agents are replaced.
	for _, node := range []string{"prod-1", "prod-2", "edge-1"} {
		o.onNode(t, node, fmt.Sprintf("ctr -n k8s.io images tag --force docker.io/library/%s docker.io/library/%s", o.image, next))
	}
	members := []string{"edge", "prod"}
	var stops []func()
	agents := map[string]string{}
	for _, member := range members {
		stops = append(stops, o.reads(t, member))
		agents[member] = o.types(t, member, "kubectl -n drover-agent get pods -o name | sort")
	}
	managers := o.managers(t)
	o.write(t, "hub/config.yaml", o.config(t)+strings.Replace(nextAgents, "IMAGE", next, 1))
	o.types(t, "hub", "kubectl apply --server-side -k hub")
	o.awaitsManagers(t, managers)
	for _, member := range members {
		o.types(t, "hub", "kubectl -n team-a wait cluster/"+member+" --for=jsonpath='{.status.agent.upgrade.complete}' --timeout=9m")
		o.types(t, member, "kubectl -n drover-agent wait --for=delete --timeout=5m "+strings.ReplaceAll(agents[member], "\n", " "))
	}
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=AgentUpToDate cluster --all --timeout=5m")
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready cluster --all --timeout=5m && kubectl -n team-a get clusters -o wide")
	for _, stop := range stops {
		stop()
	}
	for _, member := range members {
		if got := o.types(t, member, "kubectl -n drover-agent get pods -o jsonpath='{.items[*].spec.containers[*].image}'"); strings.Trim(strings.ReplaceAll(got, next, ""), " ") != "" {
			t.Errorf("the agents of %s have the images %s, want %s alone", member, got, next)
		}
	}
	edge := strings.Fields(o.types(t, "hub", "kubectl -n team-a get cluster edge -o jsonpath='{.status.agent.upgrade.wave} {.status.agent.upgrade.complete}'"))
	prod := o.types(t, "hub", "kubectl -n team-a get cluster prod -o jsonpath='{.status.agent.upgrade.since}'")
	if len(edge) != 2 || edge[0] != "canary" || prod <= edge[1] {
		t.Errorf("edge was upgraded in wave and until %v, and prod since %s: want the wave canary, and prod after it", edge, prod)
	}
}

// reads starts users who read in a member through the hub. It returns a function that stops them, and that fails the
// test if one of their requests has failed.
func (o *operator) reads(t *testing.T, member string) (stop func()) {
	t.Helper()
	end := o.starts(t, "ada", "exec tool load "+hubURL+"/k8s/clusters/team-a/"+member+"/api/v1/namespaces/default/configmaps/kube-root-ca.crt hub-ca.crt ada.token")
	return func() {
		t.Helper()
		if got := end(); !strings.HasPrefix(got, "0 of ") || strings.HasPrefix(got, "0 of 0") {
			t.Errorf("users who read in %s had: %s", member, got)
		}
	}
}

// managers returns the pods of the manager, in order to wait for them.
func (o *operator) managers(t *testing.T) string {
	t.Helper()
	return strings.ReplaceAll(o.types(t, "hub", "kubectl -n drover-system get pods -o name | sort"), "\n", " ")
}

// awaitsManagers waits until the manager's Deployment is rolled out and the old pods have been removed.
func (o *operator) awaitsManagers(t *testing.T, before string) {
	t.Helper()
	o.types(t, "hub", "kubectl -n drover-system rollout status deployment/drover-manager --timeout=9m")
	o.types(t, "hub", "kubectl -n drover-system wait --for=delete --timeout=5m "+before)
}
