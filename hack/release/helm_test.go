// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// envHelm asks for the test with the command helm, which takes minutes to compile: make test-helm.
const envHelm = "DROVER_TEST_HELM"

// operator is a user with helm and kubectl at a new API server.
type operator struct {
	t             *testing.T
	helm, kubectl string
	env           []string
}

func newOperator(t *testing.T) *operator {
	t.Helper()
	if os.Getenv(envHelm) == "" {
		t.Skipf("it takes minutes to compile Helm: make test-helm, or %s=1", envHelm)
	}
	dir := t.TempDir()
	o := &operator{t: t, helm: filepath.Join(dir, "helm")}
	inRepository(t, nil, "go", "build", "-modfile=hack/tools/helm.mod", "-o", o.helm, "helm.sh/helm/v4/cmd/helm")
	labctl := filepath.Join(dir, "labctl")
	inRepository(t, nil, "go", "build", "-o", labctl, "./hack/labctl")
	o.kubectl = strings.TrimSpace(string(inRepository(t, nil, labctl, "build", "kubectl")))
	plane := filepath.Join(dir, "plane")
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), labctl, "down", "--dir", plane).CombinedOutput(); err != nil {
			t.Errorf("stop the control plane: %v: %s", err, out)
		}
	})
	kubeconfig := strings.TrimSpace(string(inRepository(t, nil, labctl, "up", "--dir", plane)))
	o.env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+dir, "HELM_CONFIG_HOME="+dir, "HELM_DATA_HOME="+dir)
	return o
}

// run runs a program to its end and returns its output. It fails the test if the program fails.
func (o *operator) run(stdin []byte, program string, args ...string) string {
	o.t.Helper()
	out, err := o.try(stdin, program, args...)
	if err != nil {
		o.t.Fatalf("%s %s: %v: %s", filepath.Base(program), strings.Join(args, " "), err, out)
	}
	return out
}

func (o *operator) try(stdin []byte, program string, args ...string) (string, error) {
	command := exec.CommandContext(o.t.Context(), program, args...)
	var out, problems bytes.Buffer
	command.Env, command.Stdin, command.Stdout, command.Stderr = o.env, bytes.NewReader(stdin), &out, &problems
	if err := command.Run(); err != nil {
		return out.String() + problems.String(), err
	}
	return out.String(), nil
}

// expect fails the test unless kubectl prints a text.
func (o *operator) expect(want string, args ...string) {
	o.t.Helper()
	if out := o.run(nil, o.kubectl, args...); strings.TrimSpace(out) != want {
		o.t.Errorf("kubectl %s prints %q, want %q", strings.Join(args, " "), out, want)
	}
}

const (
	// managerOfRelease are the replicas and the image of the manager.
	managerOfRelease = "jsonpath={.spec.replicas} {.spec.template.spec.containers[0].image}"
	ourObjects       = "-l=app.kubernetes.io/part-of=drover"
)

// TestHelmInstallsUpgradesAndUninstalls does what the chart's README says, with the command that people have.
func TestHelmInstallsUpgradesAndUninstalls(t *testing.T) {
	chart := testChart(t)
	o := newOperator(t)
	inRelease := []string{"drover", chart, "--namespace", manifestNamespace}
	install := append([]string{"install", "--create-namespace", "--set", "config.server.urls={" + testURL + "}"}, inRelease...)
	upgrade := append([]string{"upgrade", "--reset-then-reuse-values"}, inRelease...)
	get := []string{"--namespace", manifestNamespace, "get", "deployment/drover-manager", "-o"}

	if out, err := o.try(nil, o.helm, append([]string{"install"}, inRelease...)...); err == nil || !strings.Contains(out, "set config.server.urls") {
		t.Errorf("without an address it says %q, %v; want what to set", out, err)
	}
	o.run(nil, o.helm, "lint", "--strict", chart, "--set", "config.server.urls={"+testURL+"}")
	o.run(nil, o.helm, install...)
	o.expect("2 "+testImage, append(get, managerOfRelease)...)
	config := o.run(nil, o.kubectl, append(get, "jsonpath={.spec.template.spec.volumes[*].configMap.name}")...)

	o.run([]byte(o.run(nil, o.helm, "show", "crds", chart)), o.kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-")
	more := []string{"--set", "replicas=3,image.tag=v10,config.audit.level=Metadata"}
	o.run(nil, o.helm, append(append(upgrade, "--dry-run=server"), more...)...)
	o.expect("2 "+testImage, append(get, managerOfRelease)...)
	o.run(nil, o.helm, append(upgrade, more...)...)
	o.expect("3 registry.test/drover:v10", append(get, managerOfRelease)...)
	changed := o.run(nil, o.kubectl, append(get, "jsonpath={.spec.template.spec.volumes[*].configMap.name}")...)
	if changed == config {
		t.Errorf("a changed configuration has the name %s as before: the Deployment would not roll", config)
	}
	o.run(nil, o.helm, "rollback", "drover", "1", "--namespace", manifestNamespace)
	o.expect("2 "+testImage, append(get, managerOfRelease)...)

	o.run([]byte("{apiVersion: cluster.drover.dev/v1, kind: Project, metadata: {name: kept, namespace: default}, spec: {clusterName: a}}"), o.kubectl, "apply", "-f", "-")
	o.run(nil, o.helm, "uninstall", "drover", "--namespace", manifestNamespace)
	o.expect("", "get", "deployments,services,configmaps,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,priorityclasses,roletemplates", "-A", ourObjects, "-o", "name")
	o.expect("project.cluster.drover.dev/kept", "get", "projects", "-o", "name")
	o.run(nil, o.helm, append(install, "--dry-run=server")...)
	o.expect("", "--namespace", manifestNamespace, "get", "deployments", "-o", "name")
}
