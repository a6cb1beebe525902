// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"testing"
)

func TestAlteredField(t *testing.T) {
	t.Parallel()
	type fields = map[string]any
	list := func(all ...any) []any { return all }
	policy := func(from ...any) fields {
		return fields{"spec": fields{"podSelector": fields{}, "policyTypes": list("Ingress"),
			"ingress": list(fields{"from": from})}}
	}
	web := fields{"namespaceSelector": fields{"matchLabels": fields{"project": "web"}}}
	limits := func(limit fields) fields { return fields{"spec": fields{"limits": list(limit)}} }
	guard := func(spec fields) fields { return fields{"spec": spec} }
	for name, c := range map[string]struct {
		kind         string
		sent, stored fields
		want         string
	}{
		"the same":     {kindNetworkPolicy, policy(web), policy(web), ""},
		"another peer": {kindNetworkPolicy, policy(web), policy(web, fields{"podSelector": fields{}}), "spec.ingress.from"},
		"a wider peer": {kindNetworkPolicy, policy(web), policy(fields{"namespaceSelector": fields{}}),
			"spec.ingress.from.namespaceSelector.matchLabels"},
		"another selector": {kindNetworkPolicy, policy(fields{"podSelector": fields{}}),
			policy(fields{"podSelector": fields{}, "namespaceSelector": fields{}}), "spec.ingress.from.namespaceSelector"},
		"another rule": {kindClusterRole, fields{"rules": list()}, fields{"rules": list(fields{"verbs": list("*")})},
			"rules"},
		"no rules": {kindClusterRole, fields{"rules": list()}, fields{"rules": nil}, ""},
		"another verb": {kindClusterRole, fields{"rules": list(fields{"verbs": list("get")})},
			fields{"rules": list(fields{"verbs": list("get", "*")})}, "rules.verbs"},
		"a default of a binding": {kindRoleBinding,
			fields{"roleRef": fields{"kind": "ClusterRole", "name": "view"},
				"subjects": list(fields{"kind": "User", "name": "a"})},
			fields{"roleRef": fields{"kind": "ClusterRole", "name": "view", "apiGroup": rbacGroup},
				"subjects": list(fields{"kind": "User", "name": "a", "apiGroup": rbacGroup})}, ""},
		"another subject": {kindRoleBinding, fields{"subjects": list(fields{"kind": "Group", "name": "a"})},
			fields{"subjects": list(fields{"kind": "Group", "name": "b", "apiGroup": rbacGroup})}, "subjects.name"},
		"a larger quota": {kindQuota, fields{"spec": fields{"hard": fields{"pods": "1"}}},
			fields{"spec": fields{"hard": fields{"pods": "9"}}}, "spec.hard.pods"},
		"a quota with a narrower scope": {kindQuota, fields{"spec": fields{"hard": fields{"pods": "1"}}},
			fields{"spec": fields{"hard": fields{"pods": "1"}, "scopes": list("BestEffort")}}, "spec.scopes"},
		"an amount in another form": {kindQuota, fields{"spec": fields{"hard": fields{"cpu": "1000m"}}},
			fields{"spec": fields{"hard": fields{"cpu": "1"}}, "status": fields{"hard": fields{"cpu": "1"}}}, ""},
		"a default of limits": {kindLimitRange, limits(fields{"type": "Container", "default": fields{"cpu": "1"}}),
			limits(fields{"type": "Container", "default": fields{"cpu": "1"}, "defaultRequest": fields{"cpu": "1"}}), ""},
		"another request": {kindLimitRange, limits(fields{"type": "Container", "default": fields{"cpu": "1"}}),
			limits(fields{"type": "Container", "default": fields{"cpu": "1"}, "defaultRequest": fields{"cpu": "0"}}),
			"spec.limits.defaultRequest.cpu"},
		"a type of a Secret": {kindSecret, fields{"data": fields{"a": "eA=="}},
			fields{"data": fields{"a": "eA=="}, "type": "Opaque"}, ""},
		"a key of a Secret": {kindSecret, fields{"data": fields{"a": "eA=="}},
			fields{"data": fields{"a": "eA==", "hidden": ""}, "type": "Opaque"}, "data"},
		"defaults of a guard": {"ValidatingAdmissionPolicy", guard(fields{"matchConstraints": fields{}}),
			guard(fields{"failurePolicy": "Fail", "matchConstraints": fields{"objectSelector": fields{}}, "later": "x"}), ""},
		"a guard with an escape": {"ValidatingAdmissionPolicy", guard(fields{"matchConstraints": fields{}}),
			guard(fields{"matchConstraints": fields{}, "matchConditions": list(fields{"name": "never"})}),
			"spec.matchConditions"},
		"a guard that fails open": {"ValidatingAdmissionPolicy", guard(fields{"failurePolicy": "Fail"}),
			guard(fields{"failurePolicy": "Ignore"}), "spec.failurePolicy"},
		"a field of a later plan": {kindPlan, fields{"spec": fields{"new": "x", "a": "b"}},
			fields{"spec": fields{"a": "b", "concurrency": 1}}, ""},
		"another image of a plan": {kindPlan, fields{"spec": fields{"image": "a"}}, fields{"spec": fields{"image": "b"}},
			"spec.image"},
		"a label that was added": {kindQuota, fields{"metadata": fields{"labels": fields{"a": "b"}}},
			fields{"metadata": fields{"labels": fields{"a": "b", "c": "d"}, "uid": "x"}}, ""},
		"a label that was removed": {kindQuota, fields{"metadata": fields{"labels": fields{"a": "b"}}},
			fields{"metadata": fields{}}, "metadata.labels.a"},
		"a namespace's label": {kindNamespace, fields{"metadata": fields{"labels": fields{"enforce": "baseline"}}},
			fields{"metadata": fields{"labels": fields{"enforce": "privileged"}}}, "metadata.labels.enforce"},
		"a namespace's fields of other managers": {kindNamespace, fields{"metadata": fields{"labels": fields{"a": "b"}}},
			fields{"metadata": fields{"labels": fields{"a": "b", "c": "d"}}, "spec": fields{"finalizers": list("kubernetes")}},
			""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sent, err := json.Marshal(c.sent)
			if err != nil {
				t.Fatal(err)
			}
			stored, err := json.Marshal(c.stored)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := alteredField(c.kind, sent, stored); err != nil || got != c.want {
				t.Errorf("got the field %q and the error %v, want %q and no error", got, err, c.want)
			}
		})
	}
}
