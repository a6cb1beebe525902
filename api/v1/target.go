// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Targeted is an object that names the members that it is for. The index by Cluster has the objects of all such kinds.
// +kubebuilder:object:generate=false
type Targeted interface {
	Target() ClusterTarget
}

// Target implements Targeted.
func (b *ClusterRoleTemplateBinding) Target() ClusterTarget { return b.Spec.ClusterTarget }

// Target implements Targeted.
func (p *Project) Target() ClusterTarget { return p.Spec.ClusterTarget }

// Target implements Targeted.
func (p *Plan) Target() ClusterTarget { return p.Spec.Target() }

// Selects reports whether a target is for the Cluster with that name and those labels. A target with neither name nor
// selector, or with both, is for none. It fails for a selector that cannot be used.
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

// Target returns the members that a Plan is for. It is empty for a Plan that is for the cluster that it lives in.
func (t PlanTarget) Target() ClusterTarget {
	return ClusterTarget{ClusterName: t.ClusterName, ClusterSelector: t.ClusterSelector}
}
