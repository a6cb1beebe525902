// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/access"
)

// inquiry is a question, the workspace that it is about, and the member, if there is a way to it.
type inquiry struct {
	what      action
	where     access.Place
	hub       *gathered
	member    *member // nil where it was not asked
	workspace string
	remarks   []string
}

// inquire gathers what both commands need.
func (o *options) inquire(ctx context.Context, verb, resource string) (*inquiry, error) {
	h, err := o.hub()
	if err != nil {
		return nil, err
	}
	g, err := h.gather(ctx, o.cluster)
	if err != nil {
		return nil, err
	}
	q := &inquiry{hub: g, workspace: h.workspace, where: access.Place{Cluster: o.cluster}}
	names := mapperOf(h.config) // knows what most clusters have
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
	ctx, cancel := bounded(ctx)
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
	if err := o.print(out, e, e.text); err != nil {
		return err
	}
	return outcomeOf(e.Answer)
}
