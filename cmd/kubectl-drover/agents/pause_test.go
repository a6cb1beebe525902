// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestTheAgentsOfClustersArePausedAndResumed(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	for _, name := range []string{"a", "b"} {
		hub.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}})
	}
	kubeconfig := testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub})
	run := func(what, held string, args ...string) {
		t.Helper()
		var out strings.Builder
		commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewList(o)} }
		args = append([]string{"agents"}, args...)
		code := cli.Run(t.Context(), "test", commands, append(args, "--kubeconfig", kubeconfig), &out, &out)
		if code != cli.ExitAllowed || !strings.Contains(out.String(), what) {
			t.Errorf("kubectl drover %v: exit code %d: %s, want %q", args, code, out.String(), what)
		}
		for _, name := range []string{"a", "b"} {
			c := &v1.Cluster{}
			err := hub.Client.Get(t.Context(), client.ObjectKey{Namespace: workspace, Name: name}, c)
			if err != nil || c.Labels[v1.LabelPlansHold] != held {
				t.Errorf("kubectl drover %v: Cluster %s has the labels %v (%v)", args, name, c.Labels, err)
			}
		}
	}
	run(v1.LabelPlansHold, "", "pause", "a", "b", "--dry-run=client", "-o", "yaml")
	run("cluster.cluster.drover.dev/b paused\n", "true", "pause", "a", "b")
	run("unchanged", "true", "pause", "a")
	run("a", "true")
	run("cluster.cluster.drover.dev/a resumed\n", "", "resume", "a", "b")
}
