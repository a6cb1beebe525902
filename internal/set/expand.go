// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
)

// QuotaName is the name of the ResourceQuota that a namespace of a project gets.
const QuotaName = "drover-project"

// RolePrefix begins the name of each ClusterRole that a set brings; a role template's name follows.
const RolePrefix = "drover:"

// PerNamespace is what each namespace of a project gets.
type PerNamespace struct {
	// Project whose namespaces these are: those labelled cluster.drover.dev/project=<Project> in the member.
	Project string `json:"project"`
	// NamespaceLabels are set on the namespaces themselves, and taken away when a namespace leaves.
	NamespaceLabels map[string]string `json:"namespaceLabels,omitempty"`
	// Templates of objects that each namespace gets.
	Templates []Template `json:"templates,omitempty"`
	// Quota that is divided over the namespaces.
	Quota *Quota `json:"quota,omitempty"`
}

// Template is an object without metadata.namespace, which Expand fills in and nothing else.
type Template struct {
	Object *unstructured.Unstructured `json:"object"`
	// Except are namespaces that do not get it.
	Except []string `json:"except,omitempty"`
}

// Namespace is one namespace of the project in the member.
type Namespace struct {
	Name string
	// UID holds the labels of a Namespace to the one that was seen: applied to one that has gone since, they are a
	// conflict and do not make it anew.
	UID types.UID
	// Created is the time that its API server gave it. Order by it does not change when a namespace is added.
	Created metav1.Time
	// Terminating namespaces hold their share of the quota until they are gone, and get nothing new.
	Terminating bool
	// Held is the share that the namespace was last given; nil for one that has none yet.
	Held corev1.ResourceList
}

// Result is what a member is to have of a set.
type Result struct {
	// Objects in a stable order: those that are whole, then by namespace the labels of the Namespace, the quota and the
	// templates as given. An object of kind Namespace is merged into what is there; Drover never deletes one.
	Objects []*unstructured.Unstructured
	// Short are the namespaces that got less quota than the default, in the order of their names.
	Short []string
	// Spent are those of them that got nothing of some resource.
	Spent []string
}

// Reserved reports whether a namespace belongs to the cluster and is never part of a project, whatever its labels say.
func Reserved(namespace string) bool {
	return namespace == metav1.NamespaceDefault || strings.HasPrefix(namespace, "kube-") ||
		strings.HasPrefix(namespace, "drover-")
}

// Expand computes all objects of a set. namespaces are those that the member's labels put into the project, in any
// order; reserved ones are left out. labels go onto what is made here: Labels of the set. No object comes twice.
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
		// A Namespace that is among the objects has these labels already; a second one would take the first's other labels
		// away.
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

// check makes sure that Expand fills in the namespace and nothing else.
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

// labelled is the part of a Namespace that Drover manages where a person made it: neither its project nor that it is
// ours.
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

// AddLabels adds labels to those that the object has; where both name one, that of labels wins.
func AddLabels(o metav1.Object, labels map[string]string) {
	if len(labels) == 0 {
		return
	}
	all := make(map[string]string, len(labels)+len(o.GetLabels()))
	for key, value := range o.GetLabels() {
		all[key] = value
	}
	for key, value := range labels {
		all[key] = value
	}
	o.SetLabels(all)
}

// Labels are on every object of the set of that id.
func Labels(id string) map[string]string {
	return map[string]string{v1.LabelManagedBy: v1.ManagedBy, v1.LabelSet: Label(id)}
}
