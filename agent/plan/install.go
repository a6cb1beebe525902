// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/config/crd"
	"github.com/drover-dev/drover/internal/footprint"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// accountName is the ServiceAccount of plans' pods, and the name of its rights.
	accountName = footprint.PlanAccount

	pathSpace   = pathNamespaces + "/" + v1.PlansNamespace
	pathAccount = pathSpace + "/serviceaccounts/" + accountName
	pathCRD     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + footprint.PlanSchema
	pathRBAC    = "/apis/rbac.authorization.k8s.io/v1"
	pathRole    = pathRBAC + "/namespaces/" + v1.PlansNamespace + "/roles/" + accountName
	pathGrant   = pathRBAC + "/namespaces/" + v1.PlansNamespace + "/rolebindings/" + accountName
	pathNodeUse = pathRBAC + "/clusterroles/" + accountName
	pathNodeFor = pathRBAC + "/clusterrolebindings/" + accountName
)

// labels returns the labels of what the agent installs.
func labels() map[string]string { return map[string]string{v1.LabelManagedBy: v1.ManagedBy} }

// install applies what plans need in the member, and checks that Plans can be read.
func (l *leadership) install(ctx context.Context) error {
	if err := l.installSchema(ctx); err != nil {
		return err
	}
	if err := l.applyPrerequisites(ctx); err != nil {
		return err
	}
	return l.options.Client.Get().AbsPath(pathPlans).Param("limit", "1").Do(ctx).Error()
}

// applyPrerequisites applies the namespace of plans and the account of their pods.
func (l *leadership) applyPrerequisites(ctx context.Context) error {
	for _, o := range prerequisites() {
		raw, err := json.Marshal(o.object)
		if err != nil {
			return fmt.Errorf("encode %s: %w", o.path, err)
		}
		applied, _, err := l.options.Objects.Apply(ctx, o.path, fieldManager, true, raw)
		if err != nil {
			return err
		}
		if o.path != pathSpace {
			continue
		}
		if err := l.space.wrote(&corev1.Namespace{ObjectMeta: applied.ObjectMeta}); err != nil {
			return err
		}
	}
	return nil
}

// installSchema applies the CustomResourceDefinition, unless it is not ours: a hub that is its own member has installed it.
func (l *leadership) installSchema(ctx context.Context) error {
	there, err := l.options.Objects.Meta(ctx, pathCRD)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil && there.Labels[v1.LabelManagedBy] != v1.ManagedBy {
		return nil
	}
	var schema map[string]any
	if err := yaml.Unmarshal(crd.Plans, &schema); err != nil {
		return fmt.Errorf("read the schema of Plans: %w", err)
	}
	metadata, _ := schema["metadata"].(map[string]any)
	metadata["labels"] = labels()
	raw, err := json.Marshal(schema)
	if err != nil {
		return fmt.Errorf("encode the schema of Plans: %w", err)
	}
	_, _, err = l.options.Objects.Apply(ctx, pathCRD, fieldManager, true, raw)
	return err
}

// piece is an object at a path.
type piece struct {
	path   string
	object any
}

// prerequisites returns the namespace of plans and the account of their pods. The account may read Plans and Nodes, for images that wait for other plans.
func prerequisites() []piece {
	const group = rbacv1.GroupName + "/v1"
	read := []string{"get", "list", "watch"}
	here := metav1.ObjectMeta{Name: accountName, Namespace: v1.PlansNamespace, Labels: labels()}
	everywhere := metav1.ObjectMeta{Name: accountName, Labels: labels()}
	account := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: accountName, Namespace: v1.PlansNamespace}}
	space := metav1.ObjectMeta{Name: v1.PlansNamespace, Labels: labels()}
	space.Labels["pod-security.kubernetes.io/enforce"] = "privileged"
	return []piece{
		{pathSpace, &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: space}},
		{pathAccount, &corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: here}},
		{pathRole, &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "Role"}, ObjectMeta: here, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1.Group}, Resources: []string{"plans"}, Verbs: read},
		}}},
		{pathGrant, &rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "RoleBinding"}, ObjectMeta: here, Subjects: account,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: accountName},
		}},
		{pathNodeUse, &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "ClusterRole"}, ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: read},
		}}},
		{pathNodeFor, &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "ClusterRoleBinding"}, ObjectMeta: everywhere, Subjects: account,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: accountName},
		}},
	}
}

// retireTimeout bounds the release of nodes.
const retireTimeout = 20 * time.Second

// retirement is a request to leave the member.
type retirement struct{ result chan leaveResult }

type leaveResult struct {
	remaining []string
	err       error
}

// retire makes the goroutine of the leadership leave the member.
func (l *leadership) retire(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, retireTimeout)
	defer cancel()
	r := retirement{result: make(chan leaveResult, 1)}
	select {
	case l.retired <- r:
	case <-l.publisher.ended:
		return nil, ErrNotLeading
	case <-ctx.Done():
		return nil, fmt.Errorf("retire from plans: %w", ctx.Err())
	}
	select {
	case o := <-r.result:
		return o.remaining, o.err
	case <-ctx.Done():
		return nil, fmt.Errorf("retire from plans: %w: try again", ctx.Err())
	}
}

// leave releases all nodes and removes what install made, unless a Plan is left that is not from a set. No Plan is run any more.
func (l *leadership) leave(ctx context.Context) leaveResult {
	l.leaving = true
	if !l.watching && !l.watch(ctx) {
		return leaveResult{err: ErrNotLeading}
	}
	l.releases = backoff{}
	l.release(ctx, &deadline{})
	if busy := rollout.Orphans(l.gather().Nodes, nil); len(busy) > 0 {
		return leaveResult{remaining: []string{fmt.Sprintf("Node %s: plan %s is still at work on it", busy[0].Node, busy[0].Job.Plan)}}
	}
	plans := &v1.PlanList{}
	if err := l.options.Client.Get().AbsPath(pathPlans).Do(ctx).Into(plans); err != nil {
		return leaveResult{err: fmt.Errorf("list plans: %w", err)}
	}
	for i := range plans.Items {
		if plans.Items[i].Labels[v1.LabelSet] == "" {
			return leaveResult{} // a user's
		}
	}
	return leaveResult{remaining: l.uninstall(ctx)}
}

// uninstall removes what install made, and returns what could not be removed.
func (l *leadership) uninstall(ctx context.Context) []string {
	paths := []string{pathNodeFor, pathNodeUse, pathSpace}
	there, err := l.options.Objects.Meta(ctx, pathCRD)
	if err == nil && there.Labels[v1.LabelManagedBy] == v1.ManagedBy {
		paths = append(paths, pathCRD)
	}
	var remaining []string
	for _, path := range paths {
		if err := l.member.remove(ctx, path, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			remaining = append(remaining, err.Error())
		}
	}
	return remaining
}
