// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// fromRancher is the data of Rancher for one member. It is stored in the member's own API server, which is therefore
// also Rancher's cluster.
const fromRancher = `
{apiVersion: v1, kind: Namespace, metadata: {name: c-1}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: c-1-p-web}}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {field.cattle.io/projectId: p-web}, annotations: {field.cattle.io/projectId: "c-1:p-web"}}
---
{apiVersion: management.cattle.io/v3, kind: Cluster, metadata: {name: c-1}, spec: {displayName: Prod EU}}
---
{apiVersion: management.cattle.io/v3, kind: Project, metadata: {name: p-web, namespace: c-1}, spec: {displayName: Web, clusterName: c-1}}
---
apiVersion: management.cattle.io/v3
kind: RoleTemplate
metadata: {name: rt-deploy}
displayName: Deployer
context: project
rules: [{apiGroups: [apps], resources: [deployments], verbs: [create]}, {apiGroups: [management.cattle.io], resources: [projects], verbs: [own]}]
---
{apiVersion: management.cattle.io/v3, kind: User, metadata: {name: u-1}, displayName: Stranger, principalIds: ["local://u-1", "github_user://1"]}
---
apiVersion: management.cattle.io/v3
kind: ProjectRoleTemplateBinding
metadata: {name: prtb-1, namespace: c-1-p-web}
projectName: "c-1:p-web"
roleTemplateName: rt-deploy
userName: u-1
`

// TestLong_AMemberMovesFromRancherAndBack exports Rancher's data of a member, applies the result to the hub, and
// imports the member. The member's users have the same rights as before, in the namespaces of their project. When the
// Cluster is deleted, all of this is removed, and Rancher's objects are unchanged.
func TestLong_AMemberMovesFromRancherAndBack(t *testing.T) {
	t.Parallel()
	s := start(t)
	s.becomesRancher(t)
	before := s.ofRancher(t)
	o := newOperator(t, s)
	dir := filepath.Join(o.home, "fleet")
	export := func(args ...string) {
		t.Helper()
		command, _, says := o.command(t, append([]string{"rancher", "export", dir, "-w", metav1.NamespaceDefault, "--context", "member", "--member-context", "c-1=member"}, args...)...)
		if err := command.Run(); err != nil {
			t.Fatalf("export: %v: %s", err, says)
		}
	}
	export()
	principals := filepath.Join(dir, "principals.yaml")
	text, err := os.ReadFile(principals)
	if err != nil {
		t.Fatal(err)
	}
	named := bytes.Replace(text, []byte("name: \"\"\n  rancher: github_user://1\n"), []byte("name: hub:stranger\n  rancher: github_user://1\n"), 1)
	if err := os.WriteFile(principals, named, 0o600); err != nil || bytes.Equal(named, text) {
		t.Fatalf("%v: nothing to name in\n%s", err, text)
	}
	export("--principals", principals)
	s.hubKubectl(t, "apply", "-k", dir)

	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "prod-eu"}
	manifest, err := s.hub.Manifest(within(t, time.Minute), cluster, s.cluster(t, cluster).UID)
	if err != nil {
		t.Fatal(err)
	}
	s.agent(t, manifest, cluster.Name, s.member, protocol.AgentNamespace)
	s.await(t, cluster, 30*time.Second, framework.Ready)
	s.hubKubectl(t, "wait", "--for=condition=Ready", "--timeout=2m", "projects.cluster.drover.dev/prod-eu-web", "prtb/prod-eu-web-prtb-1")
	s.may(t, cluster, "shop", "yes")
	s.may(t, cluster, metav1.NamespaceDefault, "no")
	for line := range strings.Lines(s.hubKubectl(t, "apply", "-k", dir)) {
		if !strings.HasSuffix(line, " unchanged\n") {
			t.Error(line)
		}
	}

	s.hubKubectl(t, "delete", "-k", dir)
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		left, err := s.member.Kubectl(ctx, nil, "get", "rolebindings,clusterroles", "-A", "-o", "name", "-l", v1.LabelSet)
		if err == nil && left != "" {
			err = fmt.Errorf("the member still has %s", left)
		}
		return err
	})
	if after := s.ofRancher(t); after != before {
		t.Errorf("Rancher's objects were\n%sand are\n%s", before, after)
	}
	labels, err := s.member.Kubectl(within(t, time.Minute), nil, "get", "namespace", "shop", "-o", "jsonpath={.metadata.labels}")
	if err != nil || strings.Contains(labels, v1.Group) || !strings.Contains(labels, "field.cattle.io/projectId") {
		t.Errorf("the namespace has %s, %v", labels, err)
	}
}

// becomesRancher adds Rancher's kinds to the member, and creates Rancher's objects.
func (s *system) becomesRancher(t *testing.T) {
	t.Helper()
	ctx := within(t, time.Minute)
	if _, err := s.member.Kubectl(ctx, nil, "apply", "--server-side", "-f", testkit.Path(t, "cmd/kubectl-drover/rancher/testdata/crds")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.member.Kubectl(ctx, nil, "wait", "--for=condition=Established", "crd", "--all"); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error { // kinds are served a moment after they are established
		_, err := s.member.Kubectl(ctx, []byte(fromRancher), "apply", "-f", "-")
		return err
	})
}

// ofRancher returns Rancher's objects with their versions. Any write to an object changes its version.
func (s *system) ofRancher(t *testing.T) string {
	t.Helper()
	kinds := "clusters.management.cattle.io,projects.management.cattle.io,roletemplates.management.cattle.io,users.management.cattle.io,projectroletemplatebindings.management.cattle.io"
	out, err := s.member.Kubectl(within(t, time.Minute), nil, "get", kinds, "-A", "-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.metadata.resourceVersion}{"\n"}{end}`)
	if err != nil || !strings.Contains(out, "prtb-1") {
		t.Fatalf("%v: %s", err, out)
	}
	return out
}

func (s *system) hubKubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := s.hub.Kubectl(within(t, 2*time.Minute), nil, args...)
	if err != nil {
		t.Fatalf("kubectl %v: %v: %s\nmanager log:\n%s", args, err, out, tail(s.hub.Manager.LogFile()))
	}
	return out
}

// may waits until the stranger is allowed to create Deployments in a namespace of the member, or is not allowed to.
func (s *system) may(t *testing.T, cluster types.NamespacedName, namespace, want string) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		got, err := s.kubectl(t, cluster, strangerToken, "auth", "can-i", "create", "deployments", "-n", namespace)
		if strings.TrimSpace(got) != want {
			return fmt.Errorf("may the stranger create Deployments in %s: %q, %w", namespace, got, err)
		}
		return nil
	})
}
