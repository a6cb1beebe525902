// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// orphans is the queue entry for namespaces that left their project while no agent was running. It is not a valid
// set ID.
const orphans = "/"

// seen records that a stored set has completed its first pass. Once all stored sets have done so, it is known which
// namespaces no set needs, and seen queues their release.
func (l *leadership) seen(id string) {
	l.state.mu.Lock()
	_, was := l.state.unseen[id]
	delete(l.state.unseen, id)
	last := was && len(l.state.unseen) == 0
	l.state.mu.Unlock()
	if last {
		l.queue.Add(orphans)
	}
}

// releaseOrphans removes the agent's fields from namespaces that no set needs.
func (l *leadership) releaseOrphans(ctx context.Context) {
	ours, _ := l.cache.ours()
	for _, r := range ours {
		if r.kind != kindNamespace {
			continue
		}
		if err := l.releaseNamespace(ctx, orphans, r); err != nil && ctx.Err() == nil {
			l.options.Log.Error(err, "cannot release a namespace")
			l.queue.AddAfter(orphans, maxRetry)
		}
	}
}

// releaseNamespace removes the agent's fields from a namespace, unless a set needs the namespace. A temporary claim
// prevents sets from claiming the namespace in the meantime.
func (l *leadership) releaseNamespace(ctx context.Context, id string, r ref) error {
	guard := &localSet{id: orphans, claimed: map[ref]bool{}}
	if _, free := l.claim(r, guard); !free {
		l.state.mu.Lock()
		delete(l.state.waiting[r], orphans)
		l.state.mu.Unlock()
		return nil
	}
	defer l.unclaim(guard, nil)
	now, known := l.cache.get(r)
	if !known || now.mark == 0 {
		return nil
	}
	meta, _, err := l.apply(ctx, id, r, false, l.catalogue.bare(r, now.uid))
	if apierrors.IsConflict(err) || notFound(err) {
		return nil // the namespace is gone
	}
	if err != nil {
		return fmt.Errorf("release Namespace %s: %w", r.name, err)
	}
	l.cache.wrote(r, meta)
	return nil
}

// removeAll removes all sets, and then all other objects that the agent has applied. It removes the set with the guard
// policies after all other sets. It returns the objects that it could not remove.
func (l *leadership) removeAll(ctx context.Context) []string {
	var remaining []string
	for _, s := range l.all() {
		if s.id == set.Guards && len(remaining) > 0 {
			remaining = append(remaining, "set "+s.id+": it guards the objects that remain")
			break
		}
		remaining = append(remaining, l.removeOne(ctx, s.id)...)
	}
	if len(remaining) > 0 {
		return remaining
	}
	ours, _ := l.cache.ours()
	for _, r := range ours {
		var err error
		if r.kind == kindNamespace {
			err = l.releaseNamespace(ctx, "", r)
		} else {
			err = l.delete(ctx, "", r)
		}
		if err != nil {
			_, message := explain(r, err)
			remaining = append(remaining, r.String()+": "+message)
		}
	}
	if left := l.forgetHistory(ctx); len(remaining) == 0 {
		return left
	}
	return remaining
}

func (l *leadership) removeOne(ctx context.Context, id string) (remaining []string) {
	state, err := l.remove(ctx, id)
	if err != nil {
		return []string{fmt.Sprintf("set %s: %v", id, err)}
	}
	if state.Phase == protocol.SetDeleted {
		return nil
	}
	for _, o := range state.Objects {
		remaining = append(remaining, o.Object+": "+o.Message)
	}
	if len(remaining) == 0 {
		remaining = append(remaining, fmt.Sprintf("set %s: %s", id, state.Message))
	}
	return remaining
}

// prune removes objects that have the set's label but are no longer in the set. It does not delete Namespaces, but
// removes the agent's fields from them. It skips objects in a terminating namespace, because Kubernetes deletes these
// objects along with the namespace.
func (p *pass) prune(ctx context.Context) {
	for _, r := range p.leader.unclaim(p.set, p.wanted) {
		if r.kind == kindNamespace {
			p.releaseNamespace(ctx, r)
		}
	}
	kube.Each(ctx, p.leader.cache.of(p.set.label), func(r ref) {
		switch {
		case p.wanted[r] || !p.set.deleting && !p.expired() && p.leader.cache.deleting(r.namespace):
		case r.kind == kindNamespace:
			p.releaseNamespace(ctx, r)
		default:
			p.fail(ctx, r, p.leader.delete(ctx, p.set.id, r))
		}
	})
}

// removeObjects removes the objects of the set. The binding that grants the rights of a Baseline is removed only after
// the Baseline's objects.
func (p *pass) removeObjects(ctx context.Context) {
	if !(baselinePass{p}).remove(ctx) || p.awaitBaselines() {
		return
	}
	p.wanted = map[ref]bool{}
	p.set.quotas = nil
	p.prune(ctx)
}

func (p *pass) releaseNamespace(ctx context.Context, r ref) {
	p.fail(ctx, r, p.leader.releaseNamespace(ctx, p.set.id, r))
}

// maxTries is the maximum number of attempts to delete an object that other clients change at the same time.
const maxTries = 3

// delete deletes an object if its resource version is unchanged. After a conflict, delete reads the object again and
// retries.
func (l *leadership) delete(ctx context.Context, id string, r ref) error {
	path := l.catalogue.path(r)
	now, known := l.cache.get(r)
	var err error
	for range maxTries {
		if !known || now.deleting || now.mark == 0 || now.set == "" {
			return nil
		}
		err = l.lanes.do(ctx, r.place(), id, func(ctx context.Context) error {
			return l.options.Objects.Delete(ctx, path, now.uid, now.version)
		})
		if err == nil || notFound(err) {
			l.cache.gone(r, now.uid)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		meta, failed := l.options.Objects.Meta(ctx, path)
		if notFound(failed) {
			l.cache.gone(r, now.uid)
			return nil
		}
		if failed != nil {
			return failed
		}
		label := now.set
		now = readObject(r, &meta.ObjectMeta)
		known = now.set == label
	}
	return err
}
