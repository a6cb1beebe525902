// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/drover-dev/drover/internal/protocol"
)

// prune removes objects that carry the set's label but are no longer in the set. It does not delete Namespaces, but
// removes the agent's fields from them. It skips objects in a terminating namespace, because Kubernetes deletes these
// objects together with the namespace.
func (p *pass) prune(ctx context.Context) {
	for _, r := range p.unclaim(p.set, p.wanted) {
		if r.kind == kindNamespace {
			p.releaseNamespace(ctx, r)
		}
	}
	each(ctx, p.cache.of(p.set.label), func(r ref) {
		switch {
		case p.wanted[r] || !p.set.deleting && !p.expired() && p.cache.deleting(r.namespace):
		case r.kind == kindNamespace:
			p.releaseNamespace(ctx, r)
		default:
			p.failedUnlessGone(ctx, r, p.delete(ctx, p.set.id, r))
		}
	})
}

// failedUnlessGone records err as the reason why an object could not be removed. It records nothing if ctx has
// ended. If the object is already gone, err is nil.
func (p *pass) failedUnlessGone(ctx context.Context, r ref, err error) {
	if err != nil && ctx.Err() == nil {
		phase, message := explain(r, err)
		p.problem(r, phase, message)
	}
}

func (p *pass) removeObjects(ctx context.Context) {
	p.wanted = map[ref]bool{}
	p.set.quotas = nil
	p.prune(ctx)
}

func (p *pass) releaseNamespace(ctx context.Context, r ref) {
	if err := p.leadership.releaseNamespace(ctx, p.set.id, r); err != nil && ctx.Err() == nil {
		p.problem(r, protocol.SetFailed, err.Error())
	}
}

// maxTries is the maximum number of attempts to delete an object that other clients keep changing.
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
