// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// ManifestInput is what an agent's manifest depends on.
type ManifestInput struct {
	// Image of the agent.
	Image string
	// Trust of the agent.
	Trust v1.Trust
	// Token to join with.
	Token string
	// Settings of the hub: where it is and which CA to trust.
	Settings protocol.Settings
}

// Manifest is the YAML that installs an agent in a member. It is marshalled from objects, so that nothing in its input can become
// YAML of its own (CVE-2026-44939).
func Manifest(in ManifestInput) ([]byte, error) { return (&Manifests{}).Manifest(in) }

// Manifests makes manifests, and marshals only once what all members have in common: of ten thousand manifests only the tokens
// differ. The zero value is ready. It may be used concurrently.
type Manifests struct {
	mu     sync.Mutex // guards what follows
	shared manifestKey
	parts  manifestParts
}

// manifestKey is everything in a ManifestInput but the token.
type manifestKey struct {
	image    string
	trust    v1.Trust
	settings string // digest
}

// manifestParts are what comes before and after the Secret with the token.
type manifestParts struct{ before, after []byte }

// Manifest is Manifest.
func (m *Manifests) Manifest(in ManifestInput) ([]byte, error) {
	parts, err := m.around(in)
	if err != nil {
		return nil, err
	}
	secret, err := marshal(joinSecret(in))
	if err != nil {
		return nil, err
	}
	return slices.Concat(parts.before, secret, parts.after), nil
}

// around remembers the parts for the last key: hardly any Cluster has an image or a trust of its own.
func (m *Manifests) around(in ManifestInput) (manifestParts, error) {
	key := manifestKey{image: in.Image, trust: in.Trust, settings: in.Settings.Digest()}
	m.mu.Lock()
	parts, known := m.parts, m.shared == key && m.parts.before != nil
	m.mu.Unlock()
	if known {
		return parts, nil
	}
	env, err := agentEnv(in)
	if err != nil {
		return manifestParts{}, err
	}
	if parts.before, err = marshal(namespace(), serviceAccount(), clusterRole(), clusterRoleBinding(), role(), roleBinding()); err != nil {
		return manifestParts{}, err
	}
	if parts.after, err = marshal(deployment(in.Image, env)); err != nil {
		return manifestParts{}, err
	}
	m.mu.Lock()
	m.shared, m.parts = key, parts
	m.mu.Unlock()
	return parts, nil
}

func marshal(objects ...any) ([]byte, error) {
	var out bytes.Buffer
	for _, object := range objects {
		raw, err := yaml.Marshal(object)
		if err != nil {
			return nil, fmt.Errorf("marshal agent manifest: %w", err)
		}
		out.WriteString("---\n")
		out.Write(raw)
	}
	return out.Bytes(), nil
}

// Command is the line that a person runs in the member. With a pinned CA it carries the CA itself, so that nothing is fetched that
// is not verified (CVE-2025-67601).
func Command(manifestURL string, trust v1.Trust, caBundle string) string {
	if trust == v1.TrustSystem || caBundle == "" {
		return "kubectl apply -f " + manifestURL
	}
	return fmt.Sprintf("printf %%s %s | base64 -d | curl -fsS --cacert /dev/stdin --capath /dev/null %s | kubectl apply -f -",
		base64.StdEncoding.EncodeToString([]byte(caBundle)), manifestURL)
}

// ManifestURL is where the manifest for a token is served.
func ManifestURL(server, token string) string {
	return server + protocol.PathImport + token + ".yaml"
}

// agentEnv is the environment of the agent in a fixed order.
func agentEnv(in ManifestInput) ([]*corev1ac.EnvVarApplyConfiguration, error) {
	env := []*corev1ac.EnvVarApplyConfiguration{
		corev1ac.EnvVar().WithName(protocol.EnvServer).WithValue(strings.Join(in.Settings.Servers, ",")),
		corev1ac.EnvVar().WithName(protocol.EnvTrust).WithValue(string(in.Trust)),
		corev1ac.EnvVar().WithName(protocol.EnvNamespace).WithValue(protocol.AgentNamespace),
	}
	if in.Trust == v1.TrustPinned {
		sums, err := protocol.CertificateChecksums([]byte(in.Settings.CABundle))
		if err != nil {
			return nil, fmt.Errorf("pin the CA bundle in the agent manifest: %w", err)
		}
		env = append(env, corev1ac.EnvVar().WithName(protocol.EnvCAChecksum).WithValue(strings.Join(sums, ",")))
	}
	return env, nil
}

func agentLabels() map[string]string {
	return map[string]string{"app.kubernetes.io/name": protocol.AgentName, "app.kubernetes.io/managed-by": "drover"}
}

func namespace() *corev1ac.NamespaceApplyConfiguration {
	return corev1ac.Namespace(protocol.AgentNamespace).WithLabels(agentLabels()).
		WithLabels(map[string]string{"pod-security.kubernetes.io/enforce": "restricted"})
}

func serviceAccount() *corev1ac.ServiceAccountApplyConfiguration {
	return corev1ac.ServiceAccount(protocol.AgentName, protocol.AgentNamespace).WithLabels(agentLabels())
}

// clusterRole is all that an agent may do beyond its own namespace: act as the users whose requests it forwards, see what it
// reports, and remove itself.
func clusterRole() *rbacv1ac.ClusterRoleApplyConfiguration {
	rule := rbacv1ac.PolicyRule
	return rbacv1ac.ClusterRole(protocol.AgentName).WithLabels(agentLabels()).WithRules(
		rule().WithAPIGroups("").WithResources("users", "groups").WithVerbs("impersonate"),
		rule().WithAPIGroups("authentication.k8s.io").WithResources("*").WithVerbs("impersonate"), // uids, and userextras of any key: RBAC has no userextras/*,
		rule().WithAPIGroups("").WithResources("nodes", "pods").WithVerbs("get", "list", "watch"),
		rule().WithAPIGroups("").WithResources("namespaces").WithResourceNames("kube-system").WithVerbs("get"),
		rule().WithNonResourceURLs("/version", "/readyz", "/livez").WithVerbs("get"),
		rule().WithAPIGroups("").WithResources("namespaces").WithResourceNames(protocol.AgentNamespace).WithVerbs("get", "delete"),
		rule().WithAPIGroups("rbac.authorization.k8s.io").WithResources("clusterroles", "clusterrolebindings").
			WithResourceNames(protocol.AgentName).WithVerbs("get", "update", "patch", "delete"),
	)
}

func clusterRoleBinding() *rbacv1ac.ClusterRoleBindingApplyConfiguration {
	return rbacv1ac.ClusterRoleBinding(protocol.AgentName).WithLabels(agentLabels()).
		WithRoleRef(roleRef("ClusterRole")).WithSubjects(subject())
}

func role() *rbacv1ac.RoleApplyConfiguration {
	return rbacv1ac.Role(protocol.AgentName, protocol.AgentNamespace).WithLabels(agentLabels()).WithRules(
		rbacv1ac.PolicyRule().WithAPIGroups("").WithResources("secrets").
			WithVerbs("get", "list", "watch", "create", "update", "patch", "delete"),
	)
}

func roleBinding() *rbacv1ac.RoleBindingApplyConfiguration {
	return rbacv1ac.RoleBinding(protocol.AgentName, protocol.AgentNamespace).WithLabels(agentLabels()).
		WithRoleRef(roleRef("Role")).WithSubjects(subject())
}

func roleRef(kind string) *rbacv1ac.RoleRefApplyConfiguration {
	return rbacv1ac.RoleRef().WithAPIGroup("rbac.authorization.k8s.io").WithKind(kind).WithName(protocol.AgentName)
}

func subject() *rbacv1ac.SubjectApplyConfiguration {
	return rbacv1ac.Subject().WithKind("ServiceAccount").WithNamespace(protocol.AgentNamespace).WithName(protocol.AgentName)
}

func joinSecret(in ManifestInput) *corev1ac.SecretApplyConfiguration {
	data := map[string][]byte{protocol.KeyToken: []byte(in.Token)} // not stringData: applying it again would always change something
	if in.Trust == v1.TrustPinned {
		data[protocol.KeyCABundle] = []byte(in.Settings.CABundle)
	}
	return corev1ac.Secret(protocol.RegistrationSecret, protocol.AgentNamespace).WithLabels(agentLabels()).
		WithType(corev1.SecretTypeOpaque).WithData(data)
}

func deployment(image string, env []*corev1ac.EnvVarApplyConfiguration) *appsv1ac.DeploymentApplyConfiguration {
	name := map[string]string{"app.kubernetes.io/name": protocol.AgentName}
	return appsv1ac.Deployment(protocol.AgentName, protocol.AgentNamespace).WithLabels(agentLabels()).WithSpec(
		appsv1ac.DeploymentSpec().WithReplicas(1).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(name)).
			WithTemplate(corev1ac.PodTemplateSpec().WithLabels(agentLabels()).WithSpec(podSpec(image, env))))
}

func podSpec(image string, env []*corev1ac.EnvVarApplyConfiguration) *corev1ac.PodSpecApplyConfiguration {
	probe := func(path string) *corev1ac.ProbeApplyConfiguration {
		return corev1ac.Probe().WithHTTPGet(corev1ac.HTTPGetAction().WithPath(path).WithPort(intstr.FromString("health")))
	}
	container := corev1ac.Container().WithName("agent").WithImage(image).
		WithCommand("/drover-agent").WithEnv(env...).
		WithPorts(corev1ac.ContainerPort().WithName("health").WithContainerPort(8080)).
		WithLivenessProbe(probe("/healthz").WithPeriodSeconds(20).WithFailureThreshold(3)).
		WithReadinessProbe(probe("/readyz").WithPeriodSeconds(10)).
		WithResources(corev1ac.ResourceRequirements().
			WithRequests(corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("20m"), corev1.ResourceMemory: resource.MustParse("32Mi")}).
			WithLimits(corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")})).
		WithVolumeMounts(corev1ac.VolumeMount().WithName("tmp").WithMountPath("/tmp")).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).WithReadOnlyRootFilesystem(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL")))
	return corev1ac.PodSpec().
		WithServiceAccountName(protocol.AgentName).
		WithSecurityContext(corev1ac.PodSecurityContext().WithRunAsNonRoot(true).WithRunAsUser(65532).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithTolerations(
			corev1ac.Toleration().WithKey("node-role.kubernetes.io/control-plane").WithOperator(corev1.TolerationOpExists).WithEffect(corev1.TaintEffectNoSchedule),
			corev1ac.Toleration().WithKey("node-role.kubernetes.io/etcd").WithOperator(corev1.TolerationOpExists).WithEffect(corev1.TaintEffectNoExecute)).
		WithTerminationGracePeriodSeconds(60).
		WithContainers(container).
		WithVolumes(corev1ac.Volume().WithName("tmp").WithEmptyDir(corev1ac.EmptyDirVolumeSource().WithMedium(corev1.StorageMediumMemory).
			WithSizeLimit(resource.MustParse("1Mi"))))
}
