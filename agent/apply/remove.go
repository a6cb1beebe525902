// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// strays stands on the agenda for namespaces that left their project while no agent looked. It is no id.
const strays = "/"

// seen notes that a stored set was looked at. After the last, what nobody wants is known.
func (t *term) seen(id string) {
	t.book.mu.Lock()
	_, was := t.book.unseen[id]
	delete(t.book.unseen, id)
	last := was && len(t.book.unseen) == 0
	t.book.mu.Unlock()
	if last {
		t.agenda.at(strays, t.options.Now())
	}
}

// releaseStrays takes our fields off namespaces that no set wants.
func (t *term) releaseStrays(ctx context.Context) {
	for _, r := range t.world.ours() {
		if r.kind != kindNamespace {
			continue
		}
		if err := t.loosen(ctx, r); err != nil && ctx.Err() == nil {
			t.log().Error(err, "namespace not released")
			t.agenda.at(strays, t.options.Now().Add(maxRetry))
		}
	}
}

// loosen takes our fields off a namespace, unless some set wants it. Nobody can claim it meanwhile.
func (t *term) loosen(ctx context.Context, r ref) error {
	guard := &set{id: strays, claimed: map[ref]bool{}, budgets: map[ref]*budget{}}
	if _, free := t.claim(r, guard); !free {
		t.book.mu.Lock()
		delete(t.book.waiting[r], strays)
		t.book.mu.Unlock()
		return nil
	}
	defer t.unclaim(guard, nil)
	now, known := t.world.get(r)
	if !known || now.gone || now.mark == 0 {
		return nil
	}
	target := &metav1.PartialObjectMetadata{}
	target.APIVersion, target.Kind, target.Name, target.UID = "v1", kindNamespace, r.name, now.uid
	meta, _, err := t.options.Objects.Apply(ctx, t.catalogue.path(r), fieldManager, false, bare(target))
	if apierrors.IsConflict(err) || notFound(err) {
		return nil // it is gone
	}
	if err != nil {
		return fmt.Errorf("release Namespace %s: %w", r.name, err)
	}
	t.world.observe(r, &meta.ObjectMeta)
	return nil
}

// removeAll takes all sets away, the guards last, and whatever else the agent has made. It returns what could not be removed.
func (t *term) removeAll(ctx context.Context) []string {
	var remaining []string
	for _, s := range t.all() {
		if s.id == protocol.SetGuards && len(remaining) > 0 {
			remaining = append(remaining, "set "+s.id+": it guards what is left")
			break
		}
		remaining = append(remaining, t.removeOne(ctx, s.id)...)
	}
	if len(remaining) > 0 {
		return remaining
	}
	for _, r := range t.world.ours() {
		var err error
		if r.kind == kindNamespace {
			err = t.loosen(ctx, r)
		} else {
			err = t.delete(ctx, r)
		}
		if err != nil {
			_, message := explain(r, err)
			remaining = append(remaining, r.String()+": "+message)
		}
	}
	return remaining
}

func (t *term) removeOne(ctx context.Context, id string) (remaining []string) {
	state, err := t.remove(ctx, id)
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
