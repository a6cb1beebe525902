// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package projects

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestAProjectIsCreatedExtendedAndListed(t *testing.T) {
	hub := testkit.Shared(t)
	workspace := hub.Workspace(t)
	kubeconfig := testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub})
	run := func(want int, what string, args ...string) string {
		t.Helper()
		var out strings.Builder
		commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} }
		args = append([]string{"project"}, args...)
		code := cli.Run(t.Context(), "test", commands, append(args, "--kubeconfig", kubeconfig), &out, &out)
		if code != want || !strings.Contains(out.String(), what) {
			t.Errorf("kubectl drover %v: exit code %d: %s, want %d and %q", args, code, out.String(), want, what)
		}
		return out.String()
	}
	namespaces := func() []string {
		t.Helper()
		p := &v1.Project{}
		if err := hub.Client.Get(t.Context(), client.ObjectKey{Namespace: workspace, Name: "web"}, p); err != nil {
			t.Fatal(err)
		}
		return p.Spec.Namespaces
	}
	run(cli.ExitError, `"prod" not found`, "create", "web", "--cluster", "prod")
	run(cli.ExitAllowed, `"prod" not found`, "create", "web", "--cluster", "prod", "--dry-run=client")
	run(cli.ExitAllowed, "Workspace nosuch does not exist, or has none", "list", "-w", "nosuch")
	run(cli.ExitAllowed, "Workspace nosuch does not exist, or has none", "list", "-w", "nosuch", "-o", "name")
	out := run(cli.ExitAllowed, `"projects": []`, "list", "-w", "nosuch", "-o", "json")
	if strings.Contains(out, "Workspace") {
		t.Errorf("JSON is mixed with a message: %s", out)
	}
	hub.Apply(t, &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: "prod"}})

	manifest := run(cli.ExitAllowed, "kind: Project", "create", "web", "--cluster", "prod",
		"--namespaces", "web,db", "--dry-run=client", "-o", "yaml")
	held := &v1.Project{}
	err := yaml.UnmarshalStrict([]byte(manifest), held)
	if err != nil || !slices.Equal(held.Spec.Namespaces, []string{"web", "db"}) {
		t.Errorf("the manifest is %s (%v)", manifest, err)
	}
	run(cli.ExitAllowed, "project.cluster.drover.dev/web created", "create", "web", "--cluster", "prod",
		"--namespaces", "web")
	run(cli.ExitError, "add-namespace", "create", "web", "--cluster", "prod")
	run(cli.ExitAllowed, "configured", "add-namespace", "web", "db", "cache", "--dry-run=client")
	if got := namespaces(); !slices.Equal(got, []string{"web"}) {
		t.Errorf("after a dry run the namespaces are %q", got)
	}
	run(cli.ExitAllowed, "configured", "add-namespace", "web", "db", "cache")
	run(cli.ExitAllowed, "unchanged", "add-namespace", "web", "db")
	if got := namespaces(); !slices.Equal(got, []string{"web", "db", "cache"}) {
		t.Errorf("the namespaces are %q", got)
	}
	run(cli.ExitError, "belong to the cluster", "add-namespace", "web", "kube-system")
	run(cli.ExitError, "requires PROJECT", "add-namespace", "web")
	run(cli.ExitAllowed, "web,db,cache", "list")
	run(cli.ExitAllowed, `"namespaces"`, "list", "-o", "json")
}
