// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// grant is the manifest of an attacker. It gives the attacker all rights in the cluster that it is applied to.
const grant = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: NAME}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: eve}]
`

// In TestAnImportAppliesNoManifestThatDroverHasNotMade, a user who may create Secrets creates one with the name of a
// Cluster's registration Secret before an administrator imports the Cluster. One API server is the hub, the other is
// the imported cluster.
func TestAnImportAppliesNoManifestThatDroverHasNotMade(t *testing.T) {
	hub, member := testkit.Shared(t), testkit.StartMember(t)
	workspace := hub.Workspace(t)
	kubeconfig := testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: workspace, Env: hub},
		testkit.Context{Name: "member", Namespace: workspace, Env: member})
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewImport(o)} }
	say := func(args ...string) (int, string, string) {
		var out, says strings.Builder
		code := cli.Run(t.Context(), "test", commands, append([]string{"--kubeconfig", kubeconfig}, args...), &out, &says)
		return code, out.String(), says.String()
	}
	applied := func(name string) bool {
		err := member.Client.Get(t.Context(), client.ObjectKey{Name: name}, &rbacv1.ClusterRoleBinding{})
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		return !apierrors.IsNotFound(err)
	}
	made := func(name string) *corev1.Secret { // as the controller creates it
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name}}
		hub.Apply(t, cluster)
		return owned.NewSecret(registration.ApplySecret(cluster, registration.Token{Value: "t"}, registration.Content{
			Command: "command of " + name, Manifest: []byte(strings.ReplaceAll(grant, "NAME", name))}))
	}
	for name, tt := range map[string]struct {
		change func(*corev1.Secret)
		want   string
	}{
		"unlabelled": {func(s *corev1.Secret) { s.Labels = nil }, "it lacks the label cluster.drover.dev/cluster=unlabelled of Drover's Secret"},
		"of-another": {func(s *corev1.Secret) { s.Labels[v1.LabelCluster] = "other" }, `its label cluster.drover.dev/cluster has the value "other"`},
		"of-a-kind":  {func(s *corev1.Secret) { s.Labels[v1.LabelSecretKind] = "agent" }, `its label cluster.drover.dev/secret has the value "agent"`},
		"unowned":    {func(s *corev1.Secret) { s.OwnerReferences = nil }, "it belongs to no object, but Drover's Secret belongs to the Cluster"},
		"former":     {func(s *corev1.Secret) { s.OwnerReferences[0].UID = "former" }, `it belongs to the object with the UID "former", but Drover's Secret belongs to the Cluster`},
	} {
		t.Run(name, func(t *testing.T) {
			planted := made(name)
			tt.change(planted)
			hub.Apply(t, planted)
			for _, how := range [][]string{{"--to-context", "member"}, {}} {
				code, out, says := say(append([]string{"import", name, "--timeout", "3s"}, how...)...)
				if code == 0 || !strings.Contains(says, "was not created by Drover: "+tt.want) {
					t.Errorf("import %v: exit code %d, %s, want a refusal that says %q", how, code, says, tt.want)
				}
				if strings.Contains(out+says, "command of") {
					t.Errorf("import %v shows the command of a Secret that Drover has not made: %s%s", how, out, says)
				}
			}
			if applied(name) {
				t.Error("the manifest of a Secret that Drover has not made was applied in the member")
			}
		})
	}
	t.Run("the one that Drover makes is applied, and its command shown", func(t *testing.T) {
		hub.Apply(t, made("good"))
		if code, out, says := say("import", "good"); code != 0 || !strings.Contains(out, "command of good") {
			t.Errorf("exit code %d, printed %q, %s, want the command", code, out, says)
		}
		_, _, _ = say("import", "good", "--to-context", "member", "--timeout", "3s") // there is no agent that could join
		testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error {
			return member.Client.Get(ctx, client.ObjectKey{Name: "good"}, &rbacv1.ClusterRoleBinding{})
		})
	})
}
