// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Names of the values that an object can refer to.
const (
	clusterName = "CLUSTER_NAME"
	labelPrefix = "LABEL:"
)

// Values returns the values of a Cluster that objects can refer to. It omits the labels that record the progress of
// plans, because each change to such a label would cause another delivery.
func Values(cluster string, labels map[string]string) map[string]string {
	values := map[string]string{clusterName: cluster}
	for key, value := range labels {
		if !strings.HasPrefix(key, v1.PlanLabel("")) {
			values[labelPrefix+key] = value
		}
	}
	return values
}

// Refers reports whether an object in a set refers to a value of the Cluster. It may also return true for an object
// that only contains an escaped reference.
func Refers(object json.RawMessage) bool {
	return bytes.Contains(object, []byte("$("+clusterName+")")) || bytes.Contains(object, []byte("$("+labelPrefix))
}

// Substitute replaces $(CLUSTER_NAME) and $(LABEL:<key>) in all string values of an object, but not in keys. The result
// of $$(CLUSTER_NAME) is $(CLUSTER_NAME). Other names remain unchanged, because Kubernetes itself replaces $(NAME) in
// the commands and variables of containers. Substitute returns an error if an object refers to a label that the Cluster
// does not have. Inserted values are not searched for references.
func Substitute(object map[string]any, values map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(object)) {
		replaced, err := substituted(object[key], values)
		if err != nil {
			return err
		}
		object[key] = replaced
	}
	return nil
}

func substituted(value any, values map[string]string) (any, error) {
	switch value := value.(type) {
	case string:
		return substitutedText(value, values)
	case map[string]any:
		return value, Substitute(value, values)
	case []any:
		for i := range value {
			replaced, err := substituted(value[i], values)
			if err != nil {
				return nil, err
			}
			value[i] = replaced
		}
	}
	return value, nil
}

func substitutedText(text string, values map[string]string) (string, error) {
	if !strings.Contains(text, "$(") {
		return text, nil
	}
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "$(")
		out.WriteString(before)
		if !found {
			return out.String(), nil
		}
		name, after, closed := strings.Cut(rest, ")")
		value, known := values[name]
		switch ours := name == clusterName || strings.HasPrefix(name, labelPrefix); {
		case !closed || !ours:
			out.WriteString("$(")
			text = rest
			continue
		case strings.HasSuffix(before, "$"): // "$$(NAME)": the result begins with the first dollar sign
			out.WriteString("(" + name + ")")
		case !known:
			return "", fmt.Errorf("it refers to $(%s), but the Cluster has no such label: add the label, or remove the "+
				"reference", name[:min(len(name), maxName)])
		default:
			out.WriteString(value)
		}
		text = after
	}
}
