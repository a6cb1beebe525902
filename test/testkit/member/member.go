// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package member starts an API server in which the manifest of an agent has been applied, for tests of an agent with
// its own rights in a member.
package member

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// Member is an API server in which an agent can run.
type Member struct {
	*testkit.Env
	// Agent is the client configuration of the agent's ServiceAccount.
	Agent *rest.Config
}

// Start starts an API server, applies the manifest of an agent with the Full profile, and waits until the agent has its
// rights.
func Start(t testing.TB) *Member {
	t.Helper()
	m := &Member{Env: testkit.StartMember(t)}
	manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{
		Image: "drover:v1", Trust: v1.TrustSystem, Token: strings.Repeat("t", 40), Settings: protocol.Settings{Servers: []string{"https://hub.example.com"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	m.apply(t, manifest)
	const agent = "system:serviceaccount:" + protocol.AgentNamespace + ":" + protocol.AgentName
	m.AwaitRights(t, agent, "", rbacv1.PolicyRule{APIGroups: []string{v1.Group}, Resources: []string{"sets"}, Verbs: []string{"manage"}})
	m.AwaitRights(t, agent, protocol.AgentNamespace, rbacv1.PolicyRule{
		APIGroups: []string{"apps"}, Resources: []string{"deployments"}, Verbs: []string{"patch"}, ResourceNames: []string{protocol.AgentName}})
	m.Agent = rest.CopyConfig(m.Config)
	m.Agent.QPS = -1
	m.Agent.Impersonate = rest.ImpersonationConfig{UserName: agent}
	return m
}

func (m *Member) apply(t testing.TB, manifest []byte) {
	t.Helper()
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return
		}
		o := &unstructured.Unstructured{}
		if err == nil {
			err = yaml.UnmarshalStrict(document, &o.Object)
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o.Object) > 0 {
			m.Apply(t, o)
		}
	}
}
