// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Binding is a ClusterRoleTemplateBinding or a ProjectRoleTemplateBinding.
// +kubebuilder:object:generate=false
type Binding interface {
	metav1.Object
	runtime.Object
	// RoleTemplate returns the name of the role template that the binding grants.
	RoleTemplate() string
	// Principal returns the user or group that receives the grant.
	Principal() Subject
	// Expires returns the time when the grant expires, or nil if it never expires.
	Expires() *metav1.Time
	// Delivery returns the delivery status of the binding.
	Delivery() *DeliveryStatus
}

// RoleTemplate returns the name of the role template whose rights are used to apply the objects.
func (b *Baseline) RoleTemplate() string { return b.Spec.RoleTemplateName }

// RoleTemplate implements Binding.
func (b *ClusterRoleTemplateBinding) RoleTemplate() string { return b.Spec.RoleTemplateName }

// Principal implements Binding.
func (b *ClusterRoleTemplateBinding) Principal() Subject { return b.Spec.Subject }

// Expires implements Binding.
func (b *ClusterRoleTemplateBinding) Expires() *metav1.Time { return b.Spec.ExpiresAt }

// Delivery implements Binding.
func (b *ClusterRoleTemplateBinding) Delivery() *DeliveryStatus { return &b.Status }

// RoleTemplate implements Binding.
func (b *ProjectRoleTemplateBinding) RoleTemplate() string { return b.Spec.RoleTemplateName }

// Principal implements Binding.
func (b *ProjectRoleTemplateBinding) Principal() Subject { return b.Spec.Subject }

// Expires implements Binding.
func (b *ProjectRoleTemplateBinding) Expires() *metav1.Time { return b.Spec.ExpiresAt }

// Delivery implements Binding.
func (b *ProjectRoleTemplateBinding) Delivery() *DeliveryStatus { return &b.Status }
