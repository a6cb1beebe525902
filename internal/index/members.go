// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Problem is the reason why an object targets no member, or none of the members that it refers to.
type Problem struct {
	// Reason is the reason of the Ready condition.
	Reason string
	// Message tells the user what to do.
	Message string
	// Stalled is true if manual action is required.
	Stalled bool
}

// Members returns the Clusters that a target in a namespace selects, without Clusters that are being deleted. If there
// is a problem, it returns no members. A selector that selects nothing is not a problem.
func Members(
	ctx context.Context, reader client.Reader, namespace string, t v1.ClusterTarget,
) ([]types.NamespacedName, *Problem, error) {
	if t.ClusterSelector == nil {
		return named(ctx, reader, types.NamespacedName{Namespace: namespace, Name: t.ClusterName})
	}
	selector, err := metav1.LabelSelectorAsSelector(t.ClusterSelector)
	if err != nil {
		return nil, &Problem{
			Reason:  v1.ReasonInvalidSelector,
			Message: "The clusterSelector is not valid: " + err.Error(), Stalled: true,
		}, nil
	}
	var clusters v1.ClusterList
	if err := reader.List(ctx, &clusters, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: selector}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list clusters of %s: %w", namespace, err)
	}
	members := make([]types.NamespacedName, 0, len(clusters.Items))
	for i := range clusters.Items {
		if clusters.Items[i].DeletionTimestamp.IsZero() {
			members = append(members, client.ObjectKeyFromObject(&clusters.Items[i]))
		}
	}
	return members, nil, nil
}

func named(
	ctx context.Context, reader client.Reader, name types.NamespacedName,
) ([]types.NamespacedName, *Problem, error) {
	cluster := &v1.Cluster{}
	err := reader.Get(ctx, name, cluster)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !cluster.DeletionTimestamp.IsZero():
		return nil, &Problem{
			Reason:  v1.ReasonClusterNotFound,
			Message: fmt.Sprintf("Cluster %s does not exist in namespace %s", name.Name, name.Namespace),
		}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read cluster %s: %w", name, err)
	}
	return []types.NamespacedName{name}, nil, nil
}

// ProjectMembers returns the members of the project in a binding.
func ProjectMembers(
	ctx context.Context, reader client.Reader, b *v1.ProjectRoleTemplateBinding,
) ([]types.NamespacedName, *Problem, error) {
	project := &v1.Project{}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ProjectName}
	err := reader.Get(ctx, name, project)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !project.DeletionTimestamp.IsZero():
		return nil, &Problem{
			Reason:  v1.ReasonProjectNotFound,
			Message: fmt.Sprintf("Project %s does not exist in namespace %s", name.Name, name.Namespace),
		}, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read project %s: %w", name, err)
	}
	return Members(ctx, reader, b.Namespace, project.Spec.ClusterTarget)
}
