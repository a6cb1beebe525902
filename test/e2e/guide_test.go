// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/nodesim"
	"github.com/drover-dev/drover/test/testkit"
)

// guide follows a page of docs/guide on a hub and a member in the state in which "make demo" leaves them.
type guide struct {
	*system
	home    string // the reader's working directory
	stands  string // for programs that the guide uses and that are not here, as functions of the shell
	prelude string // the guide's first commands, which set up a shell
	printed string // by the last commands
	failed  error  // how they ended
}

// TestCommandsOfTheGuidePrintItsOutput follows the guide. It writes the guide's files, runs its commands and compares
// their output with its text.
func TestCommandsOfTheGuidePrintItsOutput(t *testing.T) {
	t.Parallel()
	if blocks := newGuide(t).followPage(t, "docs/guide/team.md"); blocks < 30 {
		t.Errorf("only %d blocks were found", blocks)
	}
}

// TestLong_CommandsOfTheGuideOfBaselinesSucceed follows the guide of Baselines. "flux" prints objects that a member
// without nodes can have.
func TestLong_CommandsOfTheGuideOfBaselinesSucceed(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	g.stands = "flux() { cat <<EOF\n" + fluxObjects + "EOF\n}\n"
	t.Cleanup(func() {
		if t.Failed() {
			out, err := g.hub.Kubectl(context.Background(), nil, "get", "baselines", "-o", "yaml")
			t.Logf("the Baselines: %s %v", out, err)
		}
	})
	if blocks := g.followPage(t, "docs/guide/baseline.md"); blocks < 9 {
		t.Errorf("only %d blocks were found", blocks)
	}
	if _, err := g.member.Kubectl(t.Context(), nil, "-n", "flux-system", "get", "configmap/flux"); err != nil {
		t.Errorf("the objects of the deleted Baseline flux: %v, want them left in place", err)
	}
}

// TestLong_CommandsOfTheGuideOfUpgradesSucceed follows the guide of upgrades with a member that has simulated nodes.
func TestLong_CommandsOfTheGuideOfUpgradesSucceed(t *testing.T) {
	t.Parallel()
	g := newGuide(t)
	sim := nodesim.Start(context.WithoutCancel(t.Context()), g.member.Client, func(*corev1.Pod) nodesim.Script {
		return nodesim.Script{}
	})
	t.Cleanup(sim.Close)
	for _, node := range []string{"a", "b"} {
		if err := sim.AddNode(t.Context(), node, nil); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, err := g.hub.Kubectl(context.Background(), nil, "get", "plans,clusters", "-o", "yaml")
			t.Logf("the Plans and Clusters: %s %v", out, err)
		}
	})
	if blocks := g.followPage(t, "docs/guide/upgrade.md"); blocks < 5 {
		t.Errorf("only %d blocks were found", blocks)
	}
	for _, node := range []string{"a", "b"} {
		labels, err := g.member.Kubectl(t.Context(), nil, "get", "node", node, "-o", "jsonpath={.metadata.labels}")
		if err != nil || !strings.Contains(labels, v1.PlanLabel("k8s")) {
			t.Errorf("the labels of node %s are %s, %v, want the label of the completed plan", node, labels, err)
		}
	}
}

const fluxObjects = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gitrepositories.source.toolkit.fluxcd.io}
spec:
  group: source.toolkit.fluxcd.io
  scope: Namespaced
  names: {kind: GitRepository, plural: gitrepositories, singular: gitrepository, listKind: GitRepositoryList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: flux-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: flux, namespace: flux-system}
`

// newGuide starts a hub and a member.
func newGuide(t *testing.T) *guide {
	t.Helper()
	s := start(t)
	cluster, _ := s.imported(t, "member", s.member, protocol.AgentNamespace)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	g := &guide{system: s, home: t.TempDir()}
	g.prepare(t)
	return g
}

// followPage runs all blocks of a page, and returns their number.
func (g *guide) followPage(t *testing.T, page string) int {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, page))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	for i, block := range blocks {
		next := ""
		if i+1 < len(blocks) {
			next = blocks[i+1][1]
		}
		g.follow(t, block[1], block[2], next)
	}
	return len(blocks)
}

// follow runs one block. Its commands may fail if the guide shows their output.
func (g *guide) follow(t *testing.T, kind, block, next string) {
	t.Helper()
	switch kind {
	case "yaml":
		g.write(t, block)
	case "sh":
		if g.prelude == "" {
			g.prelude = block
			return
		}
		g.run(t, block)
		if g.failed != nil && next != "text" {
			t.Fatalf("%s%v\n%s\nmanager log:\n%s", block, g.failed, g.printed, tail(g.hub.Manager.LogFile()))
		}
	case "text":
		if g.printed != block {
			t.Errorf("the guide says\n%s\nand the commands say (%v)\n%s", block, g.failed, g.printed)
		}
	case "console":
		if block != "make demo\n" {
			t.Fatalf("no way to do %q here", block)
		}
		<-g.hub.Manager.Exited()
		g.restartManager(t)
		g.await(t, cluster("member"), 60*time.Second, framework.Ready)
	default:
		t.Fatalf("a block of kind %q", kind)
	}
}

// write creates a file from a block that begins with the file's name. All files must be YAML, even files that no
// command here reads.
func (g *guide) write(t *testing.T, block string) {
	t.Helper()
	name, found := strings.CutPrefix(strings.SplitN(block, "\n", 2)[0], "# ")
	path := filepath.Join(g.home, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil || !found {
		t.Fatalf("a file named %q: %v", name, err)
	}
	for document := range strings.SplitSeq(block, "\n---\n") {
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal([]byte(document), &object); err != nil || object.Kind == "" {
			t.Errorf("%s: %q: %v, want an object with a kind", name, object.Kind, err)
		}
	}
	if err := os.WriteFile(path, []byte(block), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (g *guide) run(t *testing.T, script string) {
	t.Helper()
	command := exec.CommandContext(within(t, 2*time.Minute), "bash", "-euo", "pipefail", "-c", g.stands+g.prelude+script)
	var out, complaints bytes.Buffer
	command.Dir, command.Stdout, command.Stderr = g.home, &out, &complaints
	command.Env = append(os.Environ(), "KUBERC=off", "KUBECACHEDIR="+filepath.Join(g.home, ".demo", "kube-cache"))
	g.failed = command.Run()
	g.printed = out.String() + complaints.String()
}

// prepare creates what the demo creates: programs, kubeconfigs, the manager's process ID, and the user demo as owner of
// the member.
func (g *guide) prepare(t *testing.T) {
	t.Helper()
	demo := filepath.Join(g.home, ".demo")
	for _, folder := range []string{"bin", "pids"} {
		if err := os.MkdirAll(filepath.Join(demo, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(
		os.Symlink(filepath.Join(pluginDir(t), "kubectl-drover"), filepath.Join(demo, "bin", "kubectl-drover")),
		os.Symlink(g.programs.Kubectl, filepath.Join(demo, "bin", "kubectl")),
		os.WriteFile(filepath.Join(demo, "pids", "manager.pid"), []byte(strconv.Itoa(g.hub.Manager.PID())), 0o600),
		g.hub.WriteKubeconfig(filepath.Join(demo, "hub.kubeconfig")),
		g.member.WriteKubeconfig(filepath.Join(demo, "member.kubeconfig")),
		g.writeProxyKubeconfig(t, filepath.Join(demo, "proxy.kubeconfig")),
		g.member.Client.Delete(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}),
	)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.member.Kubectl(t.Context(), nil, "apply", "-f", "hack/demo/rights/member.yaml"); err != nil {
		t.Fatal(err)
	}
}

// writeProxyKubeconfig gives the context the same name as the demo.
func (g *guide) writeProxyKubeconfig(t *testing.T, path string) error {
	if _, err := g.hub.ProxyKubeconfig(t.Context(), cluster("member"), demoToken, path); err != nil {
		return err
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return fmt.Errorf("read kubeconfig: %w", err)
	}
	config.Contexts["member"] = config.Contexts[config.CurrentContext]
	delete(config.Contexts, config.CurrentContext)
	config.CurrentContext = "member"
	return clientcmd.WriteToFile(*config, path)
}
