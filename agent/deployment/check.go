// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// These limits apply to Deployments that the hub requests.
const (
	maxReplicas    = 5
	maxGracePeriod = 3600 // seconds
	maxDeadline    = 3600 // seconds

	minDigest, maxDigest = 16, 64 // in bytes
)

// Decode decodes a Deployment. It rejects unknown fields, because the agent cannot check them.
func Decode(raw []byte) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(d); err != nil {
		return nil, fmt.Errorf("decode deployment: %w", err)
	}
	if decoder.More() {
		return nil, errors.New("decode deployment: there is data after it")
	}
	return d, nil
}

// Setup contains the properties of an agent that its manifest defines and that the hub cannot change.
type Setup struct {
	// Namespace is the namespace of the agent.
	Namespace string
	// Profile is the profile that the agent was installed with. It determines the rights of the agent's account, which
	// only the manifest grants.
	Profile v1.AgentProfile
	// HostNetwork is true if the agent was installed with the network of its nodes. It determines the pod security
	// level of the agent's namespace, which only the manifest sets.
	HostNetwork bool
}

// Check returns an error if a Deployment differs from the agent's own in a field that the hub must not change. The
// hub controls the image and the image's pull Secrets, the replicas, parts of the environment, the resources, and
// the nodes on which the agent runs. The hub cannot change the agent's account or the agent's access to its node.
func Check(d *appsv1.Deployment, setup Setup) error {
	rest := d.DeepCopy()
	if digest := digestOf(rest); len(digest) < minDigest || len(digest) > maxDigest ||
		strings.Trim(digest, "0123456789abcdef") != "" {
		return fmt.Errorf("the annotation %s of its pods is not a digest", v1.AnnotationAgentDigest)
	}
	if r := rest.Spec.Replicas; r != nil && (*r < 1 || *r > maxReplicas) {
		return fmt.Errorf("spec.replicas is %d: it must be 1 to %d", *r, maxReplicas)
	}
	if s := rest.Spec.ProgressDeadlineSeconds; s == nil || *s < 1 || *s > maxDeadline {
		return fmt.Errorf("spec.progressDeadlineSeconds must be 1 to %d", maxDeadline)
	}
	if n := len(rest.Spec.Template.Spec.Containers); n != 1 {
		return fmt.Errorf("it has %d containers: it must have 1", n)
	}
	if s := rest.Spec.Template.Spec.TerminationGracePeriodSeconds; s == nil || *s < 1 || *s > maxGracePeriod {
		return fmt.Errorf("terminationGracePeriodSeconds must be 1 to %d", maxGracePeriod)
	}
	c := &rest.Spec.Template.Spec.Containers[0]
	if c.Image == "" {
		return errors.New("it names no image")
	}
	if len(c.Resources.Claims) > 0 {
		return errors.New("its container claims devices")
	}
	for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
		for name := range list {
			// Any other resource might exist on only one node. A request for it would place the agent and its key on
			// that node.
			if name != corev1.ResourceCPU && name != corev1.ResourceMemory && name != corev1.ResourceEphemeralStorage {
				return fmt.Errorf("its container asks for %s: an agent may ask for cpu, memory and ephemeral-storage only", name)
			}
		}
	}
	if err := checkEnv(c.Env, setup); err != nil {
		return err
	}
	if setup.Profile == v1.ProfileFull && rest.Annotations[v1.AnnotationNodeAgent] == nodeAgentsOn {
		delete(rest.Annotations, v1.AnnotationNodeAgent)
	}
	if setup.Profile == v1.ProfileFull &&
		rest.Annotations[v1.AnnotationDirectAccess] == string(v1.AuthorizedEndpointAPIServer) {
		delete(rest.Annotations, v1.AnnotationDirectAccess)
	}
	blank(rest)
	return same(rest, own(setup))
}

// checkEnv returns an error if the environment contains a variable that is not known to be harmless. Such a variable
// could make the agent connect to the wrong API server or hub, or log its token.
func checkEnv(env []corev1.EnvVar, setup Setup) error {
	values := make(map[string]string, len(env))
	for i := range env {
		name := env[i].Name
		if from := env[i].ValueFrom; from != nil && (setByHub(name) || !fromEnvironmentSecret(from)) {
			return fmt.Errorf("its variable %s has a value from a source other than the Secret %s", name,
				protocol.EnvironmentSecret)
		}
		if _, twice := values[name]; twice {
			return fmt.Errorf("its variable %s is set twice", name)
		}
		values[name] = env[i].Value
		if !setByHub(name) && !protocol.AgentVariable(name) {
			return fmt.Errorf("an agent does not accept the variable %s: %s", name, protocol.AgentVariables)
		}
	}
	if namespace := values[protocol.EnvNamespace]; namespace != setup.Namespace {
		return fmt.Errorf("its variable %s is %q, but the agent runs in the namespace %s", protocol.EnvNamespace, namespace,
			setup.Namespace)
	}
	if profile := v1.AgentProfile(cmp.Or(values[protocol.EnvProfile], string(v1.ProfileFull))); profile != setup.Profile {
		return fmt.Errorf("it has the profile %s, but the agent was installed with %s: apply the manifest to change the "+
			"profile, because only the manifest grants an agent's rights", profile, setup.Profile)
	}
	if onHost := values[protocol.EnvHostNetwork] == "true"; onHost != setup.HostNetwork {
		return fmt.Errorf("it has hostNetwork %t, but the agent was installed with %t: apply the manifest to change it",
			onHost, setup.HostNetwork)
	}
	return nil
}

// fromEnvironmentSecret reports whether a variable gets its value from the Secret for environment variables. The
// agent's other Secrets contain its key and its token.
func fromEnvironmentSecret(from *corev1.EnvVarSource) bool {
	ref := from.SecretKeyRef
	return ref != nil && ref.Name == protocol.EnvironmentSecret && ref.Optional == nil &&
		reflect.DeepEqual(*from, corev1.EnvVarSource{SecretKeyRef: ref})
}

// setByHub reports whether the hub itself sets a variable for each agent.
func setByHub(name string) bool {
	switch name {
	case protocol.EnvServer, protocol.EnvCAChecksum, protocol.EnvTrust, protocol.EnvNamespace, protocol.EnvProfile,
		protocol.EnvHostNetwork:
		return true
	}
	return false
}

// blank clears the fields that the hub controls.
func blank(d *appsv1.Deployment) {
	if d.Annotations[v1.AnnotationAgentReplicas] == v1.AgentReplicasByNodes {
		delete(d.Annotations, v1.AnnotationAgentReplicas)
	}
	delete(d.Spec.Template.Annotations, v1.AnnotationAgentDigest)
	d.Spec.Replicas, d.Spec.ProgressDeadlineSeconds = nil, nil
	pod := &d.Spec.Template.Spec
	copyHubFields(pod, &corev1.PodSpec{Containers: []corev1.Container{{Name: pod.Containers[0].Name}}})
}

// copyHubFields copies the pod fields that the hub controls. Check accepts any value in these fields. They are also
// copied from the agent's Deployment to the DaemonSets that accompany it.
func copyHubFields(to, from *corev1.PodSpec) {
	to.Tolerations, to.Affinity, to.NodeSelector = from.Tolerations, from.Affinity, from.NodeSelector
	to.PriorityClassName, to.ImagePullSecrets = from.PriorityClassName, from.ImagePullSecrets
	to.TerminationGracePeriodSeconds = from.TerminationGracePeriodSeconds
	main := &to.Containers[0]
	for i := range from.Containers {
		if c := &from.Containers[i]; c.Name == main.Name {
			main.Image, main.Env, main.Resources = c.Image, c.Env, c.Resources
		}
	}
}

// own returns the agent's Deployment as the manifest defines it, without the fields that the hub controls.
func own(setup Setup) *appsv1.Deployment {
	pod := ownPod()
	if setup.HostNetwork {
		pod = onHostNetwork(pod)
	}
	surge, unavailable := intstr.FromInt32(1), intstr.FromInt32(0)
	return &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"},
		ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentName, Namespace: setup.Namespace, Labels: protocol.AgentLabels()},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": protocol.AgentName}},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &surge, MaxUnavailable: &unavailable},
			},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: protocol.AgentLabels()}, Spec: pod},
		},
	}
}

func ownPod() corev1.PodSpec {
	yes, no, size := true, false, resource.MustParse("1Mi")
	probe := func(path string, period, failures int32) *corev1.Probe {
		return &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("health")}},
			PeriodSeconds: period, FailureThreshold: failures,
		}
	}
	return corev1.PodSpec{
		ServiceAccountName: protocol.AgentName,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Volumes: []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size},
		}}},
		Containers: []corev1.Container{{
			Name: "agent", Command: []string{"/drover-agent"},
			Ports:          []corev1.ContainerPort{{Name: "health", ContainerPort: 8080}},
			LivenessProbe:  probe("/healthz", 20, 3),
			ReadinessProbe: probe("/readyz", 10, 0),
			VolumeMounts:   []corev1.VolumeMount{{Name: "tmp", MountPath: "/tmp"}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
				Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
	}
}

// onHostNetwork returns the spec of the agent's pod, changed so that the pod uses the network of its node. The pod
// opens no port: instead, the kubelet's probes run a command in the container.
func onHostNetwork(pod corev1.PodSpec) corev1.PodSpec {
	pod.HostNetwork, pod.DNSPolicy = true, corev1.DNSDefault
	main := &pod.Containers[0]
	main.Ports = nil
	for _, probe := range []*corev1.Probe{main.LivenessProbe, main.ReadinessProbe} {
		probe.TimeoutSeconds = protocol.ProbeTimeout
		probe.ProbeHandler = corev1.ProbeHandler{
			Exec: &corev1.ExecAction{Command: []string{"/drover-agent", "probe", probe.HTTPGet.Path}},
		}
	}
	return pod
}

// same returns nil if two Deployments are equal. Otherwise, the error names the first field that differs.
func same(got, want *appsv1.Deployment) error {
	var fields [2]any
	for i, d := range []*appsv1.Deployment{got, want} {
		raw, err := json.Marshal(d)
		if err == nil {
			err = json.Unmarshal(raw, &fields[i])
		}
		if err != nil {
			return fmt.Errorf("compare with the agent's own deployment: %w", err)
		}
	}
	if field, differs := difference(fields[0], fields[1]); differs {
		return fmt.Errorf("it differs from the agent's own in %s", strings.TrimPrefix(field, "."))
	}
	return nil
}

// difference returns the path of the first field that differs. An empty map and a missing map count as equal.
func difference(a, b any) (string, bool) {
	x, isMap := a.(map[string]any)
	y, too := b.(map[string]any)
	if isMap && (too || b == nil) || too && a == nil {
		return mapDifference(x, y)
	}
	l, isList := a.([]any)
	m, too := b.([]any)
	if isList && too && len(l) == len(m) {
		for i := range l {
			if field, differs := difference(l[i], m[i]); differs {
				return fmt.Sprintf("[%d]%s", i, field), true
			}
		}
		return "", false
	}
	return "", !reflect.DeepEqual(a, b)
}

func mapDifference(a, b map[string]any) (string, bool) {
	all := maps.Clone(b)
	if all == nil {
		all = map[string]any{}
	}
	maps.Copy(all, a)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if field, differs := difference(a[name], b[name]); differs {
			return "." + name + field, true
		}
	}
	return "", false
}

func digestOf(d *appsv1.Deployment) string {
	return d.Spec.Template.Annotations[v1.AnnotationAgentDigest]
}
