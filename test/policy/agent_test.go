// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/test/testkit"
)

// field is a field of a Cluster's spec: what an editor tries to set, and what rejects this if the Cluster exists and if
// it is created. Empty means that nothing rejects it.
type field struct{ value, patch, create string }

const (
	agentRight    = "user edith cannot update clusters/agent"
	deletionRight = "user edith cannot delete clusters/agent"
	secretRight   = "cannot get Secret chosen"
)

// fields are all fields that exist. A new field needs a decision here: may a user who may only edit the Cluster set it?
func fields() map[string]field {
	return map[string]field{
		"agent.image":                      {`"evil:v1"`, agentRight, agentRight},
		"agent.trust":                      {`"System"`, agentRight, agentRight},
		"agent.profile":                    {`"ReadOnly"`, agentRight, agentRight},
		"agent.nodeSelector":               {`{"kubernetes.io/hostname":"mine"}`, agentRight, agentRight},
		"agent.tolerations":                {`[{"key":"mine","operator":"Exists"}]`, agentRight, agentRight},
		"agent.affinity":                   {`{}`, agentRight, agentRight},
		"agent.priorityClassName":          {`"low"`, agentRight, agentRight},
		"agent.imagePullSecrets":           {`[{"name":"mine"}]`, agentRight, agentRight},
		"agent.env":                        {`[{"name":"HTTPS_PROXY","value":"http://mine:3128"}]`, agentRight, agentRight},
		"agent.nodeAgent":                  {`true`, agentRight, agentRight},
		"agent.hostNetwork":                {`true`, agentRight, agentRight},
		"agent.replicas":                   {`2`, "", ""},
		"agent.resources":                  {`{"limits":{"memory":"512Mi"}}`, "", ""},
		"authorizedEndpoint.server":        {`"https://mine.example.com"`, agentRight, agentRight},
		"authorizedEndpoint.mode":          {`"Agent"`, agentRight, agentRight},
		"authorizedEndpoint.tlsSecretName": {`"mine"`, agentRight, agentRight},
		"authorizedEndpoint.caBundle":      {`"mine"`, agentRight, agentRight},
		"authorizedEndpoint.offline":       {`"12h"`, agentRight, agentRight},
		"registration.tokenSecretRef":      {`{"name":"chosen"}`, secretRight, secretRight},
		"registration.tokenTTL":            {`"36h"`, "", ""},
		"deletionPolicy":                   {`"Orphan"`, deletionRight, ""},
		"deletionProtection":               {`true`, "", ""},
	}
}

// schemaFields returns the fields of spec and of its parts in the schema.
func schemaFields(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(testkit.Path(t, "config/crd/bases/cluster.drover.dev_clusters.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal(text, crd); err != nil {
		t.Fatal(err)
	}
	var names []string
	for name, spec := range crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"].Properties {
		if len(spec.Properties) == 0 {
			names = append(names, name)
		}
		for part := range spec.Properties {
			names = append(names, name+"."+part)
		}
	}
	return names
}

// nested returns JSON with a value at a path, such as {"spec":{"agent":{"image":"x"}}} for agent.image.
func nested(path, value string) string {
	parts := append([]string{"spec"}, strings.Split(path, ".")...)
	for _, part := range slices.Backward(parts) {
		value = fmt.Sprintf("{%q:%s}", part, value)
	}
	return value
}

// testAgent patches every field of a Cluster's spec with the shipped editor role. Fields that decide who has the
// agent's rights require a separate right to set them, to remove them, and to set them at creation.
func testAgent(t *testing.T, h *fixture) {
	h.bindRole(t, "edith", "drover-workspace-editor")
	h.AwaitRights(t, "edith", h.workspace, may("clusters", "patch", "create"))
	h.allow(t, "agnes", h.workspace, may("clusters", "get", "create", "update", "patch"), may("clusters/agent", "update", "delete"), may("secrets", "get"))
	editor, holder := h.as(t, "edith"), h.as(t, "agnes")
	plain, full := cluster(t, h.workspace, "agent-plain", ""), cluster(t, h.workspace, "agent-full", "")
	for _, object := range []client.Object{plain, full} {
		h.Apply(t, object)
	}
	known := fields()
	if have, want := slices.Sorted(slices.Values(schemaFields(t))), slices.Sorted(maps.Keys(known)); !slices.Equal(have, want) {
		t.Fatalf("the schema has the fields\n%v\nof which these were decided on:\n%v", have, want)
	}
	// agent-full has the ReadOnly profile, and an authorizedEndpoint in the mode Agent.
	notInFull := []string{"agent.nodeAgent", "agent.hostNetwork"}
	for path, f := range known {
		if !slices.Contains(notInFull, path) {
			wantTaken(t, holder.Patch(t.Context(), full, merge("%s", nested(path, f.value))))
		}
	}
	judge := func(t *testing.T, err error, refusal string) {
		t.Helper()
		if refusal == "" {
			wantTaken(t, err)
			return
		}
		wantRefused(t, err, refusal)
	}
	for path, f := range known {
		t.Run(path, func(t *testing.T) {
			set := merge("%s", nested(path, f.value))
			judge(t, editor.Patch(t.Context(), plain.DeepCopy(), set, client.DryRunAll), f.patch)
			wantTaken(t, holder.Patch(t.Context(), plain.DeepCopy(), set, client.DryRunAll))
			if f.patch == agentRight && !slices.Contains(notInFull, path) {
				judge(t, editor.Patch(t.Context(), full.DeepCopy(), merge("%s", nested(path, "null")), client.DryRunAll), f.patch)
				wantTaken(t, holder.Patch(t.Context(), full.DeepCopy(), merge("%s", nested(path, "null")), client.DryRunAll))
			}
			made := object(t, fmt.Sprintf(`{"kind":"Cluster","metadata":{"namespace":%q,"name":"made"},%s`, h.workspace, nested(path, f.value)[1:]))
			judge(t, editor.Create(t.Context(), made.DeepCopy(), client.DryRunAll), f.create)
			wantTaken(t, holder.Create(t.Context(), made, client.DryRunAll))
		})
	}
	testAgentDefaults(t, h, plain.GetName(), full.GetName())
}

// testAgentDefaults checks that an editor may write a value that is the default, or is already present, because this
// changes nothing.
func testAgentDefaults(t *testing.T, h *fixture, plain, full string) {
	const defaults = `{"spec":{"agent":{"trust":"Pinned","profile":"Full","image":"","env":[],"tolerations":[],"nodeSelector":{},"priorityClassName":"","nodeAgent":false,"hostNetwork":false}}}`
	editor := h.as(t, "edith")
	at := func(name string) client.Object { return cluster(t, h.workspace, name, "") }
	wantTaken(t, editor.Patch(t.Context(), at(plain), merge(defaults), client.DryRunAll))
	wantTaken(t, editor.Create(t.Context(), object(t, fmt.Sprintf(`{"kind":"Cluster","metadata":{"namespace":%q,"name":"made"},%s`, h.workspace, defaults[1:])), client.DryRunAll))
	wantTaken(t, editor.Patch(t.Context(), at(plain), merge(`{"spec":{"agent":null}}`), client.DryRunAll))
	wantTaken(t, editor.Patch(t.Context(), at(full), merge(`{"spec":{"agent":{"image":"evil:v1","replicas":3}}}`), client.DryRunAll))
	wantRefused(t, editor.Patch(t.Context(), at(full), merge(`{"spec":{"agent":null}}`), client.DryRunAll), agentRight+" "+full)
	wantRefused(t, editor.Patch(t.Context(), at(full), merge(`{"spec":null}`), client.DryRunAll), "")
	generated := object(t, fmt.Sprintf("{kind: Cluster, metadata: {namespace: %s, generateName: a-}, spec: {agent: {image: x}}}", h.workspace))
	wantRefused(t, editor.Create(t.Context(), generated.DeepCopy(), client.DryRunAll), agentRight)
	wantTaken(t, h.as(t, "agnes").Create(t.Context(), generated, client.DryRunAll))
}
