// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration_test

import (
	"bufio"
	"bytes"
	"crypto/ed25519"
	"errors"
	"flag"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

var update = flag.Bool("update", false, "write the present output into the golden files")

func publicKey(key ed25519.PrivateKey) ed25519.PublicKey {
	return key.Public().(ed25519.PublicKey)
}

func bundle(t testing.TB) string {
	t.Helper()
	ca, err := trust.NewAuthority(now)
	if err != nil {
		t.Fatal(err)
	}
	return string(ca.Cert)
}

func manifestInput(t testing.TB) registration.ManifestInput {
	t.Helper()
	return registration.ManifestInput{
		Image: "registry.example.com/drover:v1", Trust: v1.TrustPinned, Token: strings.Repeat("t", 40),
		Settings: protocol.Settings{
			Servers: []string{"https://hub.example.com", "https://10.0.0.1:8443"}, CABundle: bundle(t),
		},
	}
}

// documents returns the YAML documents of a manifest.
func documents(t testing.TB, manifest []byte) [][]byte {
	t.Helper()
	var all [][]byte
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, document)
	}
}

// objects decodes a manifest strictly. Unknown fields, repeated fields, and kinds that Kubernetes does not have are
// errors.
func objects(t testing.TB, in registration.ManifestInput) []runtime.Object {
	t.Helper()
	manifest, err := new(registration.Manifests).Manifest(in)
	if err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(testkit.Scheme(t), serializer.EnableStrict).UniversalDeserializer()
	var all []runtime.Object
	for _, document := range documents(t, manifest) {
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s, want a document that parses", err, document)
		}
		all = append(all, object)
	}
	return all
}

// the returns the only object of a type.
func the[T any](t testing.TB, objects []runtime.Object) T {
	t.Helper()
	i := slices.IndexFunc(objects, func(o runtime.Object) bool { _, ok := o.(T); return ok })
	if i < 0 {
		t.Fatalf("no %T in the manifest", *new(T))
	}
	return objects[i].(T)
}

func env(d *appsv1.Deployment) map[string]string {
	all := map[string]string{}
	for _, v := range d.Spec.Template.Spec.Containers[0].Env {
		all[v.Name] = v.Value
	}
	return all
}

func TestManifestPinsTheCA(t *testing.T) {
	in := manifestInput(t)
	all := objects(t, in)
	secret, deployment := the[*corev1.Secret](t, all), the[*appsv1.Deployment](t, all)
	sums, err := protocol.CertificateChecksums([]byte(in.Settings.CABundle))
	if err != nil {
		t.Fatal(err)
	}
	if string(secret.Data[protocol.KeyToken]) != in.Token ||
		string(secret.Data[protocol.KeyCABundle]) != in.Settings.CABundle {
		t.Errorf("secret %v, want the token and the CA bundle", secret.Data)
	}
	e := env(deployment)
	if e[protocol.EnvCAChecksum] != sums[0] || e[protocol.EnvTrust] != "Pinned" ||
		e[protocol.EnvServer] != "https://hub.example.com,https://10.0.0.1:8443" {
		t.Errorf("environment %v, want the checksum, Pinned and both URLs", e)
	}
	if strings.Contains(deployment.String(), in.Token) {
		t.Error("the token is in the Deployment, want it out of reach of users who can only read pods")
	}
}

func TestManifestWithSystemTrustPinsNothing(t *testing.T) {
	in := manifestInput(t)
	in.Trust = v1.TrustSystem
	all := objects(t, in)
	if _, ok := the[*corev1.Secret](t, all).Data[protocol.KeyCABundle]; ok {
		t.Error("got a CA bundle, want none")
	}
	if _, ok := env(the[*appsv1.Deployment](t, all))[protocol.EnvCAChecksum]; ok {
		t.Error("got a checksum, want none")
	}
}

func TestManifestWithPinnedTrustNeedsABundle(t *testing.T) {
	in := manifestInput(t)
	in.Settings.CABundle = ""
	if _, err := new(registration.Manifests).Manifest(in); err == nil {
		t.Error("got a manifest whose agent would trust nothing or everything, want an error")
	}
}

// CVE-2026-44939, CVE-2025-59823: input from a caller must never be interpreted as YAML.
func TestManifestEscapesItsInput(t *testing.T) {
	const evil = "x\"'\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: evil}\n# {{ . }} ${HOME} &a *a !!binary " +
		"\x00\t\u2028"
	in := manifestInput(t)
	plain := objects(t, in)
	in.Image, in.Token, in.Settings.Servers = evil, evil, []string{evil}
	in.Agent = v1.Agent{
		PriorityClassName: evil, NodeSelector: map[string]string{evil: evil}, Env: []v1.AgentEnv{{Name: "HTTPS_PROXY",
			Value: evil}, {Name: "GODEBUG", Value: evil}},
		Tolerations: []corev1.Toleration{{Key: evil}},
	}
	all := objects(t, in)
	if len(all) != len(plain) {
		t.Fatalf("%d objects became %d, want the same number", len(plain), len(all))
	}
	for i := range all {
		if got, want := all[i].GetObjectKind().GroupVersionKind(), plain[i].GetObjectKind().GroupVersionKind(); got != want {
			t.Errorf("object %d is a %s instead of a %s", i, got, want)
		}
	}
	deployment := the[*appsv1.Deployment](t, all)
	if deployment.Spec.Template.Spec.Containers[0].Image != evil || env(deployment)[protocol.EnvServer] != evil ||
		string(the[*corev1.Secret](t, all).Data[protocol.KeyToken]) != evil {
		t.Error("the manifest changes the input, want it unchanged")
	}
	if pod := deployment.Spec.Template.Spec; env(deployment)["HTTPS_PROXY"] != evil || pod.PriorityClassName != evil ||
		pod.NodeSelector[evil] != evil {
		t.Error("the manifest changes the Cluster's spec.agent, want it unchanged")
	}
	if _, there := env(deployment)["GODEBUG"]; there {
		t.Error("the manifest contains a variable that agents do not accept")
	}
}

func TestAgentDeployment(t *testing.T) {
	in := manifestInput(t)
	d := the[*appsv1.Deployment](t, objects(t, in))
	pod := d.Spec.Template.Spec
	t.Run("it prefers control plane nodes, tolerates their taints, and spreads", func(t *testing.T) {
		node, apart := pod.Affinity.NodeAffinity, pod.Affinity.PodAntiAffinity
		if node.RequiredDuringSchedulingIgnoredDuringExecution != nil ||
			len(node.PreferredDuringSchedulingIgnoredDuringExecution) != 1 ||
			apart.RequiredDuringSchedulingIgnoredDuringExecution != nil ||
			len(apart.PreferredDuringSchedulingIgnoredDuringExecution) != 1 {
			t.Errorf("affinity %v, want replicas to prefer other nodes, not to require them", pod.Affinity)
		}
		for _, taint := range []corev1.Taint{
			{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule},
			{Key: "node-role.kubernetes.io/etcd", Effect: corev1.TaintEffectNoExecute},
			{Key: "CriticalAddonsOnly", Value: "true", Effect: corev1.TaintEffectNoExecute},
		} {
			if !slices.ContainsFunc(pod.Tolerations,
				func(t corev1.Toleration) bool { return t.ToleratesTaint(logr.Discard(), &taint, false) }) {
				t.Errorf("the pod does not tolerate %v, want it tolerated", taint)
			}
		}
	})
	t.Run("a replica on a node that is lost is replaced within a minute, unless the user says otherwise",
		func(t *testing.T) {
			lost := func(pod corev1.PodSpec) map[string]int64 {
				seconds := map[string]int64{}
				for _, t := range pod.Tolerations {
					if t.TolerationSeconds != nil && t.Effect == corev1.TaintEffectNoExecute {
						seconds[t.Key] = *t.TolerationSeconds
					}
				}
				return seconds
			}
			if got := lost(pod); got[corev1.TaintNodeNotReady] != 30 || got[corev1.TaintNodeUnreachable] != 30 {
				t.Errorf("the pod stays on a lost node for %v seconds, want 30", got)
			}
			long, own := int64(600), in
			own.Agent.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists,
				Effect: corev1.TaintEffectNoExecute, TolerationSeconds: &long}}
			if got := lost(the[*appsv1.Deployment](t,
				objects(t, own)).Spec.Template.Spec); got[corev1.TaintNodeNotReady] != 30 ||
				got[corev1.TaintNodeUnreachable] != 600 {
				t.Errorf("the pod stays on a lost node for %v seconds, want the user's 600 on an unreachable node", got)
			}
		})
	t.Run("new pods start before old pods stop, and the agent chooses the number of replicas", func(t *testing.T) {
		rolling := d.Spec.Strategy.RollingUpdate
		if d.Spec.Replicas != nil || d.Annotations[v1.AnnotationAgentReplicas] != v1.AgentReplicasByNodes ||
			rolling.MaxSurge.IntValue() != 1 || rolling.MaxUnavailable.IntValue() != 0 {
			t.Errorf("replicas %v, annotations %v, strategy %v, want the agent to choose the replicas and a surge",
				d.Spec.Replicas, d.Annotations, d.Spec.Strategy)
		}
		three, set := int32(3), in
		set.Agent.Replicas = &three
		if d := the[*appsv1.Deployment](t, objects(t, set)); *d.Spec.Replicas != 3 || len(d.Annotations) > 0 {
			t.Errorf("replicas %v, annotations %v, want 3 and none", d.Spec.Replicas, d.Annotations)
		}
	})
	t.Run("the digest covers the spec, and not the hub's addresses", func(t *testing.T) {
		var m registration.Manifests
		digest := func(change func(*registration.ManifestInput)) string {
			other := in
			change(&other)
			d, err := m.Deployment(other)
			if err != nil {
				t.Fatal(err)
			}
			return d.Digest
		}
		same := d.Spec.Template.Annotations[v1.AnnotationAgentDigest]
		for name, change := range map[string]func(*registration.ManifestInput){
			"nothing":   func(*registration.ManifestInput) {},
			"the token": func(in *registration.ManifestInput) { in.Token = "other" },
			"the hub":   func(in *registration.ManifestInput) { in.Settings.Servers = []string{"https://other"} },
			"the CA":    func(in *registration.ManifestInput) { in.Settings.CABundle = bundle(t) },
		} {
			if got := digest(change); got != same {
				t.Errorf("%s changes the digest, want the same digest", name)
			}
		}
		seen := map[string]string{same: "nothing"}
		for name, change := range map[string]func(*registration.ManifestInput){
			"the image":    func(in *registration.ManifestInput) { in.Image = "other" },
			"the trust":    func(in *registration.ManifestInput) { in.Trust = v1.TrustSystem },
			"replicas":     func(in *registration.ManifestInput) { in.Agent.Replicas = new(int32) },
			"node agents":  func(in *registration.ManifestInput) { in.Agent.NodeAgent = true },
			"host network": func(in *registration.ManifestInput) { in.Agent.HostNetwork = true },
			"API servers":  func(in *registration.ManifestInput) { in.APIServer = true },
			"a variable":   func(in *registration.ManifestInput) { in.Agent.Env = []v1.AgentEnv{{Name: "GOGC"}} },
			"an affinity":  func(in *registration.ManifestInput) { in.Agent.Affinity = &corev1.Affinity{} },
			"no resources": func(in *registration.ManifestInput) { in.Agent.Resources = &v1.AgentResources{} },
			"a toleration": func(in *registration.ManifestInput) { in.Agent.Tolerations = []corev1.Toleration{{}} },
			"a node label": func(in *registration.ManifestInput) { in.Agent.NodeSelector = map[string]string{"a": "b"} },
			"the priority": func(in *registration.ManifestInput) { in.Agent.PriorityClassName = "a" },
		} {
			got := digest(change)
			if before, known := seen[got]; known {
				t.Errorf("%s and %s have the same digest, want different ones", name, before)
			}
			seen[got] = name
		}
	})
}

func TestManifestAdmitsNodeAgentsToTheNodeNetwork(t *testing.T) {
	in := manifestInput(t)
	const enforce = "pod-security.kubernetes.io/enforce"
	for nodeAgent, want := range map[bool]struct{ level, annotation string }{false: {"restricted", ""},
		true: {"privileged", "true"}} {
		in.Agent.NodeAgent = nodeAgent
		all := objects(t, in)
		namespace, d := the[*corev1.Namespace](t, all), the[*appsv1.Deployment](t, all)
		if namespace.Labels[enforce] != want.level || d.Annotations[v1.AnnotationNodeAgent] != want.annotation {
			t.Errorf("nodeAgent %t: labels %v, annotations %v, want %+v", nodeAgent, namespace.Labels, d.Annotations, want)
		}
		if pod := d.Spec.Template.Spec; pod.HostNetwork {
			t.Errorf("nodeAgent %t: the Deployment's pods are on the nodes' network, want only the pods of the DaemonSet there",
				nodeAgent)
		}
	}
}

// TestManifestOfAnAgentOnTheHostNetwork checks that the agent's pods can run before a node has a pod network, and that
// they need no port of the node.
func TestManifestOfAnAgentOnTheHostNetwork(t *testing.T) {
	in := manifestInput(t)
	in.Agent.HostNetwork = true
	all := objects(t, in)
	pod := the[*appsv1.Deployment](t, all).Spec.Template.Spec
	if level := the[*corev1.Namespace](t, all).Labels["pod-security.kubernetes.io/enforce"]; level != "privileged" {
		t.Errorf("the namespace has the level %s, want a level that admits pods to the nodes' network", level)
	}
	if !pod.HostNetwork || pod.DNSPolicy != corev1.DNSDefault || len(pod.Containers[0].Ports) > 0 {
		t.Errorf("host network %t, DNS policy %s, ports %v, want the node's network and resolver and no port",
			pod.HostNetwork, pod.DNSPolicy, pod.Containers[0].Ports)
	}
	for path, probe := range map[string]*corev1.Probe{
		"/healthz": pod.Containers[0].LivenessProbe, "/readyz": pod.Containers[0].ReadinessProbe,
	} {
		if probe.Exec == nil || !slices.Equal(probe.Exec.Command, []string{"/drover-agent", "probe", path}) ||
			probe.TimeoutSeconds < 2 {
			t.Errorf("the probe of %s is %+v, want a command with time to start", path, probe)
		}
	}
	// the taints of a node without a pod network
	for _, taint := range []corev1.Taint{
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoExecute},
		{Key: corev1.TaintNodeNetworkUnavailable, Effect: corev1.TaintEffectNoSchedule},
	} {
		if !slices.ContainsFunc(pod.Tolerations, func(o corev1.Toleration) bool {
			return o.Key == taint.Key && o.Operator == corev1.TolerationOpExists && o.TolerationSeconds == nil &&
				(o.Effect == "" || o.Effect == taint.Effect)
		}) {
			t.Errorf("the agent does not tolerate %s:%s forever: %v", taint.Key, taint.Effect, pod.Tolerations)
		}
	}
	in.Agent.HostNetwork = false
	for _, o := range the[*appsv1.Deployment](t, objects(t, in)).Spec.Template.Spec.Tolerations {
		if o.Key == corev1.TaintNodeNetworkUnavailable || o.Key == corev1.TaintNodeNotReady && o.TolerationSeconds == nil {
			t.Errorf("an agent in the pod network has the toleration %v, want none for such nodes", o)
		}
	}
}

// TestWebhookAccountCanReadOnlyTwoSecrets checks that pods on the control plane nodes do not use the agent's account,
// which can impersonate any user.
func TestWebhookAccountCanReadOnlyTwoSecrets(t *testing.T) {
	in := manifestInput(t)
	in.APIServer = true
	all := objects(t, in)
	if level := the[*corev1.Namespace](t, all).Labels["pod-security.kubernetes.io/enforce"]; level != "privileged" {
		t.Errorf("the namespace has the level %s, want a level that admits pods to the nodes' network", level)
	}
	if d := the[*appsv1.Deployment](t, all); d.Annotations[v1.AnnotationDirectAccess] != "APIServer" ||
		d.Spec.Template.Spec.HostNetwork {
		t.Errorf("the Deployment has the annotations %v and host network %t", d.Annotations, d.Spec.Template.Spec.HostNetwork)
	}
	var rules []rbacv1.PolicyRule
	accounts := 0
	for _, object := range all {
		switch o := object.(type) {
		case *rbacv1.Role:
			if o.Name == protocol.DirectName {
				rules = append(rules, o.Rules...)
			}
		case *rbacv1.RoleBinding:
			if slices.ContainsFunc(o.Subjects, func(s rbacv1.Subject) bool { return s.Name == protocol.DirectName }) &&
				o.RoleRef.Name != protocol.DirectName {
				t.Errorf("the webhook's account also has the role %s, want no other", o.RoleRef.Name)
			}
		case *rbacv1.ClusterRoleBinding:
			if slices.ContainsFunc(o.Subjects, func(s rbacv1.Subject) bool { return s.Name == protocol.DirectName }) {
				t.Errorf("the webhook's account has the cluster role %s, want none", o.RoleRef.Name)
			}
		case *corev1.ServiceAccount:
			accounts++
		}
	}
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"},
		ResourceNames: []string{protocol.DirectSecret, protocol.DirectAuthority}, Verbs: []string{"get", "watch"}}}
	if !reflect.DeepEqual(rules, want) || accounts != 2 {
		t.Errorf("the rights are %v for %d accounts, want %v", rules, accounts, want)
	}
	in.Agent.Profile = v1.ProfileReadOnly
	manifest, err := new(registration.Manifests).Manifest(in)
	if err != nil || bytes.Contains(manifest, []byte(protocol.DirectSecret)) ||
		bytes.Contains(manifest, []byte("privileged")) {
		t.Errorf("a ReadOnly agent has the webhook (%v), want none", err)
	}
}

func FuzzManifest(f *testing.F) {
	ca := bundle(f)
	f.Add("image", "token", "https://hub")
	f.Add("a\n---\nb: c", "\"", "'\u2028|-")
	f.Add("image", "\xd7\x6d\xf8", "https://hub") // 1234 in base64
	f.Fuzz(func(t *testing.T, image, token, server string) {
		manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{Image: image, Token: token,
			Trust:    v1.TrustPinned,
			Settings: protocol.Settings{Servers: []string{server}, CABundle: ca}})
		if err != nil {
			return
		}
		all := documents(t, manifest)
		if len(all) != 8 {
			t.Fatalf("%d documents, want 8", len(all))
		}
		var secret corev1.Secret
		if err := yaml.UnmarshalStrict(all[6], &secret); err != nil || string(secret.Data[protocol.KeyToken]) != token {
			t.Errorf("the Secret %s contains the token %q, want %q (%v)", secret.Name, secret.Data[protocol.KeyToken], token,
				err)
		}
	})
}

// The rights of an agent in a member are listed in testdata. Changing them is a decision.
func TestAgentHasExactlyTheListedRights(t *testing.T) {
	for profile, golden := range map[v1.AgentProfile]string{
		v1.ProfileFull: "testdata/agent-rights.yaml", v1.ProfileReadOnly: "testdata/agent-rights-readonly.yaml",
	} {
		t.Run(string(profile), func(t *testing.T) { testRightsListed(t, profile, golden) })
	}
}

// bindingSubjects returns the subjects of the bindings, by role and name.
func bindingSubjects(t *testing.T, all []runtime.Object) map[string][]rbacv1.Subject {
	t.Helper()
	subjects := map[string][]rbacv1.Subject{}
	for _, o := range all {
		switch b := o.(type) {
		case *rbacv1.ClusterRoleBinding:
			subjects[b.RoleRef.Name+", "+b.Name] = b.Subjects
		case *rbacv1.RoleBinding:
			subjects[b.Namespace+"/"+b.RoleRef.Name+", "+b.Name] = b.Subjects
		}
	}
	return subjects
}

func testRightsListed(t *testing.T, profile v1.AgentProfile, golden string) {
	in := manifestInput(t)
	in.Agent.Profile = profile
	all := objects(t, in)
	raw, err := yaml.Marshal(map[string][]rbacv1.PolicyRule{
		"clusterRole":                 the[*rbacv1.ClusterRole](t, all).Rules,
		"roleInTheAgentsOwnNamespace": the[*rbacv1.Role](t, all).Rules,
	})
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(golden, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(raw, want) {
		t.Errorf("the agent's rights changed; if that is intended, run go test ./internal/registration -update\n%s", raw)
	}
	if got := the[*rbacv1.Role](t, all).Namespace; got != protocol.AgentNamespace {
		t.Errorf("the Role is in namespace %q, want the agent's", got)
	}
	account := []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: protocol.AgentNamespace, Name: protocol.AgentName}}
	bound := map[string][]rbacv1.Subject{"drover-agent, drover-agent": account,
		"drover-agent/drover-agent, drover-agent": account}
	if profile == v1.ProfileReadOnly {
		bound["view, drover-agent-view"] = []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: protocol.Viewer}}
	}
	if got := bindingSubjects(t, all); !reflect.DeepEqual(got, bound) {
		t.Errorf("got bindings %v, want %v", got, bound)
	}
}

func TestEveryTokenIsAStringInTheManifest(t *testing.T) {
	for i, first := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._~-" {
		in := manifestInput(t)
		in.Token = string(first) + strings.Repeat("1e5", 11)[:31+i%3]
		if got := string(the[*corev1.Secret](t, objects(t, in)).Data[protocol.KeyToken]); got != in.Token {
			t.Errorf("the manifest has the join token %q, want %q", got, in.Token)
		}
	}
}
