// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Time limits for rolling out and stopping an agent's Deployment.
const (
	// progressDeadline is the number of seconds that a new pod has to pull its image and connect. If the pod takes longer,
	// the agent restores the previous Deployment.
	progressDeadline = 120
	// gracePeriod is the number of seconds that an agent has to stop. It is 10 seconds longer than
	// agent/daemon.StopTimeout. StopTimeout is the time that requests in progress have to finish.
	gracePeriod = 130
)

// Deployment is an agent's Deployment in the form that the manifest contains and that the hub sends through the tunnel.
type Deployment struct {
	// Digest covers all settings from spec.agent and the hub's configuration, except the hub's addresses and CA.
	// Connected agents receive the addresses and the CA as protocol.Settings. They must not restart when these change.
	Digest string
	// JSON is the Deployment, encoded as JSON.
	JSON []byte
}

// buildDeployment returns the Deployment and its digest. The digest is also an annotation on the pods.
func buildDeployment(in ManifestInput) (*appsv1ac.DeploymentApplyConfiguration, string, error) {
	anywhere := in
	anywhere.Settings = protocol.Settings{}
	bare, err := deployment(anywhere, nil, "")
	if err != nil {
		return nil, "", err
	}
	raw, err := json.Marshal(bare)
	if err != nil {
		return nil, "", fmt.Errorf("marshal agent deployment: %w", err)
	}
	sum := sha256.Sum256(raw)
	digest := hex.EncodeToString(sum[:16])
	connection, err := connectionEnv(in)
	if err != nil {
		return nil, "", err
	}
	whole, err := deployment(in, connection, digest)
	return whole, digest, err
}

func deployment(in ManifestInput, connection []*corev1ac.EnvVarApplyConfiguration,
	digest string) (*appsv1ac.DeploymentApplyConfiguration, error) {
	pod, err := podSpec(in, connection)
	if err != nil {
		return nil, err
	}
	spec := appsv1ac.DeploymentSpec().
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(selector())).
		WithStrategy(appsv1ac.DeploymentStrategy().WithType("RollingUpdate").WithRollingUpdate(
			appsv1ac.RollingUpdateDeployment().WithMaxSurge(intstr.FromInt32(1)).WithMaxUnavailable(intstr.FromInt32(0)))).
		WithProgressDeadlineSeconds(progressDeadline).
		WithTemplate(corev1ac.PodTemplateSpec().WithLabels(protocol.AgentLabels()).
			WithAnnotations(map[string]string{v1.AnnotationAgentDigest: digest}).WithSpec(pod))
	d := appsv1ac.Deployment(protocol.AgentName, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).WithSpec(spec)
	if in.Agent.NodeAgent {
		d.WithAnnotations(map[string]string{v1.AnnotationNodeAgent: "true"})
	}
	if in.direct() {
		d.WithAnnotations(map[string]string{v1.AnnotationDirectAccess: string(v1.AuthorizedEndpointAPIServer)})
	}
	if in.Agent.Replicas != nil {
		spec.WithReplicas(*in.Agent.Replicas)
		return d, nil
	}
	return d.WithAnnotations(map[string]string{v1.AnnotationAgentReplicas: v1.AgentReplicasByNodes}), nil
}

func selector() map[string]string {
	return map[string]string{"app.kubernetes.io/name": protocol.AgentName}
}

// connectionEnv returns the variables that contain the hub's addresses and the checksums of the hub's CA.
func connectionEnv(in ManifestInput) ([]*corev1ac.EnvVarApplyConfiguration, error) {
	env := []*corev1ac.EnvVarApplyConfiguration{variable(protocol.EnvServer, strings.Join(in.Settings.Servers, ","))}
	if in.Trust != v1.TrustPinned {
		return env, nil
	}
	sums, err := protocol.CertificateChecksums([]byte(in.Settings.CABundle))
	if err != nil {
		return nil, fmt.Errorf("pin the CA bundle in the agent manifest: %w", err)
	}
	return append(env, variable(protocol.EnvCAChecksum, strings.Join(sums, ","))), nil
}

// environment returns the agent's environment variables in a fixed order.
func environment(in ManifestInput,
	connection []*corev1ac.EnvVarApplyConfiguration) []*corev1ac.EnvVarApplyConfiguration {
	env := append([]*corev1ac.EnvVarApplyConfiguration{}, connection...)
	env = append(env,
		variable(protocol.EnvTrust, string(in.Trust)),
		variable(protocol.EnvNamespace, protocol.AgentNamespace))
	if in.Agent.Profile == v1.ProfileReadOnly {
		env = append(env, variable(protocol.EnvProfile, string(in.Agent.Profile)))
	}
	if in.Agent.HostNetwork {
		env = append(env, variable(protocol.EnvHostNetwork, "true"))
	}
	for _, e := range in.Agent.Env {
		// a Cluster that is older than the validation rule may contain other variables
		if protocol.AgentVariable(e.Name) {
			env = append(env, agentVariable(e))
		}
	}
	return env
}

func agentVariable(e v1.AgentEnv) *corev1ac.EnvVarApplyConfiguration {
	if e.SecretKey == "" {
		return variable(e.Name, e.Value)
	}
	return variable(e.Name, "").WithValueFrom(corev1ac.EnvVarSource().WithSecretKeyRef(
		corev1ac.SecretKeySelector().WithName(protocol.EnvironmentSecret).WithKey(e.SecretKey)))
}

func variable(name, value string) *corev1ac.EnvVarApplyConfiguration {
	v := corev1ac.EnvVar().WithName(name)
	if value == "" { // the API server drops an empty value, so it is omitted here too
		return v
	}
	return v.WithValue(value)
}

func podSpec(
	in ManifestInput, connection []*corev1ac.EnvVarApplyConfiguration,
) (*corev1ac.PodSpecApplyConfiguration, error) {
	// No user is set, because the image already specifies a non-root user. OpenShift assigns a range of user IDs to
	// each namespace and refuses all others.
	pod := corev1ac.PodSpec().
		WithServiceAccountName(protocol.AgentName).
		WithSecurityContext(corev1ac.PodSecurityContext().WithRunAsNonRoot(true).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithTolerations(controlPlaneTolerations()...).
		WithTolerations(lossTolerations(in.Agent)...).
		WithAffinity(preferences()).
		WithTerminationGracePeriodSeconds(gracePeriod).
		WithContainers(container(in, connection)).
		WithVolumes(corev1ac.Volume().WithName("tmp").WithEmptyDir(corev1ac.EmptyDirVolumeSource().WithMedium(
			corev1.StorageMediumMemory).
			WithSizeLimit(resource.MustParse("1Mi"))))
	agent := in.Agent
	if agent.HostNetwork { // the member may not have a DNS server either
		pod.WithHostNetwork(true).WithDNSPolicy(corev1.DNSDefault)
	}
	for i := range agent.Tolerations {
		more, err := applied[corev1ac.TolerationApplyConfiguration](agent.Tolerations[i])
		if err != nil {
			return nil, err
		}
		pod.WithTolerations(more)
	}
	for _, secret := range agent.ImagePullSecrets {
		pod.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(secret.Name))
	}
	if len(agent.NodeSelector) > 0 {
		pod.WithNodeSelector(agent.NodeSelector)
	}
	if agent.PriorityClassName != "" {
		pod.WithPriorityClassName(agent.PriorityClassName)
	}
	if agent.Affinity == nil {
		return pod, nil
	}
	own, err := applied[corev1ac.AffinityApplyConfiguration](agent.Affinity)
	return pod.WithAffinity(own), err
}

// applied converts part of spec.agent to an apply configuration that contains only the fields that are set.
func applied[T any](part any) (*T, error) {
	raw, err := json.Marshal(part)
	out := new(T)
	if err == nil {
		err = json.Unmarshal(raw, out)
	}
	if err != nil {
		return nil, fmt.Errorf("convert %T for the agent manifest: %w", part, err)
	}
	return out, nil
}

func container(in ManifestInput,
	connection []*corev1ac.EnvVarApplyConfiguration) *corev1ac.ContainerApplyConfiguration {
	probe := func(path string) *corev1ac.ProbeApplyConfiguration {
		if in.Agent.HostNetwork { // the port would be open on the node, where two replicas would compete for it
			return corev1ac.Probe().WithTimeoutSeconds(protocol.ProbeTimeout).
				WithExec(corev1ac.ExecAction().WithCommand("/drover-agent", "probe", path))
		}
		return corev1ac.Probe().WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("health")))
	}
	c := corev1ac.Container()
	if !in.Agent.HostNetwork {
		c.WithPorts(corev1ac.ContainerPort().WithName("health").WithContainerPort(8080))
	}
	return c.WithName("agent").WithImage(in.Image).
		WithCommand("/drover-agent").WithEnv(environment(in, connection)...).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(20).WithFailureThreshold(3)).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(10)).
		WithResources(resources(in.Agent.Resources)).
		WithVolumeMounts(corev1ac.VolumeMount().WithName("tmp").WithMountPath("/tmp")).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL")))
}

func resources(own *v1.AgentResources) *corev1ac.ResourceRequirementsApplyConfiguration {
	out := corev1ac.ResourceRequirements()
	if own == nil {
		return out.
			WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"),
				corev1.ResourceMemory: resource.MustParse("32Mi")}).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")})
	}
	if len(own.Requests) > 0 {
		out.WithRequests(own.Requests)
	}
	if len(own.Limits) > 0 {
		out.WithLimits(own.Limits)
	}
	return out
}

// controlPlaneTolerations returns tolerations for the taints that kubeadm, RKE2 and K3s put on control plane and etcd
// nodes.
func controlPlaneTolerations() []*corev1ac.TolerationApplyConfiguration {
	var all []*corev1ac.TolerationApplyConfiguration
	for _, key := range []string{"node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/etcd",
		"CriticalAddonsOnly"} {
		all = append(all, corev1ac.Toleration().WithKey(key).WithOperator(corev1.TolerationOpExists))
	}
	return all
}

// nodeLossSeconds is the number of seconds for which a replica stays bound to a lost node. The Kubernetes default of
// five minutes is too long for the agent.
const nodeLossSeconds = 30

// lossTolerations returns tolerations that allow the agent to be replaced soon after its node is lost. Both replicas
// may be on that node, for example if the cluster started with one node. Taint keys that the user's own tolerations
// already contain are skipped. With hostNetwork, the agent stays on nodes that are not ready, because nodes only become
// ready once they have a pod network.
func lossTolerations(agent v1.Agent) []*corev1ac.TolerationApplyConfiguration {
	var all []*corev1ac.TolerationApplyConfiguration
	for _, key := range []string{
		corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeNetworkUnavailable,
	} {
		early := key != corev1.TaintNodeUnreachable // the node has this taint before it has a pod network
		switch {
		case slices.ContainsFunc(agent.Tolerations, func(t corev1.Toleration) bool { return t.Key == key }):
			continue
		case agent.HostNetwork && early:
			all = append(all, corev1ac.Toleration().WithKey(key).WithOperator(corev1.TolerationOpExists))
			continue
		case key == corev1.TaintNodeNetworkUnavailable:
			continue
		}
		all = append(all, corev1ac.Toleration().WithKey(key).WithOperator(corev1.TolerationOpExists).
			WithEffect(corev1.TaintEffectNoExecute).WithTolerationSeconds(nodeLossSeconds))
	}
	return all
}

// preferences returns an affinity that prefers control plane nodes and a different node for each replica.
func preferences() *corev1ac.AffinityApplyConfiguration {
	controlPlane := corev1ac.NodeSelectorTerm().WithMatchExpressions(corev1ac.NodeSelectorRequirement().
		WithKey("node-role.kubernetes.io/control-plane").WithOperator(corev1.NodeSelectorOpExists))
	apart := corev1ac.PodAffinityTerm().WithTopologyKey(corev1.LabelHostname).
		WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(selector()))
	return corev1ac.Affinity().
		WithNodeAffinity(corev1ac.NodeAffinity().WithPreferredDuringSchedulingIgnoredDuringExecution(
			corev1ac.PreferredSchedulingTerm().WithWeight(50).WithPreference(controlPlane))).
		WithPodAntiAffinity(corev1ac.PodAntiAffinity().WithPreferredDuringSchedulingIgnoredDuringExecution(
			corev1ac.WeightedPodAffinityTerm().WithWeight(100).WithPodAffinityTerm(apart)))
}

// WithDefaults returns a Cluster's spec.agent with the hub's defaults for unset fields. If the Cluster sets a variable,
// it replaces both the uppercase and the lowercase form of the hub's variable, because HTTPS_PROXY and https_proxy have
// the same meaning.
func WithDefaults(agent, hub v1.Agent) v1.Agent {
	agent.Image = cmp.Or(agent.Image, hub.Image)
	agent.PriorityClassName = cmp.Or(agent.PriorityClassName, hub.PriorityClassName)
	if len(agent.NodeSelector) == 0 {
		agent.NodeSelector = hub.NodeSelector
	}
	if len(agent.Tolerations) == 0 {
		agent.Tolerations = hub.Tolerations
	}
	if len(agent.ImagePullSecrets) == 0 {
		agent.ImagePullSecrets = hub.ImagePullSecrets
	}
	env := slices.DeleteFunc(slices.Clone(hub.Env), func(e v1.AgentEnv) bool {
		return slices.ContainsFunc(agent.Env, func(own v1.AgentEnv) bool { return strings.EqualFold(own.Name, e.Name) })
	})
	agent.Env = append(env, agent.Env...)
	return agent
}
