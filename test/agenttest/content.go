// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agenttest

import (
	"io"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

func copyLimited(to io.Writer, from io.Reader) (int64, error) {
	return io.Copy(to, io.LimitReader(from, protocol.MaxBody))
}

// collection returns the path of the collection that contains the object at a path. It returns "" if the path is itself
// the path of a collection.
func collection(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	depth := 4 // api/v1/nodes/name
	switch {
	case parts[0] == "apis":
		depth = 5 // apis/group/version/clusterroles/name
	case len(parts) > 4:
		depth = 6 // api/v1/namespaces/ns/secrets/name
	}
	if len(parts) < depth {
		return ""
	}
	return path[:strings.LastIndex(path, "/")]
}

// versionOf returns the API version of the object at a path.
func versionOf(path string) string {
	if parts := strings.Split(path, "/"); parts[1] == "apis" {
		return parts[2] + "/" + parts[3]
	}
	return "v1"
}

// kindOf returns the kind of the object at a path.
func kindOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch plural := parts[len(parts)-2]; plural {
	case "namespaces":
		return "Namespace"
	case "nodes":
		return "Node"
	case "pods":
		return "Pod"
	case "secrets":
		return "Secret"
	case "leases":
		return "Lease"
	case "clusterroles":
		return "ClusterRole"
	case "clusterrolebindings":
		return "ClusterRoleBinding"
	default:
		return plural
	}
}

// field returns a string field of an object's metadata.
func field(content map[string]any, name string) string {
	meta, _ := content["metadata"].(map[string]any)
	value, _ := meta[name].(string)
	return value
}

// merge returns a copy of base with the patch applied.
func merge(base, patch map[string]any) map[string]any {
	out := maps.Clone(base)
	if out == nil {
		out = map[string]any{}
	}
	for k, v := range out {
		if inner, ok := v.(map[string]any); ok {
			out[k] = merge(inner, nil)
		}
	}
	for k, v := range patch {
		if inner, ok := v.(map[string]any); ok {
			before, _ := out[k].(map[string]any)
			out[k] = merge(before, inner)
			continue
		}
		out[k] = v
	}
	return out
}

func failure(code int32, reason metav1.StatusReason, message string) (int, any) {
	return int(code), metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
		Status:   metav1.StatusFailure, Code: code, Reason: reason, Message: message,
	}
}
