// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	// lookLimit is the maximum duration of each diagnostic step after a failure.
	lookLimit = 30 * time.Second
	// logBytes is the number of bytes at the end of a node's log that are printed.
	logBytes = 6 << 10
)

// leaving prints what blocks the removal of the agent, and the node agents, which have another label than the agent.
const leaving = "kubectl get namespaces,crds,clusterroles,clusterrolebindings -o custom-columns=NAME:.metadata.name,DELETED:.metadata.deletionTimestamp,FINALIZERS:.metadata.finalizers,CONDITIONS:.status.conditions[*].message | grep -e NAME -e drover; " +
	"kubectl get all,leases,secrets -n drover-agent -o wide; kubectl get all,leases,secrets -n drover-plans -o wide; " +
	"kubectl -n drover-agent logs -l app.kubernetes.io/name=drover-node-agent --tail=60 --prefix; kubectl -n drover-agent logs -l app.kubernetes.io/name=drover-agent --tail=30 --prefix --previous"

// looks prints what a user would look at after a failure.
var looks = []struct{ kubeconfig, line string }{
	{"hub", "kubectl get nodes,pods -A -o wide; kubectl get clusters,dplan,crtb,prtb,dproj -A -o wide"},
	{"hub", "kubectl get clusters,dplan -A -o yaml | tail -n 200"},
	{"hub", "kubectl get namespaces -o custom-columns=NAME:.metadata.name,DELETED:.metadata.deletionTimestamp,FINALIZERS:.spec.finalizers,CONDITIONS:.status.conditions[*].message; kubectl -n drover-system get all,leases -o wide"},
	{"hub", "kubectl get events -A --sort-by=.lastTimestamp | tail -n 40"},
	{"hub", "kubectl -n drover-system logs -l app.kubernetes.io/name=drover --tail=60 --prefix; kubectl -n drover-system logs -l app.kubernetes.io/name=drover --tail=20 --prefix --previous"},
	{"prod", "kubectl get nodes,pods,jobs -A -o wide; kubectl -n drover-agent logs -l app.kubernetes.io/name=drover-agent --tail=60 --prefix; kubectl -n drover-agent describe pods | tail -n 80"},
	{"prod", "kubectl get events -A --sort-by=.lastTimestamp | tail -n 40"},
	{"edge", "kubectl get nodes,pods -A -o wide; kubectl -n drover-agent logs -l app.kubernetes.io/name=drover-agent --tail=60 --prefix"},
	{"prod", leaving},
	{"edge", leaving},
	{"edge", "kubectl get events -A --sort-by=.lastTimestamp | tail -n 40"},
}

func (o *operator) lookAround(t *testing.T) {
	t.Helper()
	for _, look := range looks {
		ctx, cancel := context.WithTimeout(context.Background(), lookLimit)
		cmd, err := o.command(ctx, look.kubeconfig, look.line)
		if err != nil {
			cancel()
			t.Log(err)
			return
		}
		out, err := cmd.CombinedOutput()
		cancel()
		t.Logf("%s$ %s\n%s\n%v", look.kubeconfig, look.line, out, err)
	}
	o.showNodes(t, o.lab.Dir())
}

// showNodes prints the last part of the logs of the lab's nodes.
func (o *operator) showNodes(t *testing.T, dir string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "nodes/*/node.log"))
	if err != nil {
		t.Error(err)
		return
	}
	more, err := filepath.Glob(filepath.Join(dir, "nodes/*/root/var/log/lab/*.log"))
	if err != nil {
		t.Error(err)
		return
	}
	for _, path := range append(paths, more...) {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Log(err)
			continue
		}
		end := string(content[max(0, len(content)-logBytes):])
		t.Logf("the end of %s:\n%s", strings.TrimPrefix(path, dir+"/"), end)
	}
}
