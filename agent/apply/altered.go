// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

const rbacGroup = "rbac.authorization.k8s.io"

// alteredField returns the path of a field whose stored value differs from the value that the agent applied, or "" if
// there is no such field. Admission plugins in the member can change an object without leaving a trace in its managed
// fields.
//
// alteredField ignores additional labels and annotations, the status, and defaults set by the API server. The path
// contains neither list indexes nor keys of a Secret's data.
func alteredField(kind string, body, answer []byte) (string, error) {
	var sent, stored map[string]any
	if err := json.Unmarshal(body, &sent); err != nil {
		return "", fmt.Errorf("decode the applied object: %w", err)
	}
	if err := json.Unmarshal(answer, &stored); err != nil {
		return "", fmt.Errorf("decode the stored object: %w", err)
	}
	for _, field := range []string{"labels", "annotations"} {
		mine, _ := below(sent, "metadata", field).(map[string]any)
		theirs, _ := below(stored, "metadata", field).(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(mine)) {
			if mine[key] != theirs[key] {
				return "metadata." + field + "." + key, nil
			}
		}
	}
	if kind == kindNamespace { // sets share Namespaces and do not own them
		return "", nil
	}
	setDefaults(kind, sent)
	for _, m := range []map[string]any{sent, stored} {
		maps.DeleteFunc(m, func(key string, _ any) bool {
			return slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, key)
		})
	}
	return comparison{kind}.differ(sent, stored), nil
}

func below(object map[string]any, path ...string) any {
	var value any = object
	for _, key := range path {
		fields, _ := value.(map[string]any)
		value = fields[key]
	}
	return value
}

// comparison compares an applied object of the given kind with the stored version of that object.
type comparison struct{ kind string }

// evolves reports whether the fields of the kind differ between Kubernetes versions.
func (c comparison) evolves() bool {
	return c.kind == kindPlan || c.kind == "ValidatingAdmissionPolicy" || c.kind == "ValidatingAdmissionPolicyBinding"
}

// differ returns the path of a field whose value differs, or "" if there is none.
func (c comparison) differ(sent, stored map[string]any) string {
	keys := maps.Clone(sent)
	maps.Copy(keys, stored)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		mine, applied := sent[key]
		theirs, there := stored[key]
		var path string
		var same bool
		switch {
		case !applied:
			same = c.mayAdd(theirs)
		case !there:
			same = isZero(mine) || c.kind == kindPlan
		case isZero(mine) && isZero(theirs):
			same = true
		default:
			path, same = c.equal(mine, theirs)
		}
		switch {
		case same:
		case path == "" || c.kind == kindSecret:
			return key
		default:
			return key + "." + path
		}
	}
	return ""
}

// equal compares two values. If they differ, path locates the difference within the values, or is "" if the location is
// unknown.
func (c comparison) equal(sent, stored any) (path string, same bool) {
	switch mine := sent.(type) {
	case map[string]any:
		theirs, ok := stored.(map[string]any)
		if !ok {
			return "", false
		}
		path = c.differ(mine, theirs)
		return path, path == ""
	case []any:
		theirs, ok := stored.([]any)
		if !ok || len(mine) != len(theirs) {
			return "", false
		}
		for i := range mine {
			if path, same = c.equal(mine[i], theirs[i]); !same {
				return path, false
			}
		}
		return "", true
	}
	return "", reflect.DeepEqual(sent, stored) || c.equalAmounts(sent, stored)
}

// equalAmounts reports whether two resource quantities are equal, even if they are written differently, such as
// 1000m and 1.
func (c comparison) equalAmounts(sent, stored any) bool {
	if c.kind != kindQuota && c.kind != kindLimitRange {
		return false
	}
	mine, err := resource.ParseQuantity(fmt.Sprint(sent))
	theirs, invalid := resource.ParseQuantity(fmt.Sprint(stored))
	return err == nil && invalid == nil && mine.Cmp(theirs) == 0
}

// mayAdd reports whether the value may be a default that the API server added. In most kinds, only nil and empty lists
// count as defaults. In kinds that evolve, scalars and empty objects count as well.
func (c comparison) mayAdd(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0 && c.evolves()
	}
	return c.evolves()
}

func isZero(value any) bool {
	switch v := value.(type) {
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return value == nil || reflect.ValueOf(value).IsZero()
}

// setDefaults sets the defaults that an API server would set.
func setDefaults(kind string, o map[string]any) {
	switch kind {
	case kindRoleBinding, kindClusterRoleBinding:
		if ref, ok := o["roleRef"].(map[string]any); ok {
			setDefault(ref, "apiGroup", rbacGroup)
		}
		for _, subject := range elements(o["subjects"]) {
			if subject["kind"] != "ServiceAccount" {
				setDefault(subject, "apiGroup", rbacGroup)
			}
		}
	case kindSecret:
		setDefault(o, "type", "Opaque")
	case kindLimitRange:
		for _, limit := range elements(below(o, "spec", "limits")) {
			setLimitDefaults(limit)
		}
	case kindNetworkPolicy:
		setPolicyDefaults(o)
	}
}

func setLimitDefaults(limit map[string]any) {
	if limit["type"] != "Container" {
		return
	}
	for _, from := range [][2]string{{"default", "max"}, {"defaultRequest", "default"}, {"defaultRequest", "min"}} {
		amounts, _ := limit[from[1]].(map[string]any)
		for name, amount := range amounts {
			if limit[from[0]] == nil {
				limit[from[0]] = map[string]any{}
			}
			if to, ok := limit[from[0]].(map[string]any); ok {
				setDefault(to, name, amount)
			}
		}
	}
}

func setPolicyDefaults(o map[string]any) {
	spec, _ := o["spec"].(map[string]any)
	if spec == nil {
		return
	}
	types := []any{"Ingress"}
	if len(elements(spec["egress"])) > 0 {
		types = append(types, "Egress")
	}
	if isZero(spec["policyTypes"]) {
		spec["policyTypes"] = types
	}
	for _, direction := range []string{"ingress", "egress"} {
		for _, rule := range elements(spec[direction]) {
			for _, port := range elements(rule["ports"]) {
				setDefault(port, "protocol", "TCP")
			}
		}
	}
}

func setDefault(o map[string]any, key string, value any) {
	if v, there := o[key]; !there || v == "" || v == nil {
		o[key] = value
	}
}

func elements(list any) []map[string]any {
	all, _ := list.([]any)
	var objects []map[string]any
	for _, one := range all {
		if o, ok := one.(map[string]any); ok {
			objects = append(objects, o)
		}
	}
	return objects
}
