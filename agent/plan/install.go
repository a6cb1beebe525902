// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/agent/leader"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// accountName is the name of the ServiceAccount for the pods of plans, and of the roles and bindings of this
	// account.
	accountName = protocol.PlanAccount

	// annotationSchema is an annotation on the CustomResourceDefinition of Plans. Its value is the schemaMark of the
	// version that the agent last applied.
	annotationSchema = "plans." + v1.Group + "/schema"

	pathSpace   = pathNamespaces + "/" + v1.PlansNamespace
	pathAccount = pathSpace + "/serviceaccounts/" + accountName
	pathCRD     = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/" + protocol.PlanSchema
	pathRBAC    = "/apis/rbac.authorization.k8s.io/v1"
	pathRole    = pathRBAC + "/namespaces/" + v1.PlansNamespace + "/roles/" + accountName
	pathGrant   = pathRBAC + "/namespaces/" + v1.PlansNamespace + "/rolebindings/" + accountName
	pathNodeUse = pathRBAC + "/clusterroles/" + accountName
	pathNodeFor = pathRBAC + "/clusterrolebindings/" + accountName
)

func labels() map[string]string { return map[string]string{v1.LabelManagedBy: v1.ManagedBy} }

// install applies the CustomResourceDefinition of Plans and the namespace for Plans, and checks that the agent can read
// Plans. The account for the pods of plans is not created until the first Job, because most members have no Plans.
func (l *leadership) install(ctx context.Context) error {
	if err := l.checkRemoval(ctx); err != nil {
		return err
	}
	if err := l.installSchema(ctx); err != nil {
		return err
	}
	applied, err := l.apply(ctx, space())
	if err != nil {
		return err
	}
	l.space.Wrote(&corev1.Namespace{ObjectMeta: applied.ObjectMeta})
	return l.options.Client.Get().AbsPath(pathPlans).Param("limit", "1").Do(ctx).Error()
}

// errRemoved is returned by install while the agent is being removed from the member.
var errRemoved = errors.New("the agent is being removed from this member: its namespace is being deleted")

// checkRemoval returns errRemoved if the agent is being removed. The replica that uninstalls deletes the agent's
// namespace before it releases the Lease. The next leader keeps running until the garbage collector removes its pod,
// and must not restore the removed objects.
func (l *leadership) checkRemoval(ctx context.Context) error {
	own, err := l.options.Objects.Meta(ctx, pathNamespaces+"/"+l.options.Namespace)
	switch {
	case apierrors.IsNotFound(err): // nothing can be written in the namespace, and no replica is the leader for long
		return nil
	case err != nil:
		return err
	case own.DeletionTimestamp != nil:
		return errRemoved
	}
	return nil
}

func (l *leadership) apply(ctx context.Context, o objectAt) (*metav1.PartialObjectMetadata, error) {
	raw, err := json.Marshal(o.object)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", o.path, err)
	}
	applied, err := l.options.Objects.Apply(ctx, o.path, fieldManager, raw)
	return applied, err
}

// installSchema applies the CustomResourceDefinition of Plans, unless it is up to date or does not belong to the
// agent. If the hub is its own member, the CustomResourceDefinition belongs to the hub. The CustomResourceDefinition
// is so large that applying it would take more of the API server's time than anything else that an agent does when
// it starts.
func (l *leadership) installSchema(ctx context.Context) error {
	there, err := l.options.Objects.Meta(ctx, pathCRD)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err == nil &&
		(there.Labels[v1.LabelManagedBy] != v1.ManagedBy ||
			there.Annotations[annotationSchema] == schemaMark(&there.ObjectMeta)) {
		return nil
	}
	var schema map[string]any
	if err := yaml.Unmarshal(config.Plans, &schema); err != nil {
		return fmt.Errorf("read the schema of Plans: %w", err)
	}
	metadata, _ := schema["metadata"].(map[string]any)
	metadata["labels"] = labels()
	raw, err := json.Marshal(schema)
	if err != nil {
		return fmt.Errorf("encode the schema of Plans: %w", err)
	}
	applied, err := l.options.Objects.Apply(ctx, pathCRD, fieldManager, raw)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"annotations": map[string]string{annotationSchema: schemaMark(&applied.ObjectMeta)}}})
	if err != nil {
		return fmt.Errorf("encode annotation of %s: %w", pathCRD, err)
	}
	return l.options.Client.Patch(types.MergePatchType).AbsPath(pathCRD).Param("fieldManager",
		fieldManager).Body(patch).Do(ctx).Error()
}

// schemaMark identifies a version of the CustomResourceDefinition that the agent has applied. It contains a digest of
// the applied version and the generation. The API server increases the generation with each change to the spec.
func schemaMark(meta *metav1.ObjectMeta) string {
	return fmt.Sprintf("%d-%x", meta.Generation, sha256.Sum256(config.Plans))
}

// objectAt is an object with its API path.
type objectAt struct {
	path   string
	object any
}

// space returns the namespace for Plans.
func space() objectAt {
	meta := metav1.ObjectMeta{Name: v1.PlansNamespace, Labels: labels()}
	meta.Labels["pod-security.kubernetes.io/enforce"] = "privileged"
	return objectAt{pathSpace,
		&corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: meta}}
}

// account returns the objects that define the account for the pods of plans, including its roles and bindings. The
// account can read Plans and Nodes, because some images wait for other plans.
func account() []objectAt {
	const group = rbacv1.GroupName + "/v1"
	read := []string{"get", "list", "watch"}
	here := metav1.ObjectMeta{Name: accountName, Namespace: v1.PlansNamespace, Labels: labels()}
	everywhere := metav1.ObjectMeta{Name: accountName, Labels: labels()}
	subjects := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: accountName, Namespace: v1.PlansNamespace}}
	return []objectAt{
		{pathAccount,
			&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: here}},
		{pathRole, &rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "Role"}, ObjectMeta: here,
			Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{v1.Group}, Resources: []string{"plans"}, Verbs: read},
			}}},
		{pathGrant, &rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "RoleBinding"}, ObjectMeta: here, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: accountName},
		}},
		{pathNodeUse, &rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "ClusterRole"},
			ObjectMeta: everywhere, Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: read},
			}}},
		{pathNodeFor, &rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: group, Kind: "ClusterRoleBinding"}, ObjectMeta: everywhere, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: accountName},
		}},
	}
}

// retireTimeout is the timeout for releasing the nodes.
const retireTimeout = 20 * time.Second

// retirement is a request to remove everything from the member.
type retirement struct{ result chan leaveResult }

type leaveResult struct {
	remaining []string
	err       error
}

// retire asks the leadership's goroutine to remove everything from the member, and returns the result.
func (l *leadership) retire(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, retireTimeout)
	defer cancel()
	r := retirement{result: make(chan leaveResult, 1)}
	select {
	case l.retired <- r:
	case <-l.ended:
		return nil, leader.ErrNotLeading
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

// leave releases all nodes and removes the objects that install created, unless there is a Plan that does not come
// from a set. Afterward, this leader runs no Plans.
func (l *leadership) leave(ctx context.Context) leaveResult {
	l.leaving = true
	if !l.watching && !l.watch(ctx) {
		return leaveResult{err: leader.ErrNotLeading}
	}
	l.releases = backoff{}
	l.release(ctx, &deadline{})
	if busy := rollout.Orphans(l.gather().Nodes, nil); len(busy) > 0 {
		return leaveResult{remaining: []string{fmt.Sprintf("Node %s: plan %s is still at work on it", busy[0].Node,
			busy[0].Job.Plan)}}
	}
	plans := &v1.PlanList{}
	if err := l.options.Client.Get().AbsPath(pathPlans).Do(ctx).Into(plans); err != nil {
		return leaveResult{err: fmt.Errorf("list plans: %w", err)}
	}
	for i := range plans.Items {
		if plans.Items[i].Labels[v1.LabelSet] == "" {
			return leaveResult{} // a user created this Plan
		}
	}
	return leaveResult{remaining: l.uninstall(ctx)}
}

// uninstall removes the objects that install created, and returns the objects that remain.
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

// onPlansError is called with each error from reading Plans. If the API server does not serve the kind, either a user
// has removed the kind, and the Plans in the store may be gone, or the API server has just started and will serve the
// kind soon. The nodes of these Plans are therefore not released yet.
func (l *leadership) onPlansError(err error) {
	if apierrors.IsNotFound(err) {
		l.kindMissing.Store(true)
		l.touch()
	}
}

// needsInstall reports whether the kind or the namespace for plans has been removed. It returns false while the
// namespace is being deleted, because objects cannot be created in it.
func (l *leadership) needsInstall() bool {
	spaces := l.space.Values()
	if l.leaving || len(spaces) > 0 && spaces[0].leaving {
		return false
	}
	return len(spaces) == 0 || l.kindMissing.Swap(false)
}

// keepAccount creates the account for the pods of plans if it does not exist. Without the account, no pods are
// created, and a Job waits until its deadline. A new leader applies the account once, because an existing account
// may come from an older agent.
func (l *leadership) keepAccount(ctx context.Context) error {
	if l.account {
		_, err := l.options.Objects.Meta(ctx, pathAccount)
		if !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, o := range account() {
		if _, err := l.apply(ctx, o); err != nil {
			return err
		}
	}
	l.account = true
	return nil
}
