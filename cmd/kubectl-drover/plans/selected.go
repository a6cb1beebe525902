// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// listSelected lists the Clusters of the workspace that a plan selects.
func listSelected(ctx context.Context, h *cli.Hub, target *v1.PlanTarget) (selected, all []v1.Cluster, err error) {
	var clusters v1.ClusterList
	if err := h.List(ctx, &clusters, h.InWorkspace()); err != nil {
		return nil, nil, fmt.Errorf("list clusters of %s: %w", h.Workspace, err)
	}
	selects := func(c *v1.Cluster) bool { return c.Name == target.ClusterName }
	if target.ClusterSelector != nil {
		selector, err := metav1.LabelSelectorAsSelector(target.ClusterSelector)
		if err != nil {
			return nil, nil, fmt.Errorf("read clusterSelector: %w", err)
		}
		selects = func(c *v1.Cluster) bool { return selector.Matches(labels.Set(c.Labels)) }
	}
	selected = slices.DeleteFunc(slices.Clone(clusters.Items), func(c v1.Cluster) bool { return !selects(&c) })
	return selected, clusters.Items, nil
}
