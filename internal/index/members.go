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

// Problem explains why the members that an object targets cannot be determined.
type Problem struct {
	// Reason is the reason in the Ready condition.
	Reason string
	// Message tells the user what to do.
	Message string
	// Stalled is true if manual action is required.
	Stalled bool
}

// Members returns the Clusters in a namespace that a target selects, except Clusters that are being deleted. If there
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

// MembersToKeep is like Members, but it returns all Clusters in the namespace if the selector is invalid. Any of these
// Clusters may have been selected earlier, and then keeps its objects.
func MembersToKeep(
	ctx context.Context, reader client.Reader, namespace string, t v1.ClusterTarget,
) ([]types.NamespacedName, *Problem, error) {
	members, problem, err := Members(ctx, reader, namespace, t)
	if problem != nil && problem.Reason == v1.ReasonInvalidSelector {
		everything := v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}
		members, _, err = Members(ctx, reader, namespace, everything)
	}
	return members, problem, err
}

func named(
	ctx context.Context, reader client.Reader, name types.NamespacedName,
) ([]types.NamespacedName, *Problem, error) {
	problem, err := missing(ctx, reader, name, "Cluster", &v1.Cluster{}, v1.ReasonClusterNotFound)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	return []types.NamespacedName{name}, nil, nil
}

// ProjectMembers returns the members that a binding's project targets.
func ProjectMembers(
	ctx context.Context, reader client.Reader, b *v1.ProjectRoleTemplateBinding,
) ([]types.NamespacedName, *Problem, error) {
	project := &v1.Project{}
	name := types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ProjectName}
	problem, err := missing(ctx, reader, name, "Project", project, v1.ReasonProjectNotFound)
	if problem != nil || err != nil {
		return nil, problem, err
	}
	return Members(ctx, reader, b.Namespace, project.Spec.ClusterTarget)
}

// missing reads an object. If the object does not exist or is being deleted, it returns a problem with the given
// reason.
func missing(
	ctx context.Context, reader client.Reader, name types.NamespacedName, kind string, object client.Object, reason string,
) (*Problem, error) {
	err := reader.Get(ctx, name, object)
	switch {
	case apierrors.IsNotFound(err) || err == nil && !object.GetDeletionTimestamp().IsZero():
		message := fmt.Sprintf("%s %s does not exist in namespace %s", kind, name.Name, name.Namespace)
		return &Problem{Reason: reason, Message: message}, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s: %w", kind, name, err)
	}
	return nil, nil
}
