// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

func TestTokenReviewerRunsBesideAPIServers(t *testing.T) {
	t.Parallel()
	var m registration.Manifests
	agent := v1.Agent{
		NodeSelector: map[string]string{"pool": "workers"}, Env: []v1.AgentEnv{{Name: "HTTPS_PROXY", SecretKey: "proxy"}},
		ImagePullSecrets: []v1.PullSecret{{Name: "registry"}},
	}
	made, err := m.Deployment(registration.ManifestInput{Image: "drover:v7", Trust: v1.TrustSystem, Agent: agent,
		APIServer: true, Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}}})
	if err != nil {
		t.Fatal(err)
	}
	d := decoded(t, made)
	if err := Check(d, full); err != nil {
		t.Errorf("the hub's Deployment: got the error %v, want it accepted", err)
	}
	if Check(d, Setup{Namespace: protocol.AgentNamespace, Profile: v1.ProfileReadOnly}) == nil {
		t.Error("a read-only agent accepted it, want it refused")
	}
	set := directSet(d)
	if set == nil || set.Name != protocol.DirectName ||
		!maps.Equal(set.Spec.Selector.MatchLabels, map[string]string{protocol.LabelName: protocol.DirectName}) {
		t.Fatalf("got the DaemonSet %+v, want one for direct access", set)
	}
	pod := set.Spec.Template.Spec
	main := pod.Containers[0]
	if main.Image != "drover:v7" || !slices.Equal(main.Command, []string{"/drover-agent", "direct"}) ||
		len(pod.ImagePullSecrets) != 1 {
		t.Errorf("got the image %s, the command %q and the pull Secrets %v, want those of the Deployment", main.Image,
			main.Command, pod.ImagePullSecrets)
	}
	if pod.ServiceAccountName != protocol.DirectName || len(main.Env) != 1 || main.Env[0].Name != protocol.EnvNamespace {
		t.Errorf("got the account %s and the environment %v, want neither the agent's rights nor its Secrets",
			pod.ServiceAccountName, main.Env)
	}
	if !pod.HostNetwork || len(main.Ports) > 0 || main.ReadinessProbe.HTTPGet.Host != "127.0.0.1" ||
		main.ReadinessProbe.HTTPGet.Port.IntValue() != 6440 {
		t.Errorf("got host network %t, ports %v and probes at %v, want loopback only", pod.HostNetwork, main.Ports,
			main.ReadinessProbe.HTTPGet)
	}
	terms := pod.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if pod.NodeSelector["pool"] != "" || len(terms) != 1 ||
		terms[0].MatchExpressions[0].Key != "node-role.kubernetes.io/control-plane" {
		t.Errorf("got nodes with %v, %v, want those of the control plane", pod.NodeSelector, terms)
	}
	if pod.Tolerations[0].Operator != corev1.TolerationOpExists || pod.Tolerations[0].Key != "" {
		t.Errorf("got the tolerations %v, want all taints tolerated", pod.Tolerations)
	}
	for _, volume := range pod.Volumes {
		if volume.EmptyDir == nil {
			t.Errorf("got the volume %s of the node or of a Secret, want none", volume.Name)
		}
	}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1.AnnotationDirectAccess, "Agent")
	if directSet(d) != nil {
		t.Error("got a DaemonSet where the agent serves users, want none")
	}
}
