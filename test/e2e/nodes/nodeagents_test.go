// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	nodeAgentPods = "kubectl -n drover-agent get pods -l app.kubernetes.io/name=drover-node-agent "

	// brokenNetwork breaks a node's pod network, so that it carries no traffic, not even queries to the cluster's DNS.
	brokenNetwork = "table ip broken { chain pods { type filter hook forward priority -10; drop; }; " +
		"chain dns { type filter hook input priority -10; udp dport 53 drop; tcp dport 53 drop; }; }"
)

func (o *operator) getsNodeAgents(t *testing.T) {
	o.types(t, "prod", "kubectl taint node prod-2 dedicated=db:NoSchedule")
	o.asksForNodeAgents(t, "prod", true)
	o.types(t, "prod", "kubectl -n drover-agent wait --for=create daemonset/drover-node-agent --timeout=5m && kubectl -n drover-agent rollout status daemonset/drover-node-agent --timeout=5m")
	pods := o.types(t, "prod", nodeAgentPods+"-o jsonpath='{range .items[*]}{.spec.nodeName} {.spec.hostNetwork} {.status.podIP}{\"\\n\"}{end}' | sort")
	if pods != "prod-1 true 10.90.0.12\nprod-2 true 10.90.0.13" {
		t.Errorf("node agents are %q, want one on each node, at the node's address", pods)
	}
	o.types(t, "prod", "kubectl taint node prod-2 dedicated-")
	o.types(t, "hub", "kubectl -n team-a wait cluster/prod --for=condition=AgentUpToDate --timeout=5m")

	o.transcript.note("A person scales the agent to 0.")
	o.types(t, "prod", "kubectl -n drover-agent scale deployment drover-agent --replicas=0")
	o.isReachedByANodeAgent(t)
	o.transcript.note("The owner of the member repairs that through the hub.")
	o.types(t, "ada", "kubectl -n drover-agent scale deployment drover-agent --replicas=2")
	o.isReachedByItsAgent(t)

	o.transcript.note("The network of pods and the DNS break on both nodes.")
	for _, node := range []string{"prod-1", "prod-2"} {
		o.onNode(t, node, "nft '"+brokenNetwork+"'")
	}
	o.isReachedByANodeAgent(t)
	for _, node := range []string{"prod-1", "prod-2"} {
		o.onNode(t, node, "nft delete table ip broken")
	}
	o.isReachedByItsAgent(t)

	o.asksForNodeAgents(t, "prod", false)
	o.types(t, "prod", "kubectl -n drover-agent wait --for=delete daemonset/drover-node-agent lease/drover-node-agent --timeout=5m && "+
		"kubectl -n drover-agent wait --for=delete pod -l app.kubernetes.io/name=drover-node-agent --timeout=5m")
	if got := o.types(t, "prod", "kubectl get namespace drover-agent -o jsonpath='{.metadata.labels.pod-security\\.kubernetes\\.io/enforce}'"); got != "restricted" {
		t.Errorf("the pod security of the agent's namespace is %q, want it restricted again", got)
	}
	if got := o.types(t, "prod", "kubectl get all,secrets,configmaps,leases,serviceaccounts,roles,rolebindings -A -o name; kubectl get clusterroles,clusterrolebindings -o name"); strings.Contains(got, "node-agent") {
		t.Errorf("left of node agents:\n%s", got)
	}

	// The last story removes the Clusters, including edge with its node agents.
	o.asksForNodeAgents(t, "edge", true)
	o.types(t, "edge", "kubectl -n drover-agent wait --for=create daemonset/drover-node-agent --timeout=5m && kubectl -n drover-agent rollout status daemonset/drover-node-agent --timeout=5m")
}

// asksForNodeAgents changes the Cluster of a member and applies its new manifest there. The manifest contains the hub's
// CA and the agent's rights, and stays in a file.
func (o *operator) asksForNodeAgents(t *testing.T, member string, wanted bool) {
	t.Helper()
	o.types(t, "hub", fmt.Sprintf(`kubectl -n team-a patch cluster %s --type=merge -p '{"spec":{"agent":{"nodeAgent":%t}}}'`, member, wanted))
	manifest := "kubectl -n team-a get secret -l cluster.drover.dev/secret=registration,cluster.drover.dev/cluster=" + member +
		" -o go-template='{{range .items}}{{index .data \"manifest.yaml\" | base64decode}}{{end}}' > " + member + "-agent.yaml; " +
		"grep -o pod-security.* " + member + "-agent.yaml"
	o.awaits(t, "hub", manifest, func(out string, err error) error {
		if want := map[bool]string{true: "privileged", false: "restricted"}[wanted]; err != nil || !strings.Contains(out, want) {
			return fmt.Errorf("want a manifest with the pod security %s", want)
		}
		return nil
	})
	o.types(t, member, "kubectl apply --server-side --force-conflicts -f "+member+"-agent.yaml")
}

// isReachedByANodeAgent makes ada work in the member prod while none of its replicas is connected.
func (o *operator) isReachedByANodeAgent(t *testing.T) {
	t.Helper()
	o.awaitsReason(t, "ConnectedByNodeAgent")
	o.awaits(t, "hub", "kubectl -n team-a get cluster prod -o jsonpath='{.status.agent.replicas} {.status.nodes.ready}'", func(out string, err error) error {
		if err != nil || out != "0 2" {
			return errors.New("want no replica, and 2 nodes that are ready")
		}
		return nil
	})
	facts := "kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.status.addresses[?(@.type==\"InternalIP\")].address} " +
		"{.status.nodeInfo.kernelVersion} {.status.nodeInfo.containerRuntimeVersion} {.status.capacity.cpu}{\"\\n\"}{end}'"
	o.awaits(t, "ada", facts, func(out string, err error) error {
		nodes := strings.Split(out, "\n")
		if err != nil || len(nodes) != 2 || slices.ContainsFunc(nodes, func(node string) bool {
			return len(strings.Fields(node)) != 5 || !strings.Contains(node, "containerd://")
		}) {
			return errors.New("want address, kernel, runtime and processors of both nodes")
		}
		return nil
	})
	pod := o.types(t, "ada", "kubectl -n shop get pods -o jsonpath='{.items[0].metadata.name}'")
	o.awaits(t, "ada", "kubectl -n shop exec "+pod+" -c web -- /tool get http://localhost:8080", func(out string, err error) error {
		if err != nil || out != pod {
			return fmt.Errorf("want %s", pod)
		}
		return nil
	})
}

// isReachedByItsAgent waits until both replicas in the member prod are connected again, one on each node.
func (o *operator) isReachedByItsAgent(t *testing.T) {
	t.Helper()
	o.awaitsReason(t, "Connected")
	o.types(t, "prod", "kubectl -n drover-agent rollout status deployment/drover-agent --timeout=5m")
	o.types(t, "hub", "kubectl -n team-a wait cluster/prod --for=jsonpath='{.status.agent.replicas}'=2 --timeout=7m")
	o.types(t, "ada", "kubectl get nodes")
}

func (o *operator) awaitsReason(t *testing.T, reason string) {
	t.Helper()
	o.types(t, "hub", `kubectl -n team-a wait cluster/prod --for=jsonpath='{.status.conditions[?(@.type=="Ready")].reason}'=`+reason+" --timeout=7m")
}
