// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// The schema defines which specs of a Cluster are valid. Each case is a spec that the API server either accepts or
// rejects with advice.
func TestClusterSpec(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	workspace := env.Workspace(t)
	many := func(n int, entry string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(entry+",", n), ",") + "]"
	}
	for name, tc := range map[string]struct{ spec, refused string }{
		"an empty spec":                       {`{}`, ""},
		"a time to live in hours and minutes": {`{"registration": {"tokenTTL": "1h30m"}}`, ""},
		"a time to live in days": {
			`{"registration": {"tokenTTL": "1d"}}`, "tokenTTL must be in hours, minutes and seconds, for example 36h",
		},
		"a time to live that is no time": {`{"registration": {"tokenTTL": "soon"}}`, "tokenTTL must be in hours"},
		"a time to live that is too short": {
			`{"registration": {"tokenTTL": "59s"}}`, "tokenTTL must be between 1m and 8760h",
		},
		"a time to live that is too long": {
			`{"registration": {"tokenTTL": "8761h"}}`, "tokenTTL must be between 1m and 8760h",
		},
		"five replicas": {`{"agent": {"replicas": 5}}`, ""},
		"node agents":   {`{"agent": {"nodeAgent": true}}`, ""},
		"node agents of an agent that only reads": {
			`{"agent": {"nodeAgent": true, "profile": "ReadOnly"}}`, "nodeAgent requires the Full profile",
		},
		"no node agents of an agent that reads": {`{"agent": {"nodeAgent": false, "profile": "ReadOnly"}}`, ""},
		"node agents that are no boolean":       {`{"agent": {"nodeAgent": "yes"}}`, "must be of type boolean"},
		"an agent on the network of its nodes":  {`{"agent": {"hostNetwork": true}}`, ""},
		"an agent on the network of its nodes that would serve users there": {
			`{"agent": {"hostNetwork": true}, "authorizedEndpoint": {"server": "https://prod.example.com:6443"}}`,
			"agent.hostNetwork requires authorizedEndpoint.mode APIServer",
		},
		"an agent on the network of its nodes beside an API server that serves users": {
			`{"agent": {"hostNetwork": true},
			  "authorizedEndpoint": {"mode": "APIServer", "server": "https://prod.example.com:6443"}}`,
			"",
		},
		"no replica":   {`{"agent": {"replicas": 0}}`, "spec.agent.replicas"},
		"six replicas": {`{"agent": {"replicas": 6}}`, "spec.agent.replicas"},
		"a proxy with a password": {
			`{"agent": {"env": [{"name": "HTTPS_PROXY", "secretKey": "proxy"}], "imagePullSecrets": [{"name": "registry"}]}}`,
			"",
		},
		"a value and a key of a Secret": {
			`{"agent": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128", "secretKey": "proxy"}]}}`,
			"set value or secretKey, not both",
		},
		"a key that is none": {
			`{"agent": {"env": [{"name": "HTTPS_PROXY", "secretKey": "a/b"}]}}`, "should match",
		},
		"a proxy": {
			`{"agent": {"env": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}, {"name": "no_proxy"}]}}`, "",
		},
		"a variable of Drover's": {
			`{"agent": {"env": [{"name": "DROVER_SERVER", "value": "https://evil"}]}}`, "an agent accepts only the variables",
		},
		"a variable of Drover's by its old name": {
			`{"agent": {"env": [{"name": "CATTLE_SERVER"}]}}`, "an agent accepts only the variables",
		},
		"a variable that is no name": {`{"agent": {"env": [{"name": "A-B"}]}}`, "should match"},
		"a variable out of a Secret": {
			`{"agent": {"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "y"}}}]}}`, "unknown field",
		},
		"a variable twice": {`{"agent": {"env": [{"name": "A"}, {"name": "A"}]}}`, "Duplicate value"},
		"too many tolerations": {
			`{"agent": {"tolerations": ` + many(17, `{"operator": "Exists"}`) + `}}`, "must have at most 16 items",
		},
		"tolerations, affinity, resources and a priority": {`{"agent": {"tolerations": [{"operator": "Exists"}], "priorityClassName": "high", "nodeSelector": {"a": "b"},
			"resources": {"requests": {"cpu": "50m", "memory": "32Mi", "ephemeral-storage": "1Mi"}, "limits": {"memory": "1Gi"}},
			"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]}}}}}`, ""},
		"resources that are no quantity": {
			`{"agent": {"resources": {"limits": {"memory": "much"}}}}`, "spec.agent.resources.limits",
		},
		"a resource that a node offers by its own word": {
			`{"agent": {"resources": {"limits": {"evil.example/gpu": 1}}}}`, "only cpu, memory and ephemeral-storage",
		},
		"huge pages for the agent": {
			`{"agent": {"resources": {"requests": {"hugepages-2Mi": "2Mi"}}}}`, "only cpu, memory and ephemeral-storage",
		},
		// Parsing this value would take hours. The manager, too, would parse it, on behalf of all users.
		"resources with an exponent": {
			`{"agent": {"resources": {"limits": {"memory": "1e-100000000"}}}}`, "spec.agent.resources.limits",
		},
		"the least memory that an agent runs with": {`{"agent": {"resources": {"limits": {"memory": "32Mi"}}}}`, ""},
		"as much in bytes":                         {`{"agent": {"resources": {"limits": {"memory": 33554432}}}}`, ""},
		"limits without memory":                    {`{"agent": {"resources": {"limits": {"cpu": 1}}}}`, ""},
		"a byte of memory": {
			`{"agent": {"resources": {"limits": {"memory": 1}}}}`, "set memory to at least 32Mi, or omit it",
		},
		"too little memory for an agent": {
			`{"agent": {"resources": {"limits": {"memory": "33554431"}}}}`, "set memory to at least 32Mi",
		},
		"no memory": {
			`{"agent": {"resources": {"limits": {"memory": "0"}}}}`, "set memory to at least 32Mi",
		},
		"less than no memory": {
			`{"agent": {"resources": {"limits": {"memory": "-1Gi"}}}}`, "set memory to at least 32Mi",
		},
		"a trust that does not exist": {`{"agent": {"trust": "Blind"}}`, "spec.agent.trust"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := &unstructured.Unstructured{}
			if err := json.Unmarshal([]byte(`{"metadata": {"generateName": "c-"}, "spec": `+tc.spec+`}`), &object.Object); err != nil {
				t.Fatal(err)
			}
			object.SetGroupVersionKind(v1.GroupVersion.WithKind("Cluster"))
			object.SetNamespace(workspace)
			err := env.Client.Create(t.Context(), object, client.FieldValidation("Strict"))
			switch {
			case tc.refused == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tc.refused != "" && (err == nil || !strings.Contains(err.Error(), tc.refused)):
				t.Errorf("got %v, want %q", err, tc.refused)
			}
		})
	}
}
