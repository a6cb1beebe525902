// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"strings"
	"testing"
)

func (o *operator) losesAMember(t *testing.T) {
	o.types(t, "hub", "kubectl apply -f - <<<'"+strings.ReplaceAll(strings.ReplaceAll(adaOwnsProd, "ada-owns-prod", "ada-owns-edge"), "clusterName: prod", "clusterName: edge")+"'")
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready crtb/ada-owns-edge --timeout=2m")
	edge := "--server=" + hubURL + "/k8s/clusters/team-a/edge"
	o.types(t, "ada", "until kubectl "+edge+" get nodes; do sleep 1; done")
	pods := o.types(t, "edge", "kubectl -n drover-agent get pods -o name | sort")
	o.transcript.note("The cable of edge-1 is pulled.")
	if err := o.lab.Cut("edge-1"); err != nil {
		t.Fatal(err)
	}
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready=False cluster/edge --timeout=5m && kubectl -n team-a get clusters")
	o.fails(t, "ada", "kubectl "+edge+" get nodes", "not connected")
	o.transcript.note("It is plugged in again.")
	if err := o.lab.Mend("edge-1"); err != nil {
		t.Fatal(err)
	}
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Ready cluster/edge --timeout=5m")
	o.types(t, "ada", "kubectl "+edge+" get nodes")
	o.types(t, "edge", "kubectl wait node/edge-1 --for=condition=Ready --timeout=5m && kubectl -n drover-agent rollout status deployment/drover-agent --timeout=5m")
	if after := o.types(t, "edge", "kubectl -n drover-agent get pods -o name | sort"); after != pods {
		t.Errorf("the agents were %s and are %s: they were to come back, not to be made again", pods, after)
	}
}

// traces prints the Drover objects in a cluster. Labels of nodes that a Plan has completed remain. If the Plan is
// created again, it finds its work done (docs/spec/plan.md).
const traces = "kubectl get namespaces,crd,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses,flowschemas,prioritylevelconfigurations -o name | grep -i drover; " +
	"kubectl get all,secrets,configmaps,leases,roles,rolebindings,networkpolicies,resourcequotas,limitranges -A -o name | grep -i drover; " +
	`kubectl get nodes,namespaces -o jsonpath='{range .items[*]}{.metadata.labels}{.metadata.annotations}{.spec.taints}{"\n"}{end}' | grep -o '"[^"]*drover[^"]*"' | grep -v '^"plan.cluster.drover.dev/'; true`

func (o *operator) removesAll(t *testing.T) {
	o.types(t, "hub", "kubectl -n team-a delete dplan,crtb,prtb,dproj --all --timeout=5m")
	o.types(t, "hub", "kubectl -n team-a delete cluster --all --timeout=5m")
	for _, member := range []string{"prod", "edge"} {
		// The API server removes a CRD some seconds after its deletion.
		o.types(t, member, "kubectl wait --for=delete namespace/drover-agent namespace/drover-plans crd/plans.cluster.drover.dev --timeout=5m")
		if got := o.types(t, member, traces); got != "" {
			t.Errorf("left in %s:\n%s", member, got)
		}
	}
	o.types(t, "hub", "kubectl delete -k hub --ignore-not-found --timeout=5m")
	o.types(t, "hub", "kubectl delete namespace team-a --timeout=5m")
	if got := o.types(t, "hub", traces); got != "" {
		t.Errorf("left on the hub:\n%s", got)
	}
	for member, node := range map[string]string{"prod": "prod-1", "edge": "edge-1"} {
		if got := o.types(t, member, "kubectl get node "+node+" -o jsonpath='{.spec.unschedulable}'"); got != "" {
			t.Errorf("node %s is left cordoned", node)
		}
	}
}
