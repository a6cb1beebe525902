// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/watch"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
)

// goneAgain is how often the agent checks whether a deleted object is gone.
const goneAgain = time.Second

// Remove deletes the objects of a Baseline, or leaves them in the member if the deletion policy is Orphan. It then
// deletes the inventory. Once everything has been removed, the result contains no problems.
func (k *Keeper) Remove(ctx context.Context, id string) Result {
	b := k.of(id)
	p := &pass{kept: b, now: k.options.Now()}
	if err := b.store.load(ctx); err != nil {
		p.fail("the inventory cannot be read: " + err.Error())
		return p.result()
	}
	if b.store.version == "" && len(b.store.entries) == 0 {
		return p.result()
	}
	if b.content = nil; b.store.policy != v1.DeletionOrphan {
		b.named(b.store.name)
		var all []entry
		for _, e := range b.store.entries {
			all = append(all, e)
		}
		p.prune(ctx, all)
	}
	var err error
	if len(p.problems) > 0 || ctx.Err() != nil {
		err = b.store.save(ctx)
	} else if err = b.store.remove(ctx); err == nil {
		k.Close(id)
	}
	if err != nil && ctx.Err() == nil {
		p.fail("the inventory cannot be written: " + err.Error())
	}
	return p.result()
}

// prune deletes objects, beginning with the last stage. An object remains in the inventory until it is gone.
func (p *pass) prune(ctx context.Context, doomed []entry) {
	for stage := baseline.StageCount - 1; stage >= 0 && !p.blocked && ctx.Err() == nil; stage-- {
		var all []entry
		for _, e := range doomed {
			if baseline.Stage(e.APIVersion, e.Kind) == stage {
				all = append(all, e)
			}
		}
		kube.Each(ctx, all, func(e entry) { p.pruneOne(ctx, e) })
	}
}

// errNotServed is returned for an object whose kind the API server does not serve.
var errNotServed = errors.New("this cluster does not serve its kind at the moment")

func (p *pass) pruneOne(ctx context.Context, e entry) {
	r := e.ref()
	switch gone, err := p.delete(ctx, e); {
	case errors.Is(err, errNotServed) && e.UID != "" && p.unservedFor(r) < establishTime:
		p.later(missAgain)
		p.report(r, protocol.SetPending, err.Error())
	case errors.Is(err, errNotServed), gone:
		p.forget(r, e.UID)
	case err != nil:
		p.failed(ctx, r, err)
	case ctx.Err() == nil:
		p.later(goneAgain)
		p.report(r, protocol.SetPending, "it is being deleted: check its finalizers if that does not end")
	}
}

// unservedFor returns the time for which the API server has not served the kind of an object. The kind may be missing
// for a short time, for example while an API server starts.
func (p *pass) unservedFor(r ref) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	since, known := p.late[r]
	if !known {
		p.late[r] = p.now
		return 0
	}
	return p.now.Sub(since)
}

// delete deletes an object and reports whether it is gone. An object that does not belong to the Baseline counts as
// gone.
func (p *pass) delete(ctx context.Context, e entry) (gone bool, err error) {
	s, ok, err := p.kinds.find(ctx, e.APIVersion, e.Kind)
	if err != nil {
		return false, err
	}
	if !ok {
		return false, errNotServed
	}
	path := s.path(e.Namespace, e.Name)
	meta, err := p.objects.Meta(ctx, path)
	if err == nil && p.owns(meta, e) && meta.DeletionTimestamp == nil {
		err = p.options.Write(ctx, e.ref().place(), p.id, func(ctx context.Context) error {
			return p.objects.Delete(ctx, path, meta.UID, "")
		})
		if err == nil {
			meta, err = p.objects.Meta(ctx, path)
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case apierrors.IsConflict(err): // another object now has this name
		return false, nil
	case err != nil:
		return false, err
	}
	return !p.owns(meta, e), nil
}

// forget drops an object that is gone.
func (p *pass) forget(r ref, uid types.UID) {
	if f := p.watched(r.kind); f != nil {
		f.objects.Drop(watch.Name{Namespace: r.namespace, Name: r.object}, func(o live) bool {
			return uid == "" || o.uid == uid
		})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store.drop(r)
	p.budgets.Forget(r)
	delete(p.late, r)
}
