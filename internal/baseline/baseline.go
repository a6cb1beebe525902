// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline determines the objects of a Baseline and the order in which they are applied.
//
// The hub reads the objects from their sources and computes a revision. The agent replaces references to the Cluster's
// name and labels, and applies the objects in stages. The package has no side effects and uses no client, context,
// clock or logger.
package baseline

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/untrusted"
)

// userPrefix precedes the name of a Baseline in the name of the Baseline's user. Bindings reject subjects whose names
// begin with "drover:".
const userPrefix = "drover:baseline:"

// User returns the name of the user that the agent impersonates to apply a Baseline. The Baseline's field manager has
// the same name.
func User(baseline string) string { return userPrefix + baseline }

// IsUser reports whether a name belongs to the user of a Baseline. The agent does not forward requests from these
// users.
func IsUser(name string) bool { return strings.HasPrefix(name, userPrefix) }

// revisionLength is the number of hexadecimal digits in a revision.
const revisionLength = 16

// Revision returns an identifier for the objects of a Baseline and for the role template that grants the rights to
// apply them. The objects must be results of Parse.
func Revision(roleTemplate string, objects []json.RawMessage) string {
	sum := sha256.New()
	// a line break cannot be part of a name or of compact JSON
	_, _ = sum.Write([]byte(roleTemplate + "\n")) // writing to a hash never fails
	for _, object := range objects {
		_, _ = sum.Write(object)
		_, _ = sum.Write([]byte("\n"))
	}
	return hex.EncodeToString(sum.Sum(nil))[:revisionLength]
}

// Decode decodes one object from a Baseline's set. The error does not contain any part of the object.
func Decode(raw json.RawMessage) (*unstructured.Unstructured, error) {
	if err := untrusted.Check(raw, bounds()); err != nil {
		return nil, fmt.Errorf("read an object: %w", err)
	}
	o := &unstructured.Unstructured{}
	if o.UnmarshalJSON(raw) != nil { // the cause may quote the object
		return nil, fmt.Errorf("read an object: it is not a Kubernetes object")
	}
	return o, nil
}

// reservedPrefix is the prefix of the names of Drover's own namespaces. An object in such a namespace could replace the
// agent, or could be a Plan that runs on the nodes.
const reservedPrefix = "drover-"

// version matches an apiVersion. The agent builds paths from it, so no part of it can be empty or consist of dots.
var version = regexp.MustCompile(`^(v1|[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`)

// segment reports whether a name can be used unchanged as an element of a path.
func segment(name string) bool {
	return name != "." && name != ".." && !strings.ContainsAny(name, "/%?#")
}

// Refuse returns the reason why an object cannot be part of a Baseline, or "". The agent calls it after Substitute,
// because a reference may be part of a name.
func Refuse(o *unstructured.Unstructured) string {
	switch {
	case o.GetAPIVersion() == "" || o.GetKind() == "":
		return "it has no apiVersion or kind"
	case o.GetName() == "":
		return "it has no metadata.name"
	case !segment(o.GetName()) || !segment(o.GetNamespace()) || !version.MatchString(o.GetAPIVersion()):
		return "its name, namespace or apiVersion contains a character that is not allowed there"
	case strings.HasPrefix(o.GetNamespace(), reservedPrefix),
		isNamespace(o) && strings.HasPrefix(o.GetName(), reservedPrefix):
		return "namespaces whose names begin with drover- belong to Drover"
	}
	return ""
}

func isNamespace(o *unstructured.Unstructured) bool {
	return o.GetKind() == "Namespace" && o.GetAPIVersion() == "v1"
}

// StageCount is the number of stages.
const StageCount = 3

// Stage returns the stage in which objects of a kind are applied. Stage 0 contains Namespaces and
// CustomResourceDefinitions. Stage 2 contains webhook configurations and APIServices, because they can block other
// clients' requests until a workload of the Baseline responds. Stage 1 contains all other objects, and begins after the
// CustomResourceDefinitions have been established. Within a stage, objects are applied in any order.
func Stage(apiVersion, kind string) int {
	switch Group(apiVersion) + "/" + kind {
	case "/Namespace", "apiextensions.k8s.io/CustomResourceDefinition":
		return 0
	case "admissionregistration.k8s.io/MutatingWebhookConfiguration",
		"admissionregistration.k8s.io/ValidatingWebhookConfiguration", "apiregistration.k8s.io/APIService":
		return 2
	}
	return 1
}

// Group returns the API group in an apiVersion. It is empty for the core group.
func Group(apiVersion string) string {
	group, _, grouped := strings.Cut(apiVersion, "/")
	if !grouped {
		return ""
	}
	return group
}
