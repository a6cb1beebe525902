// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"os"
	"slices"
	"strings"
	"testing"

	lablib "github.com/drover-dev/drover/test/lab/nodes"
)

const release = `apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: release, namespace: team-a}
spec:
  clusterName: prod
  version: v1
  drain: {}
  upgrade: {image: "lab.example.com/tool:1", command: [/tool], args: [append, /host/etc/drover-release, v1]}
`

func (o *operator) changesNodes(t *testing.T) {
	o.types(t, "ada", "kubectl -n shop rollout status deployment/web --timeout=5m")
	stop := o.starts(t, "ada", "exec kubectl -n shop get poddisruptionbudget web --watch -o jsonpath='{.status.currentHealthy}{\"\\n\"}'")
	before := o.types(t, "ada", "kubectl -n shop get pods -o name | sort")
	o.write(t, "release.yaml", release)
	o.types(t, "hub", "kubectl apply -f release.yaml && kubectl -n team-a wait --for=condition=Complete plan/release --timeout=9m && kubectl -n team-a get dplan release")
	healthy := strings.Fields(stop())
	if len(healthy) < 2 || slices.Contains(healthy, "0") {
		t.Errorf("pods of the budget that were healthy, in turn: %v, want a change and never 0", healthy)
	}
	if after := o.types(t, "ada", "kubectl -n shop get pods -o name | sort"); after == before {
		t.Errorf("the pods are the same as before the nodes were drained: %s", after)
	}
	for _, node := range []string{"prod-1", "prod-2"} {
		if got := o.onNode(t, node, "cat /etc/drover-release"); got != "v1" {
			t.Errorf("the file of %s has %q, want one line of v1", node, got)
		}
	}
	if _, err := os.Stat("/etc/drover-release"); err == nil {
		t.Error("the machine itself was changed")
	}
	if got := o.types(t, "prod", "kubectl get nodes -o jsonpath='{.items[*].spec.unschedulable}'"); got != "" {
		t.Errorf("nodes are left cordoned: %s", got)
	}
}

const restless = `apiVersion: cluster.drover.dev/v1
kind: Plan
metadata: {name: restless, namespace: team-a}
spec:
  clusterName: prod
  version: v2
  cordon: true
  jobActiveDeadlineSecs: 75
  retries: {limit: 3, backoff: 1s}
  upgrade: {image: "lab.example.com/tool:1", command: [/tool], args: [wait, 30s]}
`

func (o *operator) losesANode(t *testing.T) {
	o.write(t, "restless.yaml", restless)
	o.types(t, "hub", "kubectl apply -f restless.yaml")
	o.types(t, "prod", "kubectl -n drover-plans wait pod --for=create -l upgrade.cattle.io/plan=restless --timeout=5m")
	o.types(t, "prod", "kubectl -n drover-plans wait pod --for=condition=Ready -l upgrade.cattle.io/plan=restless --timeout=5m")
	o.transcript.note("The node prod-1 loses its power.")
	if err := o.lab.Kill("prod-1"); err != nil {
		t.Fatal(err)
	}
	o.types(t, "prod", "kubectl wait node/prod-1 --for=condition=Ready=Unknown --timeout=5m")
	o.types(t, "hub", "kubectl -n team-a wait cluster/prod --for=jsonpath='{.status.nodes.ready}'=1 --timeout=5m && kubectl -n team-a get cluster prod")
	o.types(t, "prod", "kubectl -n drover-plans wait job --for=condition=FailureTarget -l upgrade.cattle.io/plan=restless --timeout=5m")
	if got := o.types(t, "prod", "kubectl get node prod-2 -o jsonpath='{.spec.unschedulable}'"); got != "" {
		t.Error("the second node has begun while the first is dead")
	}
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Stalled plan/restless --timeout=5m && kubectl -n team-a get dplan restless -o wide")
	o.transcript.note("It is started again.")
	o.again(t)
	o.types(t, "hub", "kubectl -n team-a wait --for=condition=Complete plan/restless --timeout=9m && kubectl -n team-a get dplan restless -o wide")
	if got := o.types(t, "prod", "kubectl get nodes -o jsonpath='{.items[*].spec.unschedulable}'"); got != "" {
		t.Errorf("nodes are left cordoned: %s", got)
	}
	o.types(t, "ada", "kubectl -n shop rollout status deployment/web --timeout=5m")
}

// again restarts the parts of the lab that have ended.
func (o *operator) again(t *testing.T) {
	t.Helper()
	if _, err := lablib.Up(o.ended, o.options); err != nil {
		t.Fatal(err)
	}
}
