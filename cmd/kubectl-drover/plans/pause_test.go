// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

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

func TestAPlanIsPausedAndResumed(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	plan := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "k3s"}}
	plan.Spec.ClusterName = "prod"
	plan.Spec.Version = "v1"
	plan.Spec.Upgrade = v1.PlanContainer{Image: "registry.example.com/upgrade"}
	hub.Apply(t, plan)
	kubeconfig := testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub})
	run := func(what string, paused bool, args ...string) {
		t.Helper()
		var out strings.Builder
		commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
		args = append([]string{"plan"}, args...)
		code := cli.Run(t.Context(), "test", commands, append(args, "--kubeconfig", kubeconfig), &out, &out)
		if code != cli.ExitAllowed || !strings.Contains(out.String(), what) {
			t.Errorf("kubectl drover %v: exit code %d: %s, want %q", args, code, out.String(), what)
		}
		found := &v1.Plan{}
		err := hub.Client.Get(t.Context(), client.ObjectKeyFromObject(plan), found)
		if err != nil || found.Spec.Paused != paused {
			t.Errorf("kubectl drover %v: paused is %v (%v), want %v", args, found.Spec.Paused, err, paused)
		}
	}
	run("paused: true", false, "pause", "k3s", "--dry-run=client", "-o", "yaml")
	run("plan.cluster.drover.dev/k3s paused\n", true, "pause", "k3s")
	run("unchanged", true, "pause", "k3s")
	run("plan.cluster.drover.dev/k3s resumed\n", false, "resume", "k3s")
}
