// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

// QuotaName is the name of the ResourceQuota in each namespace of a project.
const QuotaName = "drover-project"

// RolePrefix is the prefix of the name of each ClusterRole in a set. It is followed by the name of the role template.
const RolePrefix = "drover:"

// PerNamespace is the content for each namespace of a project.
type PerNamespace struct {
	// Project is the name of the project. The project's namespaces in the member have the label
	// cluster.drover.dev/project=<Project>.
	Project string `json:"project"`
	// NamespaceLabels are set on the namespaces themselves, and are removed from a namespace when it leaves the
	// project.
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
	// Templates are templates of objects for each namespace.
	Templates []Template `json:"templates,omitempty"`
	// Quota is divided among the namespaces.
	Quota *Quota `json:"quota,omitempty"`
}

// Template is an object without metadata.namespace. Expand sets the namespace and adds labels.
type Template struct {
	Object *unstructured.Unstructured `json:"object"`
	// Except lists the namespaces that do not get the object.
	Except []string `json:"except,omitempty"`
}

// Namespace is one namespace of the project in the member.
type Namespace struct {
	Name string
	// UID is the UID of the Namespace that was read. If this Namespace has since been deleted, a request that applies
	// the labels fails with a conflict, because it contains the UID. Without the UID, the request would recreate the
	// Namespace.
	UID types.UID
	// Created is the creation time from the API server. Namespaces are ordered by this time, so a new namespace does
	// not change the order of existing namespaces.
	Created metav1.Time
	// Terminating is true while the namespace is being deleted. Such a namespace keeps its share of the quota until it
	// is gone, and does not receive new objects.
	Terminating bool
	// Held is the share that the namespace received last, or nil if it has not received any.
	Held corev1.ResourceList
}

// Result is a set's content for one member.
type Result struct {
	// Objects are in a stable order: first the complete objects, and then, for each namespace, the Namespace's labels, the
	// quota, and the templates in the given order. An object of the Namespace kind is merged into the existing object.
	// Drover never deletes a Namespace.
	Objects []*unstructured.Unstructured
	// Short lists the namespaces that got less quota than the default, ordered by name.
	Short []string
	// Spent lists the namespaces in Short that got no share of at least one resource.
	Spent []string
}

// Reserved reports whether a namespace belongs to the cluster itself. Such a namespace is never part of a project,
// regardless of its labels.
func Reserved(namespace string) bool {
	return namespace == metav1.NamespaceDefault || strings.HasPrefix(namespace, "kube-") ||
		strings.HasPrefix(namespace, "drover-")
}

// Expand returns all objects of a set. The namespaces argument contains the namespaces in the member whose labels
// assign them to the project, in any order. Expand omits reserved namespaces. It adds the given labels to the objects
// that it creates. These labels must be the Labels of the set. No object appears twice.
func (c Content) Expand(namespaces []Namespace, labels map[string]string) (Result, error) {
	out := Result{Objects: slices.Clone(c.Objects)}
	p := c.PerNamespace
	if p == nil {
		return out, nil
	}
	if err := p.check(); err != nil {
		return Result{}, err
	}
	inside := slices.SortedFunc(slices.Values(namespaces), func(a, b Namespace) int { return cmp.Compare(a.Name, b.Name) })
	inside = slices.DeleteFunc(inside, func(ns Namespace) bool { return Reserved(ns.Name) })
	shares := p.Quota.Divide(inside)
	for _, ns := range inside {
		if ns.Terminating {
			continue
		}
		// If the set's objects include the Namespace, it already has these labels. A second object for it would remove its
		// other labels.
		if len(p.NamespaceLabels) > 0 && !c.has("Namespace", ns.Name) {
			out.Objects = append(out.Objects, labelled(ns, p.NamespaceLabels))
		}
		if share, ok := shares[ns.Name]; ok {
			out.Objects = append(out.Objects, quotaObject(ns.Name, share.Hard, labels))
			if share.Short {
				out.Short = append(out.Short, ns.Name)
			}
			if share.Spent {
				out.Spent = append(out.Spent, ns.Name)
			}
		}
		out.Objects = append(out.Objects, p.instances(ns.Name, labels)...)
	}
	return out, nil
}

// check returns an error if a template has no kind or no name, or already has a namespace.
func (p *PerNamespace) check() error {
	for i := range p.Templates {
		if o := p.Templates[i].Object; o == nil || o.GetNamespace() != "" || o.GetKind() == "" || o.GetName() == "" {
			return fmt.Errorf("expand templates of project %s: template %d has no kind or name, or names a namespace", p.Project,
				i)
		}
	}
	return nil
}

func (c Content) has(kind, name string) bool {
	return slices.ContainsFunc(c.Objects,
		func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
}

func (p *PerNamespace) instances(namespace string, labels map[string]string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, t := range p.Templates {
		if slices.Contains(t.Except, namespace) {
			continue
		}
		o := t.Object.DeepCopy()
		o.SetNamespace(namespace)
		AddLabels(o, labels)
		out = append(out, o)
	}
	return out
}

// labelled returns Drover's part of a Namespace that a user created. This part contains neither the project's label nor
// a label that says that Drover manages the Namespace.
func labelled(ns Namespace, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	o.SetName(ns.Name)
	o.SetUID(ns.UID)
	AddLabels(o, labels)
	return o
}

func quotaObject(namespace string, hard corev1.ResourceList, labels map[string]string) *unstructured.Unstructured {
	amounts := make(map[string]any, len(hard))
	for key, amount := range hard {
		amounts[string(key)] = amount.String()
	}
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ResourceQuota", "spec": map[string]any{"hard": amounts},
	}}
	o.SetNamespace(namespace)
	o.SetName(QuotaName)
	AddLabels(o, labels)
	return o
}

// AddLabels adds labels to an object. It overwrites existing values of these labels.
func AddLabels(o metav1.Object, labels map[string]string) {
	if len(labels) == 0 {
		return
	}
	all := make(map[string]string, len(labels)+len(o.GetLabels()))
	maps.Copy(all, o.GetLabels())
	maps.Copy(all, labels)
	o.SetLabels(all)
}

// Labels returns the labels that every object of the set with the given ID has.
func Labels(id string) map[string]string {
	return map[string]string{v1.LabelManagedBy: v1.ManagedBy, v1.LabelSet: Label(id)}
}
