// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// uidRange is the annotation with which OpenShift assigns user IDs to a namespace: the first ID and the number of IDs.
const uidRange = "openshift.io/sa.scc.uid-range"

// constrained stands in for OpenShift's SecurityContextConstraints restricted-v2. A pod must name no user, or a user
// from the range of its namespace, and must ask for nothing of the host.
func constrained(t *testing.T, env *testkit.Env) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "restricted-v2"}
	rule := admissionregistrationv1.NamedRuleWithOperations{}
	rule.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Create}
	rule.Rule = admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
		Resources: []string{"pods"}}
	user := func(of string) string {
		return of + ".?securityContext.?runAsUser.optMap(u, u >= variables.first && u < variables.first + " +
			"variables.size).orValue(true)"
	}
	env.Apply(t, &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{rule},
			},
			Variables: []admissionregistrationv1.Variable{
				{Name: "range", Expression: "namespaceObject.metadata.annotations['" + uidRange + "'].split('/')"},
				{Name: "first", Expression: "int(variables.range[0])"},
				{Name: "size", Expression: "int(variables.range[1])"},
			},
			Validations: []admissionregistrationv1.Validation{
				{
					Expression: user("object.spec") + " && object.spec.containers.all(c, " + user("c") + ")",
					Message:    "the user is not in the namespace's range",
				},
				{
					Expression: "!object.spec.?hostNetwork.orValue(false) && !object.spec.?hostPID.orValue(false)",
					Message:    "the host's network and processes are not allowed",
				},
				{
					Expression: "object.spec.containers.all(c, !c.?securityContext.?privileged.orValue(false))",
					Message:    "privileged containers are not allowed",
				},
			},
		}})
	env.Apply(t, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta,
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: meta.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}}})
}

// agentPod returns the pod of an agent's manifest in a namespace.
func agentPod(t *testing.T, namespace string) *corev1.Pod {
	t.Helper()
	manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
		Image: "drover:v1", Trust: v1.TrustSystem, Token: strings.Repeat("t",
			40), Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if err != nil {
			t.Fatalf("the manifest has no Deployment: %v", err)
		}
		var d appsv1.Deployment
		if err := yaml.Unmarshal(document, &d); err != nil || d.Kind != "Deployment" {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "agent"}, Spec: d.Spec.Template.Spec}
		pod.Spec.ServiceAccountName = "" // the namespace has no account with that name
		pod.Spec.AutomountServiceAccountToken = new(false)
		return pod
	}
}

func TestOpenShiftAdmitsTheAgentsPod(t *testing.T) {
	t.Parallel()
	env := testkit.StartMember(t)
	constrained(t, env)
	const namespace = "constrained"
	env.Apply(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: namespace, Annotations: map[string]string{uidRange: "1000680000/10000"},
		Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
	env.Apply(t, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}})
	fixed := agentPod(t, namespace)
	fixed.Spec.SecurityContext.RunAsUser = new(int64(65532))
	// the API server needs a moment to notice new policies
	testkit.Eventually(t, 30*time.Second, func(ctx context.Context) error {
		err := env.Client.Create(ctx, fixed.DeepCopy(), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "the user is not in the namespace's range") {
			return errors.Join(errors.New("a fixed user is not refused yet"), err)
		}
		return nil
	})
	pod := agentPod(t, namespace)
	if err := env.Client.Create(t.Context(), pod.DeepCopy(), client.DryRunAll); err != nil {
		t.Errorf("the agent's pod: %v, want it admitted", err)
	}
	pod.Spec.SecurityContext.RunAsUser = new(int64(1000680000)) // as OpenShift sets it
	if err := env.Client.Create(t.Context(), pod, client.DryRunAll); err != nil {
		t.Errorf("the agent's pod with a user of the namespace: %v, want it admitted", err)
	}
	if !*pod.Spec.SecurityContext.RunAsNonRoot {
		t.Error("the agent's pod may run as root, want the kubelet to refuse that")
	}
}
