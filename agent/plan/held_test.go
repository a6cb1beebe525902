// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/nodesim"
)

// says waits until the message of a Plan's Ready condition contains these words.
func (s *env) says(t *testing.T, name, words string) *v1.Plan {
	t.Helper()
	p := &v1.Plan{}
	eventually(t, func(ctx context.Context) error {
		if err := s.client.Get(ctx, client.ObjectKey{Namespace: v1.PlansNamespace, Name: name}, p); err != nil {
			return err
		}
		if ready := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady); ready == nil ||
			!strings.Contains(ready.Message, words) {
			return fmt.Errorf("plan %s is %+v, want a message with %q", name, ready, words)
		}
		return nil
	})
	return p
}

func testTainted(t *testing.T, s *env) {
	s.nodes(t, "tainted", "tainted-a", "tainted-b")
	n := s.node(t, "tainted-a")
	s.change(t, n, func() {
		n.Spec.Taints = []corev1.Taint{{Key: "node-role.kubernetes.io/etcd", Effect: corev1.TaintEffectNoExecute}}
	})
	p := newPlan("tainted", 0)
	p.Spec.Cordon = true
	s.create(t, p)
	p = s.says(t, "tainted", "node tainted-a has the taint node-role.kubernetes.io/etcd:NoExecute")
	s.expectNode(t, "tainted-b", "tainted", p.Status.LatestHash, false)
	s.expectNode(t, "tainted-a", "tainted", "", false)
	s.change(t, p, func() {
		p.Spec.Tolerations = []corev1.Toleration{{Key: "node-role.kubernetes.io/etcd", Operator: corev1.TolerationOpExists}}
	})
	p = s.await(t, "tainted", v1.ReasonComplete)
	s.expectNode(t, "tainted-a", "tainted", p.Status.LatestHash, false)
}

func testWindowsNode(t *testing.T, s *env) {
	s.nodes(t, "os", "os-a", "os-w")
	n := s.node(t, "os-w")
	s.change(t, n, func() { n.Labels[corev1.LabelOSStable] = "windows" })
	s.create(t, newPlan("os", 0))
	p := s.await(t, "os", v1.ReasonComplete)
	if m := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionReady).Message; !strings.Contains(m,
		"node os-w is left out: it runs windows") || p.Status.Nodes.Total != 1 {
		t.Errorf("got %d nodes and %q, want one node and os-w in the message", p.Status.Nodes.Total, m)
	}
	s.expectNode(t, "os-w", "os", "", false)
}

// testImageIsNamed checks that the Plan repeats the kubelet's message.
func testImageIsNamed(t *testing.T, s *env) {
	s.nodes(t, "named", "named-a")
	s.script("named-a", nodesim.Script{Unpullable: true})
	p := newPlan("named", 0)
	s.create(t, p)
	s.says(t, "named", "node named-a: its pod has not started: ImagePullBackOff: no such image")
}

// testPodRefused covers an API server that accepts the Job but refuses its pods, as with a quota.
func testPodRefused(t *testing.T, s *env) {
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "no-pods"},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"upgrade.cattle.io/plan": "refusedpod"}},
				ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				}}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: "pods need a signature"}},
		}}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: policy.ObjectMeta,
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		}}
	for _, o := range []client.Object{policy, binding} {
		if err := s.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	s.nodes(t, "refusedpod", "refusedpod-a")
	eventually(t, func(ctx context.Context) error { // until the API server enforces the policy
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe", Namespace: metav1.NamespaceDefault,
			Labels: map[string]string{"upgrade.cattle.io/plan": "refusedpod"}}}
		pod.Spec.Containers = []corev1.Container{{Name: "a", Image: "a"}}
		if err := s.client.Create(ctx, pod, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "signature") {
			return fmt.Errorf("the policy is not enforced yet: %w", err)
		}
		return nil
	})
	p := newPlan("refusedpod", 0)
	p.Spec.JobActiveDeadlineSecs = new(int64(20))
	s.create(t, p)
	s.says(t, "refusedpod", "its pod was not created: ")
	s.says(t, "refusedpod", "pods need a signature")
	p = s.await(t, "refusedpod", v1.ReasonNodeFailed)
	if f := p.Status.Failures[0]; f.Reason != v1.ReasonDeadlineExceeded ||
		!strings.Contains(f.Message, "pods need a signature") {
		t.Errorf("got the failure %+v, want DeadlineExceeded and the policy's message", f)
	}
}
