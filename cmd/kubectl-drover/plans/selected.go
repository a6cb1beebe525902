// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
)

// selectClusters removes the Clusters that a plan does not select, so that a preview does not mention them. If the plan
// selects none, selectClusters keeps all Clusters, and the simulation reports that the plan selects none.
func selectClusters(all *v1.ClusterList, target *v1.PlanTarget) error {
	selects := func(c *v1.Cluster) bool { return c.Name == target.ClusterName }
	if target.ClusterSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(target.ClusterSelector)
		if err != nil {
			return fmt.Errorf("read clusterSelector: %w", err)
		}
		selects = func(c *v1.Cluster) bool { return selector.Matches(labels.Set(c.Labels)) }
	}
	selected := slices.DeleteFunc(slices.Clone(all.Items), func(c v1.Cluster) bool { return !selects(&c) })
	if len(selected) > 0 {
		all.Items = selected
	}
	return nil
}
