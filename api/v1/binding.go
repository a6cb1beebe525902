// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Binding is a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding.
// +kubebuilder:object:generate=false
type Binding interface {
	metav1.Object
	runtime.Object
	// RoleTemplates returns the name of the role template that the binding grants, as a slice of length 1.
	RoleTemplates() []string
	// Principal returns the user or group that receives the grant.
	Principal() Subject
	// Expires returns the time when the grant expires, or nil if it never expires.
	Expires() *metav1.Time
	// Delivery returns the delivery status of the binding.
	Delivery() *DeliveryStatus
}

// RoleTemplates returns the names of all role templates whose rights members may be using to apply the objects. Until
// the current revision is complete, some members can still have an earlier revision with a different role template.
func (b *Baseline) RoleTemplates() []string {
	names := []string{b.Spec.RoleTemplateName}
	for _, h := range b.Status.History {
		if h.RoleTemplateName != "" && !slices.Contains(names, h.RoleTemplateName) {
			names = append(names, h.RoleTemplateName)
		}
		if h.Revision == b.Status.CompleteRevision {
			break
		}
	}
	return names
}

// RoleTemplates implements Binding.
func (b *ClusterRoleTemplateBinding) RoleTemplates() []string {
	return []string{b.Spec.RoleTemplateName}
}

// Principal implements Binding.
func (b *ClusterRoleTemplateBinding) Principal() Subject { return b.Spec.Subject }

// Expires implements Binding.
func (b *ClusterRoleTemplateBinding) Expires() *metav1.Time { return b.Spec.ExpiresAt }

// Delivery implements Binding.
func (b *ClusterRoleTemplateBinding) Delivery() *DeliveryStatus { return &b.Status }

// RoleTemplates implements Binding.
func (b *ProjectRoleTemplateBinding) RoleTemplates() []string {
	return []string{b.Spec.RoleTemplateName}
}

// Principal implements Binding.
func (b *ProjectRoleTemplateBinding) Principal() Subject { return b.Spec.Subject }

// Expires implements Binding.
func (b *ProjectRoleTemplateBinding) Expires() *metav1.Time { return b.Spec.ExpiresAt }

// Delivery implements Binding.
func (b *ProjectRoleTemplateBinding) Delivery() *DeliveryStatus { return &b.Status }
