// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/access"
)

// NewWhy makes the command "why".
func NewWhy(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use:   "why NAME VERB RESOURCE[/OBJECT] | URL",
		Short: "Say why a user or group may do something in a member, or what is missing",
		Long: `Say why a user or group may do something in a member, or what is missing.

NAME is the principal as the member sees it: github:alice, hub:carol, hub:system:serviceaccount:ci:deployer.
Groups of a user are not known to the hub: name them with --group. For a group itself use --kind Group.
VERB and RESOURCE are as in "kubectl auth can-i": get pods, create deployments.apps, get pods/web-0 --subresource log, get /metrics.

The answer is the member's own word. Where the member is not asked, since it is away, has never joined, or nothing leads to it, the answer is that it
cannot be told: what the hub grants may not have arrived, and the member may grant more. What the hub grants is printed all the same.

Exit codes: 0 yes, 1 no, 2 an error, or it cannot be told.`,
		Example: `  kubectl drover why github:alice create deployments.apps --cluster prod-eu -n web
  kubectl drover why hub:system:serviceaccount:ci:deployer get secrets/registry --cluster prod-eu -n web -w team-a
  kubectl drover why github:alice impersonate serviceaccounts/deployer --cluster prod-eu -n web
  kubectl drover why github:acme/web delete pods --kind Group --cluster prod-eu -n web -o json`,
		Args: cli.Arguments(3, "NAME VERB RESOURCE"),
		RunE: func(c *cobra.Command, args []string) error {
			who, err := newPrincipal(args[0], v1.SubjectKind(o.kind), o.groups)
			if err != nil {
				return err
			}
			return o.why(c.Context(), c.OutOrStdout(), who, args[1], args[2])
		},
		ValidArgsFunction: completeAction(1),
	}
	o.bind(c)
	c.Flags().StringArrayVar(&o.groups, "group", nil, "A group that the user is in; can be repeated")
	c.Flags().StringVar(&o.kind, "kind", string(v1.SubjectUser), "What NAME is: User or Group")
	cli.Complete(c, "kind", cli.Offer(string(v1.SubjectUser), string(v1.SubjectGroup)))
	return c
}

// inquiry is a question with what was gathered for it: the workspace, and the member if it can be reached.
type inquiry struct {
	what      action
	where     access.Place
	hub       *gathered
	member    *memberClient // nil if it was not asked
	workspace string
	remarks   []string
}

// inquire gathers what "why" and "who-can" both need.
func (o *options) inquire(ctx context.Context, verb, resource string) (*inquiry, error) {
	h, err := o.Hub()
	if err != nil {
		return nil, err
	}
	g, err := gather(ctx, h, o.cluster)
	if err != nil {
		return nil, err
	}
	q := &inquiry{hub: g, workspace: h.Workspace, where: access.Place{Cluster: o.cluster}}
	names := mapperOf(h.Config) // it knows the resources that most clusters have
	if q.member, err = o.reach(ctx, h, g); err != nil {
		q.remarks = append(q.remarks, fmt.Sprintf("the member was not asked: %v", err))
	} else {
		names = q.member.mapper
	}
	action, remarks, err := parseAction(ctx, verb, resource, o, names)
	if err != nil {
		return nil, err
	}
	q.what = action
	q.remarks = append(q.remarks, remarks...)
	if q.member != nil && q.what.Namespace != "" {
		switch q.where.Project, err = q.member.projectOf(ctx, q.what.Namespace); {
		case apierrors.IsNotFound(err):
			q.remarks = append(q.remarks, fmt.Sprintf("namespace %s does not exist in the member", q.what.Namespace))
		case err != nil:
			q.remarks = append(q.remarks, fmt.Sprintf("which project the namespace is in is what the hub says: %v", err))
		}
	}
	return q, nil
}

func (q *inquiry) follow(ctx context.Context, chains []access.Chain) []delivered {
	if q.member == nil {
		return nil
	}
	all := make([]delivered, len(chains))
	for i, chain := range chains {
		all[i] = q.member.follow(ctx, chain, q.what.Action)
	}
	return all
}

// why answers why a user or group may do something.
func (o *options) why(ctx context.Context, out io.Writer, who principal, verb, resource string) error {
	ctx, cancel := cli.Bounded(ctx)
	defer cancel()
	q, err := o.inquire(ctx, verb, resource)
	if err != nil {
		return err
	}
	user, groups := who.userAndGroups()
	f := findings{
		who: who, what: q.what, hub: q.hub, workspace: q.workspace, cluster: o.cluster, remarks: q.remarks,
		answer: access.Explain(q.hub.Workspace, user, groups, q.where, q.what.Action),
	}
	f.delivered = q.follow(ctx, f.answer.Chains)
	if q.member != nil {
		review, err := q.member.review(ctx, who, q.what.Action)
		if err == nil {
			f.review = &review
		} else {
			f.remarks = append(f.remarks, fmt.Sprintf("the member's own word is missing: %v", err))
		}
	}
	e := conclude(f)
	if err := o.Print(out, e, e.text); err != nil {
		return err
	}
	return outcomeOf(e.Answer)
}
