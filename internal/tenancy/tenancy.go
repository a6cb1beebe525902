// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenancy turns a project into what its members hold: namespaces, quota, limits, network policies and copies of secrets.
//
// It is pure: no client, no context, no clock, no logger. What depends on the namespaces that a member has comes out as
// templates, which package expansion expands on either side.
package tenancy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/expansion"
)

// Names of what each namespace of a project gets.
const (
	// LimitRangeName is the LimitRange with the defaults of containers.
	LimitRangeName = "drover-project"
	// NetworkPolicyName is the NetworkPolicy of a project with networkIsolation.
	NetworkPolicyName = "drover-project"
)

// Labels of Kubernetes that a project sets or reads.
const (
	podSecurityPrefix = "pod-security.kubernetes.io/"
	namespaceName     = "kubernetes.io/metadata.name"
)

// ProjectSet is the id of the set of a Project.
func ProjectSet(project string) string { return "project/" + project }

// SecretsSet is the id of the set with the copies of a Project's secrets.
func SecretsSet(project string) string { return "secrets/" + project }

// Content is what each member of a project holds, apart from secrets. taken are namespaces of spec.namespaces that belong to
// another project in that member (see Claims): they are left out.
func Content(p *v1.Project, taken map[string]string) (expansion.Content, error) {
	content := expansion.Content{
		PerNamespace: &expansion.PerNamespace{
			Project: p.Name, NamespaceLabels: podSecurityLabels(p.Spec.PodSecurity), Quota: quota(p.Spec),
		},
	}
	labels := expansion.Labels(ProjectSet(p.Name))
	for _, name := range p.Spec.Namespaces {
		if _, lost := taken[name]; !lost && !expansion.Reserved(name) { // the schema refuses these; it may have been another once
			content.Objects = append(content.Objects, namespace(p, name, labels))
		}
	}
	var objects []runtime.Object
	if limits := limitRange(p.Spec.ContainerDefaults); limits != nil {
		objects = append(objects, limits)
	}
	if p.Spec.NetworkIsolation == v1.IsolationProject {
		objects = append(objects, networkPolicy(p.Name))
	}
	for _, object := range objects {
		template, err := toTemplate(object, labels)
		if err != nil {
			return expansion.Content{}, fmt.Errorf("compute project %s: %w", p.Name, err)
		}
		content.PerNamespace.Templates = append(content.PerNamespace.Templates, template)
	}
	return content, nil
}

// namespace is a Namespace that the spec lists. It has the labels of pod security as well, so that it is never there without
// them; it has no "managed-by", because Drover joins it rather than owning it, and never deletes it.
func namespace(p *v1.Project, name string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	o.SetName(name)
	expansion.AddLabels(o, map[string]string{v1.LabelProject: p.Name, v1.LabelSet: labels[v1.LabelSet]})
	expansion.AddLabels(o, podSecurityLabels(p.Spec.PodSecurity))
	return o
}

func podSecurityLabels(level v1.PodSecurity) map[string]string {
	if level == "" {
		return nil
	}
	labels := map[string]string{}
	for _, mode := range []string{"enforce", "warn", "audit"} {
		labels[podSecurityPrefix+mode] = string(level)
		labels[podSecurityPrefix+mode+"-version"] = "latest"
	}
	return labels
}

func quota(spec v1.ProjectSpec) *expansion.Quota {
	if len(spec.ResourceQuota) == 0 && len(spec.NamespaceDefaultResourceQuota) == 0 {
		return nil
	}
	return &expansion.Quota{Total: spec.ResourceQuota.DeepCopy(), Default: spec.NamespaceDefaultResourceQuota.DeepCopy()}
}

func limitRange(defaults *v1.ContainerDefaults) *corev1.LimitRange {
	if defaults == nil || len(defaults.Requests) == 0 && len(defaults.Limits) == 0 {
		return nil
	}
	return &corev1.LimitRange{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "LimitRange"},
		ObjectMeta: metav1.ObjectMeta{Name: LimitRangeName},
		Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
			Type: corev1.LimitTypeContainer, DefaultRequest: defaults.Requests.DeepCopy(), Default: defaults.Limits.DeepCopy(),
		}}},
	}
}

// networkPolicy lets into a namespace of the project only what comes from the project, from kube-system (where K3s and RKE2 have
// their ingress controllers, and only administrators of the cluster run pods) and from namespaces that an administrator has
// labelled for ingress. What goes out is not limited, DNS included.
func networkPolicy(project string) *networkingv1.NetworkPolicy {
	from := func(label, value string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{label: value}}}
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: NetworkPolicyName},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
				from(v1.LabelProject, project), from(namespaceName, metav1.NamespaceSystem), from(v1.LabelIngress, "true"),
			}}},
		},
	}
}

// toTemplate makes a template of an object, without what only an API server fills in.
func toTemplate(object runtime.Object, labels map[string]string) (expansion.Template, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return expansion.Template{}, fmt.Errorf("convert %T: %w", object, err)
	}
	o := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	unstructured.RemoveNestedField(o.Object, "status")
	expansion.AddLabels(o, labels)
	return expansion.Template{Object: o}, nil
}
