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

// NewWhy returns the command "why".
func NewWhy(shared *cli.Options) *cobra.Command {
	o := &options{Options: shared}
	c := &cobra.Command{
		Use:   "why NAME VERB {RESOURCE[/OBJECT] | URL} [CLUSTER]",
		Short: "Explain why a user or group may or may not do something in a member",
		Long: `Explain why a user or group may or may not do something in a member.

CLUSTER is a name, or WORKSPACE/NAME, and can also be set with --cluster.

NAME is the principal as the member sees it, for example github:alice, hub:carol or
hub:system:serviceaccount:ci:deployer. The hub does not know the groups of a user: name them with
--group. To ask about a group, use --kind Group. VERB and RESOURCE are the same as in "kubectl auth
can-i", for example: get pods; create deployments.apps; get pods/web-0 --subresource log; get
/metrics.

The answer comes from the member itself. It is not known if the member is away, has never joined, or
cannot be reached from your kubeconfig: objects of the hub may not have arrived in the member, and
the member may grant more. The command still prints what the hub grants.

Exit codes: 0 yes; 1 no; 2 an error occurred, or the answer is not known.`,
		Example: `  kubectl drover why github:alice create deployments.apps --cluster prod-eu -n web
  kubectl drover why github:alice get pods team-a/prod-eu
  kubectl drover why hub:system:serviceaccount:ci:deployer get secrets/registry --cluster prod-eu -n web -w team-a
  kubectl drover why github:alice impersonate serviceaccounts/deployer --cluster prod-eu -n web
  kubectl drover why github:acme/web delete pods --kind Group --cluster prod-eu -n web -o json`,
		RunE: func(c *cobra.Command, args []string) error {
			who, err := newPrincipal(args[0], v1.SubjectKind(o.kind), o.groups)
			if err != nil {
				return err
			}
			return o.why(c.Context(), c.OutOrStdout(), who, args[1], args[2])
		},
		ValidArgsFunction: o.completeAction(1),
	}
	o.bind(c)
	o.require(c, 3, "NAME VERB RESOURCE")
	c.Flags().StringArrayVar(&o.groups, "group", nil, "A group that the user is in; can be repeated")
	c.Flags().StringVar(&o.kind, "kind", string(v1.SubjectUser), "What NAME is: User or Group")
	cli.Complete(c, "kind", cli.Offer(string(v1.SubjectUser), string(v1.SubjectGroup)))
	return c
}

// inquiry is a question together with the data that was gathered to answer it.
type inquiry struct {
	what      action
	where     access.Place
	hub       *gathered
	member    *memberClient // nil if the member was not queried
	workspace string
	remarks   []string
}

// inquire gathers the data that both "why" and "who-can" need.
func (o *options) inquire(ctx context.Context, verb, resource string) (*inquiry, error) {
	h, err := o.HubToRead()
	if err != nil {
		return nil, err
	}
	selected := h.Workspace
	if err := o.locate(ctx, h); err != nil {
		return nil, err
	}
	g, err := gather(ctx, h, o.cluster)
	if err != nil {
		return nil, err
	}
	q := &inquiry{hub: g, workspace: h.Workspace, where: access.Place{Cluster: o.cluster}}
	if h.Workspace != selected {
		q.remarks = append(q.remarks, fmt.Sprintf("workspace %s has no cluster %s: the answer is for %s/%s",
			cli.Visible(selected), cli.Visible(o.cluster), cli.Visible(h.Workspace), cli.Visible(o.cluster)))
	}
	names := mapperOf(h.Config) // the hub also serves most resources of a member
	if q.member, err = o.reach(ctx, h, g); err != nil {
		q.remarks = append(q.remarks, fmt.Sprintf("the member was not queried: %v", err))
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
			q.remarks = append(q.remarks, fmt.Sprintf("the project of the namespace is taken from the hub: %v", err))
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

// why explains why a user or group is or is not allowed to perform an action.
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
			f.remarks = append(f.remarks, fmt.Sprintf("the member did not answer: %v", err))
		}
	}
	e := conclude(f)
	if err := o.Print(out, e, e.text); err != nil {
		return err
	}
	return outcomeOf(e.Answer)
}
