// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

// full is the setup of an agent that is installed with the defaults.
var full = Setup{Namespace: protocol.AgentNamespace, Profile: v1.ProfileFull}

// fromHub returns the Deployment that the hub builds from spec.agent.
func fromHub(t testing.TB, image string, agent v1.Agent) registration.Deployment {
	t.Helper()
	var m registration.Manifests
	d, err := m.Deployment(registration.ManifestInput{
		Image: image, Trust: v1.TrustSystem, Agent: agent,
		Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func decoded(t testing.TB, d registration.Deployment) *appsv1.Deployment {
	t.Helper()
	out, err := Decode(d.JSON)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAgentAcceptsTheDeploymentsThatTheHubMakes(t *testing.T) {
	t.Parallel()
	three, seconds := int32(3), int64(30)
	for name, agent := range map[string]v1.Agent{
		"of an empty spec":           {},
		"of a spec with node agents": {NodeAgent: true},
		"of a spec with everything in it": {
			NodeAgent: true, Replicas: &three, NodeSelector: map[string]string{"a": "b"}, PriorityClassName: "high",
			Tolerations: []corev1.Toleration{{Key: "x", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
				TolerationSeconds: &seconds}},
			Affinity:  &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}},
			Resources: &v1.AgentResources{Limits: corev1.ResourceList{}},
			Env: []v1.AgentEnv{{Name: "HTTPS_PROXY", Value: "http://proxy:3128"}, {Name: "NO_PROXY"},
				{Name: "https_proxy", SecretKey: "proxy"}},
			ImagePullSecrets: []v1.PullSecret{{Name: "registry"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := Check(decoded(t, fromHub(t, "image", agent)), full); err != nil {
				t.Error(err)
			}
		})
	}
}

func fromSecret(name, secret string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
		LocalObjectReference: corev1.LocalObjectReference{Name: secret}, Key: "key"}}}
}

// TestAgentRefusesDeploymentsThatAreNotItsOwn checks that a compromised hub cannot reach a member's nodes through the
// agent's Deployment.
func TestAgentRefusesDeploymentsThatAreNotItsOwn(t *testing.T) {
	t.Parallel()
	yes := true
	pod := func(d *appsv1.Deployment) *corev1.PodSpec { return &d.Spec.Template.Spec }
	main := func(d *appsv1.Deployment) *corev1.Container { return &d.Spec.Template.Spec.Containers[0] }
	for name, change := range map[string]func(d *appsv1.Deployment){
		"API servers by another word": func(d *appsv1.Deployment) {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, v1.AnnotationDirectAccess, "true")
		},
		"node agents by another word": func(d *appsv1.Deployment) { d.Annotations[v1.AnnotationNodeAgent] = "yes" },
		"another name":                func(d *appsv1.Deployment) { d.Name = "other" },
		"another namespace":           func(d *appsv1.Deployment) { d.Namespace = "kube-system" },
		"another kind":                func(d *appsv1.Deployment) { d.Kind = "DaemonSet" },
		"an owner":                    func(d *appsv1.Deployment) { d.Finalizers = []string{"a/b"} },
		"another selector":            func(d *appsv1.Deployment) { d.Spec.Selector.MatchLabels["a"] = "b" },
		"other pod labels":            func(d *appsv1.Deployment) { d.Spec.Template.Labels["app"] = "coredns" },
		"a profile in an annotation": func(
			d *appsv1.Deployment) {
			d.Spec.Template.Annotations["container.apparmor"] = "unconfined"
		},
		"no digest": func(d *appsv1.Deployment) { d.Spec.Template.Annotations = nil },
		"a digest that is none": func(
			d *appsv1.Deployment) {
			d.Spec.Template.Annotations[v1.AnnotationAgentDigest] = "<b>"
		},
		"a strategy that ends all at once": func(d *appsv1.Deployment) {
			d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
		},
		"no replica":             func(d *appsv1.Deployment) { d.Spec.Replicas = new(int32) },
		"a paused one":           func(d *appsv1.Deployment) { d.Spec.Paused = true },
		"another ServiceAccount": func(d *appsv1.Deployment) { pod(d).ServiceAccountName = "cluster-admin" },
		"the host's network":     func(d *appsv1.Deployment) { pod(d).HostNetwork = true },
		"the host's processes":   func(d *appsv1.Deployment) { pod(d).HostPID = true },
		"the host's IPC":         func(d *appsv1.Deployment) { pod(d).HostIPC = true },
		"a node by name":         func(d *appsv1.Deployment) { pod(d).NodeName = "control-plane" },
		"a volume of the host": func(d *appsv1.Deployment) {
			pod(d).Volumes = append(pod(d).Volumes,
				corev1.Volume{Name: "root", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}})
		},
		"a volume of the host in place of its own": func(d *appsv1.Deployment) {
			pod(d).Volumes[0].VolumeSource = corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/"}}
		},
		"a Secret as a volume": func(d *appsv1.Deployment) {
			pod(d).Volumes[0].VolumeSource = corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "x"}}
		},
		"a run as root":          func(d *appsv1.Deployment) { pod(d).SecurityContext.RunAsUser = new(int64) },
		"no pod security":        func(d *appsv1.Deployment) { pod(d).SecurityContext = nil },
		"another runtime class":  func(d *appsv1.Deployment) { pod(d).RuntimeClassName = new(string) },
		"a container beside it":  func(d *appsv1.Deployment) { pod(d).Containers = append(pod(d).Containers, *main(d)) },
		"no container":           func(d *appsv1.Deployment) { pod(d).Containers = nil },
		"a container before it":  func(d *appsv1.Deployment) { pod(d).InitContainers = []corev1.Container{*main(d)} },
		"a privileged container": func(d *appsv1.Deployment) { main(d).SecurityContext.Privileged = &yes },
		"more privileges":        func(d *appsv1.Deployment) { main(d).SecurityContext.AllowPrivilegeEscalation = &yes },
		"a capability": func(d *appsv1.Deployment) {
			main(d).SecurityContext.Capabilities.Add = []corev1.Capability{"SYS_ADMIN"}
		},
		"no container security": func(d *appsv1.Deployment) { main(d).SecurityContext = nil },
		"another command":       func(d *appsv1.Deployment) { main(d).Command = []string{"/bin/sh"} },
		"arguments":             func(d *appsv1.Deployment) { main(d).Args = []string{"loglevel"} },
		"a hook": func(d *appsv1.Deployment) {
			main(d).Lifecycle = &corev1.Lifecycle{StopSignal: new(
				corev1.Signal)}
		},
		"a port of the host": func(d *appsv1.Deployment) { main(d).Ports[0].HostPort = 80 },
		"a device": func(
			d *appsv1.Deployment) {
			main(d).Resources.Claims = []corev1.ResourceClaim{{Name: "gpu"}}
		},
		"a resource that a node offers by its own word": func(d *appsv1.Deployment) {
			main(d).Resources.Requests = corev1.ResourceList{"example.com/mine": main(d).Resources.Requests[corev1.ResourceCPU]}
		},
		"no image": func(d *appsv1.Deployment) { main(d).Image = "" },
		"environment of a Secret": func(d *appsv1.Deployment) {
			main(d).EnvFrom = []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{}}}
		},
		"a variable out of a Secret": func(d *appsv1.Deployment) {
			main(d).Env = append(main(d).Env,
				corev1.EnvVar{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{Key: "k"}}})
		},
		"a variable out of the agent's own Secret": func(d *appsv1.Deployment) {
			main(d).Env = append(main(d).Env, fromSecret("HTTPS_PROXY", protocol.IdentitySecret))
		},
		"a variable that is the hub's out of a Secret": func(d *appsv1.Deployment) {
			main(d).Env = slices.DeleteFunc(main(d).Env, func(e corev1.EnvVar) bool { return e.Name == protocol.EnvServer })
			main(d).Env = append(main(d).Env, fromSecret(protocol.EnvServer, protocol.EnvironmentSecret))
		},
		"a variable out of a Secret that need not be there": func(d *appsv1.Deployment) {
			e := fromSecret("HTTPS_PROXY", protocol.EnvironmentSecret)
			e.ValueFrom.SecretKeyRef.Optional = &yes
			main(d).Env = append(main(d).Env, e)
		},
		"a variable out of a Secret and a field": func(d *appsv1.Deployment) {
			e := fromSecret("HTTPS_PROXY", protocol.EnvironmentSecret)
			e.ValueFrom.FieldRef = &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}
			main(d).Env = append(main(d).Env, e)
		},
		"a variable twice": func(d *appsv1.Deployment) {
			main(d).Env = append(main(d).Env, corev1.EnvVar{Name: protocol.EnvServer, Value: "https://other.example"})
		},
		"another namespace to keep its key in": func(d *appsv1.Deployment) {
			setVariable(d, protocol.EnvNamespace,
				"kube-system")
		},
		"no namespace to keep its key in": func(d *appsv1.Deployment) { setVariable(d, protocol.EnvNamespace, "") },
		"a variable out of another field": func(d *appsv1.Deployment) {
			main(d).Env = append(main(d).Env,
				corev1.EnvVar{Name: "A",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIP"}}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decoded(t, fromHub(t, "image", v1.Agent{}))
			change(d)
			err := Check(d, full)
			if err == nil {
				t.Fatal("the Deployment was accepted, want it refused")
			}
			t.Log(err)
		})
	}
}

func setVariable(d *appsv1.Deployment, name, value string) {
	env := d.Spec.Template.Spec.Containers[0].Env
	for i := range env {
		if env[i].Name == name {
			env[i].Value = value
			return
		}
	}
	d.Spec.Template.Spec.Containers[0].Env = append(env, corev1.EnvVar{Name: name, Value: value})
}

// TestTheAgentRefusesAnotherProfileThroughTheTunnel covers CVE-2021-36782. An agent that became ReadOnly through its
// tunnel would keep the rights of a Full agent. The rights are in its ClusterRole, which is part of the manifest, so
// only the manifest can set the profile.
func TestTheAgentRefusesAnotherProfileThroughTheTunnel(t *testing.T) {
	t.Parallel()
	for _, installed := range []v1.AgentProfile{v1.ProfileFull, v1.ProfileReadOnly} {
		for _, sent := range []v1.AgentProfile{"", v1.ProfileFull, v1.ProfileReadOnly} {
			t.Run(string(installed)+" is sent "+string(sent), func(t *testing.T) {
				t.Parallel()
				err := Check(decoded(t, fromHub(t, "image", v1.Agent{Profile: sent})),
					Setup{Namespace: protocol.AgentNamespace, Profile: installed})
				same := sent == installed || sent == "" && installed == v1.ProfileFull
				if same != (err == nil) {
					t.Error(err)
				}
				if !same && !strings.Contains(err.Error(), "apply the manifest to change the profile") {
					t.Error(err)
				}
			})
		}
	}
}

// TestTheAgentMovesToNoOtherNetworkThroughTheTunnel checks that only the manifest decides whether the agent's pods use
// the network of their nodes, where they could reach what listens on loopback addresses.
func TestTheAgentMovesToNoOtherNetworkThroughTheTunnel(t *testing.T) {
	t.Parallel()
	for _, installed := range []bool{false, true} {
		setup := Setup{Namespace: protocol.AgentNamespace, Profile: v1.ProfileFull, HostNetwork: installed}
		for _, sent := range []bool{false, true} {
			err := Check(decoded(t, fromHub(t, "image", v1.Agent{HostNetwork: sent})), setup)
			if (err == nil) != (sent == installed) || err != nil && !strings.Contains(err.Error(), "apply the manifest") {
				t.Errorf("installed with hostNetwork %t, and sent %t: got %v", installed, sent, err)
			}
		}
		d := decoded(t, fromHub(t, "image", v1.Agent{HostNetwork: installed}))
		d.Spec.Template.Spec.HostNetwork = !installed
		if err := Check(d, setup); err == nil {
			t.Errorf("installed with hostNetwork %t: a pod whose variable says so on another network is accepted", installed)
		}
	}
}

// TestAgentRefusesVariablesThatDecideWhoItTrusts tries variables that determine which server the agent takes for the
// hub or the API server, or whether its token leaks.
func TestAgentRefusesVariablesThatDecideWhoItTrusts(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"SSL_CERT_FILE", "SSL_CERT_DIR", "GODEBUG", "GOTRACEBACK", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT",
		"KUBERNETES_SERVICE_PORT_HTTPS",
		"KUBECONFIG", "ALL_PROXY", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES", "LD_PRELOAD", "TMPDIR", "HOME", "PATH",
		"OTEL_EXPORTER_OTLP_CERTIFICATE",
		"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY", "CATTLE_SERVER", "DROVER_LISTEN",
		"DROVER_SOCKET", "DROVER_DEBUG",
		"DROVER_TUNNEL_DATA_DEBUG", "HTTPS_PROXY2", "XHTTPS_PROXY", "HTTPS_PROXY\nGODEBUG", "",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := decoded(t, fromHub(t, "image", v1.Agent{}))
			setVariable(d, name, "x")
			if err := Check(d, full); err == nil || !strings.Contains(err.Error(), "does not accept the variable") {
				t.Error(err)
			}
		})
	}
}

func TestDecodeIsStrict(t *testing.T) {
	t.Parallel()
	good := string(fromHub(t, "image", v1.Agent{}).JSON)
	for name, raw := range map[string]string{
		"an unknown field": strings.Replace(good, `"containers"`, `"hostEverything":true,"containers"`, 1),
		"two in one":       good + good,
		"no JSON":          "apiVersion: apps/v1",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := Decode([]byte(raw)); err == nil {
				t.Error("the Deployment was accepted, want it refused")
			}
		})
	}
	if !json.Valid([]byte(good)) {
		t.Error("the hub's Deployment was refused, want it accepted")
	}
}
