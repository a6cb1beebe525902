// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenancy computes the objects that a project has in its members: namespaces, quota, limits, network policies
// and copies of Secrets.
//
// The package has no side effects and uses no client, context, clock or logger. Objects that depend on the member's
// namespaces are returned as templates. Package set expands the templates, both on the hub and in the agent.
package tenancy

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/set"
)

// Names of the objects in each namespace of a project.
const (
	// LimitRangeName is the name of the LimitRange that contains the defaults for containers.
	LimitRangeName = "drover-project"
	// NetworkPolicyName is the name of the NetworkPolicy of a project with networkIsolation.
	NetworkPolicyName = "drover-project"
)

// Labels of other tools that a project sets or reads.
const (
	podSecurityPrefix = "pod-security.kubernetes.io/"
	// headlampProject causes Headlamp to show the namespaces of a project as a Headlamp project across all clusters.
	headlampProject = "headlamp.dev/project-id"
	namespaceName   = "kubernetes.io/metadata.name"
)

// Content returns the objects of a project for each member, except the copies of Secrets. It omits the namespaces in
// spec.namespaces that are also in the map taken. These namespaces belong to another project in that member (see
// Claims).
func Content(p *v1.Project, taken map[string]string) (set.Content, error) {
	content := set.Content{
		PerNamespace: &set.PerNamespace{
			Project: p.Name, NamespaceLabels: namespaceLabels(p), Quota: quota(p.Spec),
		},
	}
	labels := set.Labels(set.ID(set.Project, p.Name))
	for _, name := range p.Spec.Namespaces {
		// the schema rejects reserved namespaces, but an older version of the schema may have accepted them
		if _, lost := taken[name]; !lost && !set.Reserved(name) {
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
			return set.Content{}, fmt.Errorf("compute project %s: %w", p.Name, err)
		}
		content.PerNamespace.Templates = append(content.PerNamespace.Templates, template)
	}
	return content, nil
}

// namespace returns a Namespace that is listed in the spec. The Namespace has the pod security labels from the start.
// It is not labeled as managed by Drover, because Drover does not own it and never deletes it.
func namespace(p *v1.Project, name string, labels map[string]string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace"}}
	o.SetName(name)
	set.AddLabels(o, map[string]string{v1.LabelProject: p.Name, v1.LabelSet: labels[v1.LabelSet]})
	set.AddLabels(o, namespaceLabels(p))
	return o
}

func namespaceLabels(p *v1.Project) map[string]string {
	labels := map[string]string{headlampProject: p.Name}
	if p.Spec.PodSecurity == "" {
		return labels
	}
	for _, mode := range []string{"enforce", "warn", "audit"} {
		labels[podSecurityPrefix+mode] = string(p.Spec.PodSecurity)
		labels[podSecurityPrefix+mode+"-version"] = "latest"
	}
	return labels
}

func quota(spec v1.ProjectSpec) *set.Quota {
	if len(spec.ResourceQuota) == 0 && len(spec.NamespaceDefaultResourceQuota) == 0 {
		return nil
	}
	return &set.Quota{Total: spec.ResourceQuota.DeepCopy(), Default: spec.NamespaceDefaultResourceQuota.DeepCopy()}
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

// networkPolicy returns a policy that allows connections to the project's pods from the project, from kube-system, and
// from namespaces that an administrator has labeled for ingress. kube-system is included because K3s and RKE2 run their
// ingress controllers there, and only cluster administrators run pods there. The policy does not restrict outgoing
// connections.
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

// toTemplate converts an object to a template. It removes the fields that only an API server sets.
func toTemplate(object runtime.Object, labels map[string]string) (set.Template, error) {
	o, err := set.Object(object)
	if err != nil {
		return set.Template{}, err
	}
	unstructured.RemoveNestedField(o.Object, "status")
	set.AddLabels(o, labels)
	return set.Template{Object: o}, nil
}

// Claims returns, for each project of a member, the namespaces that the project lists but that belong to another
// project. It also returns the name of that other project. A namespace belongs to the oldest project that lists it. If
// several projects have the same age, it belongs to the project whose name sorts first. The result does not depend on
// the order of the projects.
func Claims(projects []*v1.Project) map[string]map[string]string {
	ordered := slices.SortedFunc(slices.Values(projects), func(a, b *v1.Project) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	owners := map[string]string{}
	taken := map[string]map[string]string{}
	for _, p := range ordered {
		for _, namespace := range p.Spec.Namespaces {
			owner, claimed := owners[namespace]
			switch {
			case !claimed:
				owners[namespace] = p.Name
			case owner != p.Name:
				if taken[p.Name] == nil {
					taken[p.Name] = map[string]string{}
				}
				taken[p.Name][namespace] = owner
			}
		}
	}
	return taken
}
