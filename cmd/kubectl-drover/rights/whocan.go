// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// NewWhoCan returns the command "who-can".
func NewWhoCan(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use:   "who-can VERB {RESOURCE[/OBJECT] | URL} [CLUSTER]",
		Short: "List the users and groups that may do something in a member",
		Long: `List the users and groups that may do something in a member, each with the binding that
allows it: a binding on the hub, or a binding of the member's own. CLUSTER is a name, or
WORKSPACE/NAME, and can also be set with --cluster.

If the member cannot be queried, the answer is not known. The command still prints the users and
groups that the hub grants the action to.

Exit codes: 0 the list has at least one entry; 1 the list is empty; 2 an error occurred, or the
answer is not known.`,
		Example: `  kubectl drover who-can delete pods --cluster prod-eu -n web
  kubectl drover who-can get secrets prod-eu`,
		RunE: func(c *cobra.Command, args []string) error {
			return o.whoCan(c.Context(), c.OutOrStdout(), args[0], args[1])
		},
		ValidArgsFunction: o.completeAction(0),
	}
	o.bind(c)
	o.require(c, 2, "VERB RESOURCE")
	return c
}

// holders is the result of "who-can". It has the format that -o json prints.
type holders struct {
	Action    action   `json:"action"`
	Workspace string   `json:"workspace"`
	Cluster   string   `json:"cluster"`
	Holders   []holder `json:"holders"`
	Remarks   []string `json:"remarks,omitempty"`
	// partial is true if the list may be incomplete because some objects could not be read.
	partial bool
	// asked is true if the member was queried.
	asked bool
}

// holder is a subject that is allowed to perform the action, and one of the bindings that grant the right.
type holder struct {
	Subject rbacv1.Subject `json:"subject"`
	// By is the binding that grants the right. It is on the hub or in the member.
	By      access.Reference `json:"by"`
	Role    string           `json:"role"`
	Expires *metav1.Time     `json:"expires,omitempty"`
	// External is a ClusterRole whose rules only the member knows. It is empty if the hub knows the rules.
	External string `json:"external,omitempty"`
	// Effective is True if the right is in effect in the member. Otherwise, it is False or Unknown.
	Effective metav1.ConditionStatus `json:"effective"`
	// Origin is Hub or Member.
	Origin string `json:"origin"`
}

// Origins of a right.
const (
	originHub    = "Hub"
	originMember = "Member"
)

// whoCan prints the subjects that are allowed to perform an action.
func (o *options) whoCan(ctx context.Context, out io.Writer, verb, resource string) error {
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	q, err := o.inquire(ctx, verb, resource)
	if err != nil {
		return err
	}
	chains := access.WhoCan(q.hub.Workspace, q.where, q.what.Action)
	answer := holders{Action: q.what, Workspace: q.workspace, Cluster: o.cluster, Remarks: q.remarks, partial: len(q.hub.unread) > 0, asked: q.member != nil}
	answer.Holders = fromHub(chains, q.follow(ctx, chains))
	if answer.partial {
		answer.Remarks = append(answer.Remarks, "the list may be incomplete: you do not have the right to "+strings.Join(q.hub.unread, ", and to "))
	}
	if q.member != nil {
		own, err := q.member.ownHolders(ctx, q.what.Action, chains)
		answer.Holders = append(answer.Holders, own...)
		if err != nil {
			answer.partial = true
			answer.Remarks = append(answer.Remarks, fmt.Sprintf("the list may be incomplete: %v", err))
		}
	}
	if !answer.asked {
		answer.Remarks = append(answer.Remarks, hubOnly)
	}
	if err := o.Print(out, answer, answer.text); err != nil {
		return err
	}
	return answer.outcome()
}

// fromHub returns the subjects at the start of the chains.
func fromHub(chains []access.Chain, found []delivered) []holder {
	var all []holder
	for i, chain := range chains {
		h := holder{
			Subject: rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: string(chain.Subject.Kind), Name: chain.Subject.Name},
			By:      chain.Binding, Role: chain.Templates[0], Expires: chain.Expires, External: chain.External, Origin: originHub, Effective: metav1.ConditionUnknown,
		}
		if found != nil {
			h.Effective = found[i].effective()
		}
		all = append(all, h)
	}
	return all
}

// effective returns True if the whole chain exists in the member, and Unknown if part of the chain could not be read.
func (d delivered) effective() metav1.ConditionStatus {
	switch {
	case d.Binding == present && d.Role == present:
		return metav1.ConditionTrue
	case d.Binding == unread || d.Role == unread:
		return metav1.ConditionUnknown
	}
	return metav1.ConditionFalse
}

// outcome returns ErrDenied if the list is empty and complete. It returns another error if the answer is unknown.
func (h holders) outcome() error {
	effective := func(status metav1.ConditionStatus) bool {
		return slices.ContainsFunc(h.Holders, func(one holder) bool { return one.Effective == status })
	}
	switch {
	case !h.asked:
		return errCannotBeTold
	case effective(metav1.ConditionTrue):
		return nil
	case h.partial || effective(metav1.ConditionUnknown):
		return errCannotBeTold
	}
	return cli.ErrDenied
}

// ownHolders returns the subjects of the member's bindings, except for the bindings at the end of the chains.
func (m *memberClient) ownHolders(ctx context.Context, what access.Action, chains []access.Chain) ([]holder, error) {
	bindings, err := m.rbac.ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list clusterrolebindings in the member: %w", err)
	}
	roles, err := m.roles(ctx, what.Namespace)
	if err != nil {
		return nil, err
	}
	w := &sweep{what: what, roles: roles, chains: chains}
	for i := range bindings.Items {
		b := &bindings.Items[i]
		w.add(access.Reference{Kind: "ClusterRoleBinding", Name: b.Name}, b.RoleRef, b.Subjects)
	}
	if what.Namespace == "" {
		return w.found, nil
	}
	inside, err := m.rbac.RoleBindings(what.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return w.found, fmt.Errorf("list rolebindings in namespace %s of the member: %w", what.Namespace, err)
	}
	for i := range inside.Items {
		b := &inside.Items[i]
		w.add(access.Reference{Kind: "RoleBinding", Namespace: b.Namespace, Name: b.Name}, b.RoleRef, b.Subjects)
	}
	return w.found, nil
}

// roles returns the rules of the member's roles, by kind and name.
func (m *memberClient) roles(ctx context.Context, namespace string) (map[access.Reference][]rbacv1.PolicyRule, error) {
	rules := map[access.Reference][]rbacv1.PolicyRule{}
	whole, err := m.rbac.ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list clusterroles in the member: %w", err)
	}
	for i := range whole.Items {
		rules[access.Reference{Kind: "ClusterRole", Name: whole.Items[i].Name}] = whole.Items[i].Rules
	}
	if namespace == "" {
		return rules, nil
	}
	inside, err := m.rbac.Roles(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list roles in namespace %s of the member: %w", namespace, err)
	}
	for i := range inside.Items {
		rules[access.Reference{Kind: "Role", Name: inside.Items[i].Name}] = inside.Items[i].Rules
	}
	return rules, nil
}

// sweep collects the subjects of the member's bindings.
type sweep struct {
	what   access.Action
	roles  map[access.Reference][]rbacv1.PolicyRule
	chains []access.Chain
	found  []holder
}

func (w *sweep) add(binding access.Reference, role rbacv1.RoleRef, subjects []rbacv1.Subject) {
	known := slices.ContainsFunc(w.chains, func(c access.Chain) bool { return c.Object == binding })
	rules := w.roles[access.Reference{Kind: role.Kind, Name: role.Name}]
	if known || !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return access.Allows(r, w.what) }) {
		return
	}
	for _, s := range subjects {
		w.found = append(w.found, holder{Subject: s, By: binding, Role: role.Name, Origin: originMember, Effective: metav1.ConditionTrue})
	}
}
