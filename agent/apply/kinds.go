// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/drover-dev/drover/internal/footprint"
)

// kind is a kind of object that sets may hold.
type kind struct {
	name       string // as in ref
	apiVersion string
	resource   string
	namespaced bool
}

const (
	kindNamespace = "Namespace"
	kindQuota     = "ResourceQuota"
	kindSecret    = "Secret"

	kindClusterRole        = "ClusterRole"
	kindClusterRoleBinding = "ClusterRoleBinding"
	kindRoleBinding        = "RoleBinding"
)

// kinds returns the kinds that a set may hold. The agent's ClusterRole allows them, and the agent watches them. Other kinds are not
// delivered, whatever the hub sends.
func kinds() []kind {
	var all []kind
	for _, k := range footprint.SetKinds() {
		all = append(all, kind{k.Name, k.APIVersion, k.Resource, k.Namespaced})
	}
	return all
}

// catalogue finds a kind by its name.
type catalogue map[string]kind

func newCatalogue() catalogue {
	c := catalogue{}
	for _, k := range kinds() {
		c[k.name] = k
	}
	return c
}

// ref identifies an object.
type ref struct{ kind, namespace, name string }

// String returns the name of the object in a state.
func (r ref) String() string {
	if r.namespace == "" {
		return r.kind + " " + r.name
	}
	return r.kind + " " + r.namespace + "/" + r.name
}

// refOf returns the ref of an object, or an error if the object cannot be delivered.
func (c catalogue) refOf(o *unstructured.Unstructured) (ref, error) {
	r := ref{kind: o.GetKind(), namespace: o.GetNamespace(), name: o.GetName()}
	k, known := c[r.kind]
	switch {
	case !known || k.apiVersion != o.GetAPIVersion():
		return r, fmt.Errorf("this agent does not deliver %s of %s: upgrade it", r.kind, o.GetAPIVersion())
	case r.name == "" || strings.Contains(r.name, "/") || k.namespaced != (r.namespace != ""):
		return r, fmt.Errorf("a %s needs a name, and a namespace if and only if its kind has one", r.kind)
	}
	return r, nil
}

// path returns the API path of an object.
func (c catalogue) path(r ref) string {
	return c[r.kind].collection(r.namespace) + "/" + r.name
}

// collection returns the API path of all objects of the kind, or of those in a namespace.
func (k kind) collection(namespace string) string {
	root := "/apis/" + k.apiVersion
	if k.apiVersion == "v1" {
		root = "/api/v1"
	}
	if namespace != "" {
		root += "/namespaces/" + namespace
	}
	return root + "/" + k.resource
}
