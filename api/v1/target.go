// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Targeted is implemented by kinds whose objects apply to members. Objects of these kinds are indexed by Cluster.
// +kubebuilder:object:generate=false
type Targeted interface {
	Target() ClusterTarget
}

// Target implements Targeted.
func (b *ClusterRoleTemplateBinding) Target() ClusterTarget { return b.Spec.ClusterTarget }

// Target implements Targeted.
func (p *Project) Target() ClusterTarget { return p.Spec.ClusterTarget }

// Target implements Targeted.
func (b *Baseline) Target() ClusterTarget { return b.Spec.ClusterTarget }

// Target implements Targeted.
func (p *Plan) Target() ClusterTarget { return p.Spec.Target() }

// Selects reports whether a target includes the Cluster with the given name and labels. A target with neither a name
// nor a selector, or with both, includes no Cluster. Selects returns an error for an invalid selector.
func (t ClusterTarget) Selects(name string, has map[string]string) (bool, error) {
	if t.ClusterSelector == nil {
		return t.ClusterName != "" && t.ClusterName == name, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(t.ClusterSelector)
	if err != nil {
		return false, fmt.Errorf("read clusterSelector: %w", err)
	}
	return t.ClusterName == "" && selector.Matches(labels.Set(has)), nil
}

// Target returns the members that a Plan applies to. It returns an empty target for a Plan that applies to its own
// cluster.
func (t PlanTarget) Target() ClusterTarget {
	return ClusterTarget{ClusterName: t.ClusterName, ClusterSelector: t.ClusterSelector}
}
