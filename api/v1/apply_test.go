// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/testkit"
)

// fullSpecs contains a spec for each kind in which every optional struct, map and list is set.
var fullSpecs = map[string]string{
	"Cluster": `
registration: {tokenSecretRef: {name: a}}
authorizedEndpoint: {mode: Agent, server: "https://prod.example.com:6443", tlsSecretName: a, caBundle: a, offline: 1h}
agent:
  nodeSelector: {a: b}
  tolerations: [{operator: Exists}]
  affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}}
  resources: {requests: {cpu: 50m}, limits: {memory: 1Gi}}
  env: [{name: HTTPS_PROXY, value: "http://proxy:3128"}]
  imagePullSecrets: [{name: registry}]`,
	"ClusterRoleTemplateBinding": `
clusterSelector: {matchLabels: {env: prod}, matchExpressions: [{key: a, operator: In, values: [b]}]}
roleTemplateName: a
subject: {kind: User, name: "github:alice"}`,
	"ProjectRoleTemplateBinding": `{projectName: a, roleTemplateName: a, subject: {kind: User, name: "github:alice"}}`,
	"RoleTemplate": `
context: Cluster
inherits: [a]
rules: [{apiGroups: [""], resources: [pods], resourceNames: [a], verbs: [get]}, {nonResourceURLs: [/metrics], verbs: [get]}]`,
	"Project": `
clusterSelector: {matchLabels: {env: prod}, matchExpressions: [{key: a, operator: In, values: [b]}]}
namespaces: [web]
resourceQuota: {pods: "10"}
namespaceDefaultResourceQuota: {pods: "5"}
containerDefaults: {requests: {cpu: 50m}, limits: {memory: 1Gi}}`,
	"Baseline": `
clusterSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
rollout:
  maxConcurrentClusters: 2
  waves:
  - name: a
    soak: 1h
    clusterSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}
paused: true
approvals: [{wave: a, revision: 0123456789abcdef0123456789abcdef0123456789abcdef01234567, approvedBy: alice}]
healthTimeout: 1m
roleTemplateName: a
manifests: [{apiVersion: v1, kind: Namespace, metadata: {name: a}}]
from: [{kind: ConfigMap, name: a}]
revision: "0123456789abcdef"
drift: Report
conflicts: Take
deletionPolicy: Orphan`,
	"Plan": `
clusterSelector: {matchLabels: {env: prod}, matchExpressions: [{key: a, operator: In, values: [b]}]}
nodeSelector: {matchLabels: {env: prod}, matchExpressions: [{key: a, operator: In, values: [b]}]}
approvals: [{wave: canary, revision: 0123456789abcdef0123456789abcdef0123456789abcdef01234567, approvedBy: alice}]
overrides:
- check: NodesReady
  revision: 0123456789abcdef0123456789abcdef0123456789abcdef01234567
  clusters: [a]
  overriddenBy: a
  reason: a
gates: {upgradeChecks: Enforce}
rollout:
  maxConcurrentClusters: 5
  waves: [{name: canary, clusterSelector: {matchLabels: {ring: canary}, matchExpressions: [{key: a, operator: In, values: [b]}]}, soak: 1h, approval: Required}, {name: rest}]
window: {days: [Sat], startTime: "02:00"}
retries: {limit: 5, backoff: 1m}
version: v1
drain: {timeout: 5m, force: true, podSelector: {matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}}
prepare: &container
  image: a
  command: [a]
  args: [a]
  envs: [{name: A, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  envFrom: [{secretRef: {name: a}}]
  volumes: [{name: a, source: /a, destination: /a}]
  securityContext: {privileged: true, capabilities: {add: [SYS_BOOT]}}
upgrade: *container
secrets: [{name: a, path: /a}]
tolerations: [{operator: Exists}]
imagePullSecrets: [{name: a}]
postCompleteLabels: {example.com/version: "$(LATEST_VERSION)"}`,
	"AuthProvider": `
disabled: true
oidc:
  url: https://login.example.com/realms/a
  caBundle: a
  clientID: a
  clientSecret: {name: a, key: a}
  scopes: [profile]
  nameClaim: preferred_username
  groupsClaim: groups
  allowedGroups: [a]`,
	"Host": `{tokenTTL: 36h, deletionPolicy: Orphan, internalAddress: 10.0.0.5, consumerRef: {apiVersion: cluster.drover.dev/v1, kind: Cluster, name: prod, uid: a}}`,
	"User": `{disabled: true, principal: "github:alice"}`,
}

// otherSpecs contains more specs for kinds whose parts cannot all be set in a single spec.
var otherSpecs = map[string][]string{"AuthProvider": {`
ldap:
  servers: ["ldaps://a"]
  bind: {dn: a, passwordSecret: {name: a, key: a}}
  userSearch: {base: a, filter: a, idAttribute: a, nameAttribute: a}
  groupSearch: {source: Search, base: a, filter: a}
  allowedGroups: [a]`, `
github: {clientID: a, clientSecret: {name: a, key: a}, organizations: [a], teams: [a/b], anyUser: true}`, `
jwt:
  issuer: {url: "https://a", discoveryURL: "https://b/c", certificateAuthority: a, audiences: [a], audienceMatchPolicy: MatchAny}
  claimMappings: {username: {claim: a}, groups: {expression: "[]"}, uid: {claim: sub}}
  claimValidationRules: [{claim: a, requiredValue: b}, {expression: "true", message: a}]
  userValidationRules: [{expression: "true", message: a}]
  maxTokenLifetime: 1h`}}

// theirs are Kubernetes structs, which are only emptied as a whole.
var theirs = []string{
	"agent.affinity", "agent.tolerations", "tolerations", "prepare.envs", "prepare.envFrom", "prepare.securityContext",
	"upgrade.envs", "upgrade.envFrom", "upgrade.securityContext",
}

// optionals returns the paths of all structs, maps and lists in a schema. An element of a list has the index 0.
func optionals(schema apiextensionsv1.JSONSchemaProps, path []string) [][]string {
	var all [][]string
	if len(path) > 0 && (schema.Type == "object" || schema.Type == "array") && path[len(path)-1] != "0" {
		all = append(all, path)
	}
	if slices.Contains(theirs, strings.Join(path, ".")) {
		return all
	}
	for name, property := range schema.Properties {
		all = append(all, optionals(property, append(slices.Clone(path), name))...)
	}
	if schema.Items != nil {
		all = append(all, optionals(*schema.Items.Schema, append(slices.Clone(path), "0"))...)
	}
	return all
}

// emptied returns a copy of the spec in which the value at the path is empty, and reports whether there was a value.
func emptied(value any, path []string) (any, bool) {
	if len(path) == 0 {
		switch value.(type) {
		case map[string]any:
			return map[string]any{}, true
		case []any:
			return []any{}, true
		}
		return nil, false
	}
	switch value := value.(type) {
	case map[string]any:
		changed, found := emptied(value[path[0]], path[1:])
		value[path[0]] = changed
		return value, found
	case []any:
		for i := range value {
			if changed, found := emptied(value[i], path[1:]); found {
				value[i] = changed
				return value, true
			}
		}
	}
	return value, false
}

// applied is one object that is applied repeatedly, alternately with everything that its kind can have and with some
// parts empty. The field specs contains the specs of new objects of each kind.
type applied struct {
	of                  *unstructured.Unstructured // the spec that the test uses
	full, empty         *unstructured.Unstructured
	fullSpec, emptySpec any
	parts               []string // paths of the empty parts; none contains another
}

// objectsOf returns objects in which every part of each kind that may be empty is empty at least once.
func objectsOf(t *testing.T, env *testkit.Env, namespace string) []*applied {
	t.Helper()
	crds := customResources(t)
	if len(crds) != len(fullSpecs) {
		t.Fatalf("%d kinds, %d specs", len(crds), len(fullSpecs))
	}
	var all []*applied
	for kind, crd := range crds {
		var specs []*unstructured.Unstructured
		for _, spec := range append([]string{fullSpecs[kind]}, otherSpecs[kind]...) {
			specs = append(specs, object(t, namespace, kind, spec))
		}
		var ofKind []*applied
		for _, path := range optionals(crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"], nil) {
			full := specs[max(0, slices.IndexFunc(specs, func(o *unstructured.Unstructured) bool {
				_, found := emptied(o.DeepCopy().Object["spec"], path)
				return found
			}))]
			fullSpec := taken(t, env, full)
			if fullSpec == nil {
				t.Fatalf("%s: the spec of the test is refused", kind)
			}
			alone := &applied{of: full, full: full.DeepCopy(), empty: full, fullSpec: fullSpec}
			if !alone.clear(t, env, path) || slices.ContainsFunc(ofKind, func(a *applied) bool { return a.of == full && a.clear(t, env, path) }) {
				continue // this part must not be empty, or not in combination with other empty parts
			}
			name := fmt.Sprintf("a%d", len(ofKind))
			alone.full.SetName(name)
			alone.empty.SetName(name)
			ofKind = append(ofKind, alone)
		}
		all = append(all, ofKind...)
	}
	return all
}

// clear empties one more part, and reports whether the API server accepts the object. If it does not, the object is not
// changed.
func (a *applied) clear(t *testing.T, env *testkit.Env, path []string) bool {
	t.Helper()
	part := strings.Join(path, ".")
	if slices.ContainsFunc(a.parts, func(other string) bool {
		return strings.HasPrefix(part+".", other+".") || strings.HasPrefix(other+".", part+".")
	}) {
		return false
	}
	empty := a.empty.DeepCopy()
	if _, found := emptied(empty.Object["spec"], path); !found {
		t.Errorf("%s: the spec of the test lacks %s", a.empty.GetKind(), part)
		return false
	}
	spec := taken(t, env, empty)
	if spec == nil {
		return false
	}
	a.empty, a.emptySpec, a.parts = empty, spec, append(a.parts, part)
	return true
}

// taken returns the spec of a new object as the API server stores it, or nil if the API server rejects it.
func taken(t *testing.T, env *testkit.Env, o *unstructured.Unstructured) any {
	t.Helper()
	o = o.DeepCopy()
	if err := env.Client.Create(t.Context(), o, client.DryRunAll); err != nil {
		if !apierrors.IsInvalid(err) {
			t.Fatal(err)
		}
		return nil
	}
	return o.Object["spec"]
}

// TestLong_EveryKindIsAppliedOnEitherSide applies every kind, with every part empty and full, alternately with
// client-side and server-side apply.
func TestLong_EveryKindIsAppliedOnEitherSide(t *testing.T) {
	env := testkit.Shared(t)
	namespace := env.Workspace(t)
	objects := objectsOf(t, env, namespace)
	apply := kubectl(t, env.Config)
	for _, steps := range []string{"CSA empty, SSA empty, CSA empty", "SSA empty, CSA empty, SSA empty", "CSA full, SSA empty, CSA full, SSA full, CSA empty, SSA empty"} {
		t.Run(steps, func(t *testing.T) {
			for step := range strings.SplitSeq(steps, ", ") {
				side, what, _ := strings.Cut(step, " ")
				var documents [][]byte
				for _, o := range objects {
					content := o.empty
					if what == "full" {
						content = o.full
					}
					text, err := yaml.Marshal(content.Object)
					if err != nil {
						t.Fatal(err)
					}
					documents = append(documents, text)
				}
				args := []string{"apply", "-f", "-"}
				if side == "SSA" {
					args = append(args, "--server-side", "--force-conflicts")
				}
				for complaint := range strings.SplitSeq(apply(bytes.Join(documents, []byte("\n---\n")), args...), "\n") {
					if complaint != "" && !strings.Contains(complaint, "last-applied-configuration annotation which is required") {
						// the part is added
						t.Errorf("%s: %s, want no complaint of kubectl", step, complaint)
					}
				}
				wantSpecs(t, env, step, objects)
			}
			for _, o := range objects {
				if err := env.Client.Delete(t.Context(), o.empty.DeepCopy()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

func wantSpecs(t *testing.T, env *testkit.Env, step string, objects []*applied) {
	t.Helper()
	for _, o := range objects {
		got, want := o.empty.DeepCopy(), o.emptySpec
		if strings.HasSuffix(step, "full") {
			want = o.fullSpec
		}
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(got), got); err != nil {
			t.Error(err)
		} else if !reflect.DeepEqual(withoutEmptyLists(got.Object["spec"]), withoutEmptyLists(want)) {
			t.Errorf("%s: %s without %s is %v, want %v", step, got.GetKind(), o.parts, got.Object["spec"], want)
		}
	}
}

// withoutEmptyLists omits empty lists, which server-side apply removes. Empty and missing lists mean the same.
func withoutEmptyLists(value any) any {
	if fields, is := value.(map[string]any); is {
		kept := map[string]any{}
		for key, field := range fields {
			if list, is := field.([]any); !is || len(list) > 0 {
				kept[key] = withoutEmptyLists(field)
			}
		}
		return kept
	}
	if list, is := value.([]any); is {
		kept := make([]any, len(list))
		for i := range list {
			kept[i] = withoutEmptyLists(list[i])
		}
		return kept
	}
	return value
}

// kubectl runs the real kubectl and returns its error output.
func kubectl(t *testing.T, config *rest.Config) func(stdin []byte, args ...string) string {
	t.Helper()
	assets, err := lab.Binaries(t.Context(), os.Stderr, lab.Kubectl)
	if err != nil {
		t.Fatal(err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["hub"] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	c.AuthInfos["admin"] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData}
	c.Contexts["hub"] = &clientcmdapi.Context{Cluster: "hub", AuthInfo: "admin"}
	c.CurrentContext = "hub"
	home := t.TempDir()
	file := filepath.Join(home, "kubeconfig")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return func(stdin []byte, args ...string) string {
		t.Helper()
		command := exec.CommandContext(t.Context(), assets[lab.Kubectl], args...)
		command.Env = []string{"KUBECONFIG=" + file, "HOME=" + home, "PATH=" + os.Getenv("PATH")} // with diff
		command.Stdin = bytes.NewReader(stdin)
		var complaints bytes.Buffer
		command.Stderr = &complaints
		if err := command.Run(); err != nil && complaints.Len() == 0 {
			return err.Error()
		}
		return complaints.String()
	}
}
