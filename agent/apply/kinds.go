// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	kindNamespace     = "Namespace"
	kindQuota         = "ResourceQuota"
	kindLimitRange    = "LimitRange"
	kindSecret        = "Secret"
	kindNetworkPolicy = "NetworkPolicy"
	kindPlan          = "Plan"

	kindClusterRole        = "ClusterRole"
	kindClusterRoleBinding = "ClusterRoleBinding"
	kindRoleBinding        = "RoleBinding"
)

// catalogue contains the kinds that the agent may apply, by name. The agent watches these kinds, and its ClusterRole
// grants access to them. The agent rejects objects of any other kind.
type catalogue map[string]protocol.ObjectKind

func newCatalogue() catalogue {
	c := catalogue{}
	for _, k := range protocol.SetKinds() {
		c[k.Name] = k
	}
	return c
}

// ref identifies an object.
type ref struct{ kind, namespace, name string }

// String returns the object's name in the format of set states.
func (r ref) String() string {
	if r.namespace == "" {
		return r.kind + " " + r.name
	}
	return r.kind + " " + r.namespace + "/" + r.name
}

// refOf returns a reference to an object, or an error if the agent cannot deliver the object.
func (c catalogue) refOf(o *unstructured.Unstructured) (ref, error) {
	r := ref{kind: o.GetKind(), namespace: o.GetNamespace(), name: o.GetName()}
	k, known := c[r.kind]
	switch {
	case !known || k.APIVersion != o.GetAPIVersion():
		return r, fmt.Errorf("this agent does not deliver %s of %s: upgrade it", r.kind, o.GetAPIVersion())
	case r.name == "" || strings.Contains(r.name, "/") || k.Namespaced != (r.namespace != ""):
		return r, fmt.Errorf("a %s needs a name, and a namespace if and only if its kind has one", r.kind)
	}
	return r, nil
}

func (c catalogue) path(r ref) string {
	return collection(c[r.kind], r.namespace) + "/" + r.name
}

// collection returns the API path for the objects of a kind in a namespace. If the namespace is empty, the path covers
// all namespaces.
func collection(k protocol.ObjectKind, namespace string) string {
	root := "/apis/" + k.APIVersion
	if k.APIVersion == "v1" {
		root = "/api/v1"
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + k.Resource
}
