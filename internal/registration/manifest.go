// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	rbacv1ac "k8s.io/client-go/applyconfigurations/rbac/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// ManifestInput is the input for an agent's manifest.
type ManifestInput struct {
	// Image is the agent's image.
	Image string
	// Trust determines which CAs the agent trusts.
	Trust v1.Trust
	// Agent is the rest of the Cluster's spec.agent. Its image and trust are ignored.
	Agent v1.Agent
	// APIServer makes the agent run a webhook that the member's API servers use to review the tokens of users who do
	// not connect through the hub. It requires the Full profile.
	APIServer bool
	// Token is the join token.
	Token string
	// Settings contains the addresses of the hub and the CA to trust.
	Settings protocol.Settings
}

// direct reports whether API servers send users' tokens to the agent for review. A ReadOnly agent does not review
// tokens, because it accepts no sets.
func (in ManifestInput) direct() bool { return in.APIServer && in.Agent.Profile != v1.ProfileReadOnly }

// Manifests creates manifests. Thousands of manifests differ only in their tokens, so the parts that all members share
// are marshaled once. The zero value is ready to use and is safe for concurrent use.
type Manifests struct {
	mu     sync.Mutex // guards the fields below
	shared string     // the key of parts
	parts  *manifestParts
}

// manifestParts contains the text before and after the token in a manifest.
type manifestParts struct {
	before, after []byte
	deployment    Deployment
}

// tokensPlace is the placeholder for the token while the parts are created. It does not occur anywhere else in the
// manifest.
const tokensPlace = "the place of the join token in a manifest"

// key returns a cache key. Inputs that differ only in the token have the same key.
func (in ManifestInput) key() (string, error) {
	agent, err := json.Marshal(in.Agent)
	if err != nil {
		return "", fmt.Errorf("marshal spec.agent: %w", err)
	}
	return strings.Join([]string{string(in.Trust), in.Settings.Digest(), in.Image, string(agent),
		strconv.FormatBool(in.APIServer)}, "\x00"), nil
}

// Manifest returns the YAML that installs an agent in a member. The YAML is marshaled from objects, so no input can be
// interpreted as YAML (CVE-2026-44939).
func (m *Manifests) Manifest(in ManifestInput) ([]byte, error) {
	parts, err := m.around(in)
	if err != nil {
		return nil, err
	}
	size := len(parts.before) + base64.StdEncoding.EncodedLen(len(in.Token)) + len(parts.after) + 2
	manifest := append(make([]byte, 0, size), parts.before...)
	manifest = append(manifest, '"') // without quotes, YAML could parse the token as a number
	manifest = append(base64.StdEncoding.AppendEncode(manifest, []byte(in.Token)), '"')
	return append(manifest, parts.after...), nil
}

// Deployment returns the Deployment that the manifest contains.
func (m *Manifests) Deployment(in ManifestInput) (Deployment, error) {
	parts, err := m.around(in)
	if err != nil {
		return Deployment{}, err
	}
	return parts.deployment, nil
}

// around returns the parts of the manifest. It caches only the parts for the most recent key, because few Clusters set
// spec.agent.
func (m *Manifests) around(in ManifestInput) (*manifestParts, error) {
	key, err := in.key()
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	parts, known := m.parts, m.shared == key && m.parts != nil
	m.mu.Unlock()
	if known {
		return parts, nil
	}
	if parts, err = build(in); err != nil {
		return nil, err
	}
	m.mu.Lock()
	m.shared, m.parts = key, parts
	m.mu.Unlock()
	return parts, nil
}

func build(in ManifestInput) (*manifestParts, error) {
	object, digest, err := buildDeployment(in)
	if err != nil {
		return nil, err
	}
	parts := &manifestParts{deployment: Deployment{Digest: digest}}
	if parts.deployment.JSON, err = json.Marshal(object); err != nil {
		return nil, fmt.Errorf("marshal agent deployment: %w", err)
	}
	in.Token = tokensPlace
	all, err := marshal(slices.Concat(
		[]any{namespace(in.Agent.NodeAgent || in.Agent.HostNetwork || in.direct()), serviceAccount(protocol.AgentName)},
		clusterRights(in.Agent.Profile),
		[]any{role(in.Agent.Profile), roleBinding(protocol.AgentName)}, directRights(in), []any{joinSecret(in), object})...)
	if err != nil {
		return nil, err
	}
	parts.before, parts.after, _ = bytes.Cut(all, []byte(base64.StdEncoding.EncodeToString([]byte(tokensPlace))))
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

// apply is the command that applies the manifest. With server-side apply, the command can take over an agent that was
// installed with kubectl or a GitOps tool. There is no warning or conflict, even if the agent has changed its
// Deployment. In addition, the join token is not copied into an annotation.
const apply = "kubectl apply --server-side --force-conflicts -f -"

// Command returns the command that an administrator runs in the member. If the CA is pinned, the command contains it,
// so that every download is verified (CVE-2025-67601). If the hub responds with an error, the command writes the
// message to standard error and applies nothing. It does not use "curl --fail", which would show only the status, or
// --fail-with-body, which requires curl 7.76.
func Command(manifestURL string, trust v1.Trust, caBundle string) string {
	fetch := "curl -sS -w '%{http_code}' "
	if trust != v1.TrustSystem && caBundle != "" {
		fetch = fmt.Sprintf("printf %%s %s | base64 -d | %s--cacert /dev/stdin --capath /dev/null ",
			base64.StdEncoding.EncodeToString([]byte(caBundle)), fetch)
	}
	return `(m=$(` + fetch + manifestURL + `) && case "$m" in *200) printf %s "${m%200}" | ` + apply +
		` ;; *) printf '%s\n' "${m%???}" >&2; exit 1 ;; esac)`
}

// ManifestURL returns the URL of the manifest for a token.
func ManifestURL(server, token string) string {
	return server + protocol.PathImport + token + ".yaml"
}

// namespace returns the agent's namespace. The namespace's pod security level allows pods on the host network only if
// the agent has such pods.
func namespace(onNodes bool) *corev1ac.NamespaceApplyConfiguration {
	level := "restricted"
	if onNodes {
		level = "privileged"
	}
	return corev1ac.Namespace(protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).
		WithLabels(map[string]string{"pod-security.kubernetes.io/enforce": level})
}

func serviceAccount(name string) *corev1ac.ServiceAccountApplyConfiguration {
	return corev1ac.ServiceAccount(name, protocol.AgentNamespace).WithLabels(protocol.AgentLabels())
}

// role returns the agent's Role in its own namespace. The Role allows the agent to manage Secrets, elect a leader,
// change its own Deployment and manage the DaemonSets. A ReadOnly agent may only remove the DaemonSets that an agent
// with the Full profile has left behind. RBAC cannot restrict the right to create Leases to a name.
func role(profile v1.AgentProfile) *rbacv1ac.RoleApplyConfiguration {
	daemonSets := []string{"create", "patch", "delete"}
	if profile == v1.ProfileReadOnly {
		daemonSets = []string{"delete"}
	}
	return rbacv1ac.Role(protocol.AgentName, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).WithRules(
		allow("", "secrets").WithVerbs("get", "list", "watch", "create", "update", "patch", "delete"),
		allow("coordination.k8s.io", "leases").WithVerbs("create"),
		allow("coordination.k8s.io", "leases").WithResourceNames(protocol.LeaderLease, protocol.NodeAgentLease).
			WithVerbs("get", "update", "delete"),
		allow("apps", "deployments").WithResourceNames(protocol.AgentName).WithVerbs("get", "watch", "patch"),
		allow("apps", "daemonsets").WithResourceNames(protocol.NodeAgentName, protocol.DirectName).
			WithVerbs(daemonSets...),
	)
}

// roleBinding grants a Role to the ServiceAccount with the same name.
func roleBinding(name string) *rbacv1ac.RoleBindingApplyConfiguration {
	return rbacv1ac.RoleBinding(name, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).
		WithRoleRef(roleRef("Role", name)).WithSubjects(account(name))
}

func roleRef(kind, name string) *rbacv1ac.RoleRefApplyConfiguration {
	return rbacv1ac.RoleRef().WithAPIGroup(rbacv1.GroupName).WithKind(kind).WithName(name)
}

func account(name string) *rbacv1ac.SubjectApplyConfiguration {
	return rbacv1ac.Subject().WithKind(rbacv1.ServiceAccountKind).WithNamespace(protocol.AgentNamespace).WithName(name)
}

func joinSecret(in ManifestInput) *corev1ac.SecretApplyConfiguration {
	// The Secret does not use stringData, because applying stringData again would always change the object.
	data := map[string][]byte{protocol.KeyToken: []byte(in.Token)}
	if in.Trust == v1.TrustPinned {
		data[protocol.KeyCABundle] = []byte(in.Settings.CABundle)
	}
	return corev1ac.Secret(protocol.RegistrationSecret, protocol.AgentNamespace).WithLabels(protocol.AgentLabels()).
		WithType(corev1.SecretTypeOpaque).WithData(data)
}
