// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// row is a line of the report.
type row struct {
	what string
	took []time.Duration
	// goal is the maximum ratio of this row's p50, or of its last value if ofLast is set, to the p50 of a direct write. 0
	// means that there is no goal.
	goal   float64
	ofLast bool
	// inTurns are direct writes that alternated with this row's writes. If there are none, the row is compared with the
	// first row, whose writes had the machine to themselves.
	inTurns     []time.Duration
	hub, member float64       // writes for each binding
	cpu         time.Duration // of the manager
	costs       costs         // for each binding
}

// role is a built-in template. Its ClusterRole is delivered with the first binding, which is not measured.
const role = "cluster-viewer"

func (p *processes) measure(ctx context.Context, n int) ([]row, error) {
	w, err := watchBindings(ctx, p.member.Client)
	if err != nil {
		return nil, err
	}
	defer w.stop()
	warm := p.binding("warm")
	if _, err := p.timed(ctx, w, "warm", added, func() error { return p.hub.Client.Create(ctx, warm) }); err != nil {
		return nil, err
	}
	var rows []row
	for _, step := range []func(context.Context, *watcher, int) ([]row, error){p.direct, p.backToBack, p.atOnce, p.effective} {
		more, err := step(ctx, w, n)
		if err != nil {
			return nil, err
		}
		rows = append(rows, more...)
	}
	return rows, nil
}

func (p *processes) binding(name string) *v1.ClusterRoleTemplateBinding {
	return &v1.ClusterRoleTemplateBinding{ObjectMeta: object(name), Spec: v1.ClusterRoleTemplateBindingSpec{
		ClusterTarget: v1.ClusterTarget{ClusterName: member}, RoleTemplateName: role, Subject: v1.Subject{Kind: v1.SubjectUser, Name: "github:" + name}}}
}

// timed returns the time from a write until the member's watch reports its effect.
func (p *processes) timed(ctx context.Context, w *watcher, name string, kind event, write func() error) (time.Duration, error) {
	seen := w.expect(name, kind)
	begun := time.Now()
	if err := write(); err != nil {
		return 0, err
	}
	select {
	case at := <-seen:
		return at.Sub(begun), nil
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(patience):
		return 0, fmt.Errorf("binding %s did not become %s in the member", name, kind)
	}
}

// direct writes to the member, which are the lower bound.
func (p *processes) direct(ctx context.Context, w *watcher, n int) ([]row, error) {
	r := row{what: "direct write into the member: create"}
	before, err := p.costs()
	if err != nil {
		return nil, err
	}
	for i := range n {
		name := fmt.Sprintf("direct-%d", i)
		b := directBinding(name)
		took, err := p.timed(ctx, w, name, added, func() error { return p.member.Client.Create(ctx, b) })
		if err != nil {
			return nil, err
		}
		r.took = append(r.took, took)
	}
	after, err := p.costs()
	r.costs = after.since(before, n)
	return []row{r}, err
}

// backToBack creates, updates and deletes bindings, each after the previous one has arrived.
func (p *processes) backToBack(ctx context.Context, w *watcher, n int) ([]row, error) {
	var rows []row
	for _, step := range []struct {
		what  string
		kind  event
		write func(*v1.ClusterRoleTemplateBinding) error
	}{
		{"create", added, func(b *v1.ClusterRoleTemplateBinding) error { return p.hub.Client.Create(ctx, b) }},
		{"update", modified, func(b *v1.ClusterRoleTemplateBinding) error {
			patch := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"subject":{"name":"github:other-%s"}}}`, b.Name))
			return p.hub.Client.Patch(ctx, b, patch)
		}},
		{"delete", deleted, func(b *v1.ClusterRoleTemplateBinding) error { return p.hub.Client.Delete(ctx, b) }},
	} {
		r := row{what: "back to back: " + step.what}
		writes, err := p.countWrites(ctx)
		if err != nil {
			return nil, err
		}
		before, err := p.costs()
		if err != nil {
			return nil, err
		}
		for i := range n {
			b := p.binding(fmt.Sprintf("bench-%d", i))
			took, err := p.timed(ctx, w, b.Name, step.kind, func() error { return step.write(b) })
			if err != nil {
				return nil, err
			}
			r.took = append(r.took, took)
		}
		after, err := p.costs()
		if err != nil {
			return nil, err
		}
		r.costs = after.since(before, n)
		if r.hub, r.member, err = writes.each(ctx, n); err != nil {
			return nil, err
		}
		rows = append(rows, r)
	}
	return rows, nil
}

// atOnce creates all bindings at the same time, and then deletes them in the same way.
func (p *processes) atOnce(ctx context.Context, w *watcher, n int) ([]row, error) {
	var rows []row
	for _, step := range []struct {
		what  string
		kind  event
		write func(context.Context, *v1.ClusterRoleTemplateBinding) error
	}{
		{"create", added, func(ctx context.Context, b *v1.ClusterRoleTemplateBinding) error { return p.hub.Client.Create(ctx, b) }},
		{"delete", deleted, func(ctx context.Context, b *v1.ClusterRoleTemplateBinding) error { return p.hub.Client.Delete(ctx, b) }},
	} {
		writes, err := p.countWrites(ctx)
		if err != nil {
			return nil, err
		}
		r := row{what: fmt.Sprintf("%d at once: %s, from the first write to each", n, step.what), goal: 400, ofLast: true}
		var seen []<-chan time.Time
		for i := range n {
			seen = append(seen, w.expect(fmt.Sprintf("once-%d", i), step.kind))
		}
		before, err := p.costs()
		if err != nil {
			return nil, err
		}
		begun := time.Now()
		group, writing := errgroup.WithContext(ctx)
		group.SetLimit(n)
		for i := range n {
			group.Go(func() error { return step.write(writing, p.binding(fmt.Sprintf("once-%d", i))) })
		}
		if err := group.Wait(); err != nil {
			return nil, err
		}
		for _, arrival := range seen {
			select {
			case at := <-arrival:
				r.took = append(r.took, at.Sub(begun))
			case <-time.After(patience):
				return nil, fmt.Errorf("only %d of %d bindings became %s: %s", len(r.took), n, step.kind, p.left(ctx, w))
			}
		}
		after, err := p.costs()
		if err != nil {
			return nil, err
		}
		r.costs = after.since(before, n)
		if r.hub, r.member, err = writes.each(ctx, n); err != nil {
			return nil, err
		}
		rows = append(rows, r)
		if step.kind == added {
			if err := p.weigh(ctx, fmt.Sprintf("with %d bindings that arrived at the same time", n)); err != nil {
				return nil, err
			}
		}
	}
	return rows, nil
}

// left returns the number of objects that the hub and the member have. A missing binding was either not delivered or
// not observed.
func (p *processes) left(ctx context.Context, w *watcher) string {
	var inMember rbacv1.ClusterRoleBindingList
	var onHub v1.ClusterRoleTemplateBindingList
	if err := errors.Join(p.member.Client.List(ctx, &inMember, client.HasLabels{v1.LabelSet}), p.hub.Client.List(ctx, &onHub)); err != nil {
		return err.Error()
	}
	ended := "goes on"
	select {
	case <-w.done:
		ended = "has ended"
	default:
	}
	return fmt.Sprintf("the hub has %d, the member %d of Drover, and the watch of it %s; see the logs with -keep", len(onHub.Items), len(inMember.Items), ended)
}

// effective measures the time until the member's authorizer allows the action that a binding grants, and until it
// denies the action again, alternating with a direct write of the same binding.
func (p *processes) effective(ctx context.Context, _ *watcher, n int) ([]row, error) {
	direct := row{what: "in turns: direct write → effective"}
	granted := row{what: "in turns: binding → effective in the member", goal: 6}
	removed := row{what: "in turns: binding removed → no longer effective", goal: 4}
	for i := range n {
		b, d := p.binding(fmt.Sprintf("effective-%d", i)), directBinding(fmt.Sprintf("in-turns-%d", i))
		for _, step := range []struct {
			row   *row
			user  string
			want  bool
			write func() error
		}{
			{&direct, d.Subjects[0].Name, true, func() error { return p.member.Client.Create(ctx, d) }},
			{&granted, b.Spec.Subject.Name, true, func() error { return p.hub.Client.Create(ctx, b) }},
			{&removed, b.Spec.Subject.Name, false, func() error { return p.hub.Client.Delete(ctx, b) }},
		} {
			begun := time.Now()
			if err := step.write(); err != nil {
				return nil, err
			}
			if err := p.awaitRight(ctx, step.user, step.want); err != nil {
				return nil, err
			}
			step.row.took = append(step.row.took, time.Since(begun))
		}
	}
	slices.Sort(direct.took)
	direct.inTurns, granted.inTurns, removed.inTurns = direct.took, direct.took, direct.took
	return []row{direct, granted, removed}, nil
}

// directBinding is the equivalent of a binding in the member, which the benchmark writes there directly. Its role
// grants the right that awaitRight reviews.
func directBinding(name string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: prefix + name + ":x"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: name}}}
}

// awaitRight sends access reviews to the member's API server until the result is as expected.
func (p *processes) awaitRight(ctx context.Context, user string, want bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "nodes"}}}
		if err := p.member.Client.Create(ctx, review); err != nil {
			return fmt.Errorf("review %s: %w", user, err)
		}
		if review.Status.Allowed == want {
			return nil
		}
	}
}
