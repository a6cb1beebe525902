// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// applied describes the last write of an object.
type applied struct {
	hash  [sha256.Size]byte
	mark  uint64
	uid   types.UID
	added string // path of a field that another field manager has added, if it has been reported
	// altered is the path of a field that admission in the member has changed, or "" if there is none.
	altered string
}

// applyOne applies an object, unless nothing has changed since it was last applied.
func (p *pass) applyOne(ctx context.Context, it item) {
	r := it.ref
	if p.failed(r) {
		return
	}
	p.leader.state.mu.Lock()
	last, written := p.leader.state.applied[r]
	p.leader.state.mu.Unlock()
	now, known := p.leader.cache.get(r)
	same := written && last.hash == it.hash
	untouched := same && known && now.mark == last.mark && (r.kind == kindNamespace || now.set == p.set.label)
	switch {
	case untouched && last.altered == "":
		last.added = now.added
		p.note(r, last)
		p.watchBudget(r)
		return
	case untouched: // the policy or webhook that altered the object may be gone
	case same && !p.repair(r, now, known):
		return
	}
	p.setWriting(r, true)
	meta, err := p.write(ctx, it, now, known, last)
	p.setWriting(r, false)
	switch {
	case err == nil && meta == nil: // the object is gone, and an event will follow
	case err == nil:
		answer := readObject(r, &meta.ObjectMeta)
		p.note(r, applied{hash: it.hash, mark: answer.mark, uid: meta.UID, added: answer.added, altered: p.alteredIn(r)})
		p.leader.cache.wrote(r, meta)
		if r.kind == kindClusterRole {
			p.leader.wakeBinders(r.name)
		}
		p.recordQuota(it)
		p.watchBudget(r)
	default:
		p.fail(ctx, r, err)
	}
}

// note records the result of a write. It reports a field that another client or an admission controller has changed.
func (p *pass) note(r ref, last applied) {
	p.leader.state.mu.Lock()
	p.leader.state.applied[r] = last
	p.leader.state.mu.Unlock()
	switch {
	case last.added != "":
		p.problem(r, protocol.SetConflict,
			"another field manager has added a field that is not in the set ("+last.added+"): remove the field, or delete "+
				"the object and it is created again")
	case last.altered != "":
		p.problem(r, protocol.SetConflict,
			"the admission of this cluster changes it when the agent applies it ("+last.altered+
				"): exclude it from the mutating policy or webhook")
	}
}

// failed reports whether this pass has already recorded a problem with the object.
func (p *pass) failed(r ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed := p.problems[r]
	return failed
}

// repair reports whether the object may be repaired now. If so, it records the repair.
func (p *pass) repair(r ref, now object, known bool) bool {
	cause := fightMessage(now, known)
	wait := p.set.budgets.Spend(r, p.now, cause)
	if wait <= 0 {
		p.leader.options.Log.Info("repairing an object", "object", r.String(), "set", p.set.id, "changedBy", now.other)
		return true
	}
	p.later(wait)
	p.problem(r, protocol.SetFighting, cause)
	return false
}

func fightMessage(now object, known bool) string {
	who := "something"
	switch {
	case !known:
		return "something deletes it each time that the agent creates it: stop that, or remove the object on the hub that " +
			"delivers it"
	case now.other != "":
		who = fmt.Sprintf("%q (a field manager)", now.other)
	}
	return who + " changes it back each time that the agent repairs it: stop that, or remove the object on the hub " +
		"that delivers it"
}

// watchBudget reports a fight over the object until the repair budget has been reset, and schedules a pass for that
// time.
func (p *pass) watchBudget(r ref) {
	calm, cause := p.set.budgets.Fight(r, p.now)
	if calm > 0 {
		p.later(calm)
	}
	if cause != "" {
		p.problem(r, protocol.SetFighting, cause)
	}
}

// write applies an object. It returns nil without an error if the object must have a specific UID but no longer
// exists.
func (p *pass) write(ctx context.Context, it item, now object, known bool, last applied) (*metav1.PartialObjectMetadata,
	error) {
	if it.ref.kind == kindNamespace { // sets do not own Namespaces, so the fields of other managers are kept
		meta, err := p.send(ctx, it.ref, false, it.body)
		if it.uid != "" && apierrors.IsConflict(err) && len(kube.Rivals(err)) == 0 {
			return nil, nil
		}
		return meta, err
	}
	if known && now.set == p.set.label {
		if meta, err := p.update(ctx, it, now.uid); !kube.Replaced(err) {
			return meta, err
		}
	}
	return kube.Own(
		func() (*metav1.PartialObjectMetadata, error) { return p.create(ctx, it) },
		func() (types.UID, error) { return p.inspect(ctx, it.ref, last) },
		func(uid types.UID) (*metav1.PartialObjectMetadata, error) { return p.update(ctx, it, uid) },
	)
}

// apply sends an object to the API server as soon as the lanes admit it, and returns the stored object.
func (l *leadership) apply(
	ctx context.Context, id string, r ref, force bool, body []byte,
) (meta *metav1.PartialObjectMetadata, stored []byte, err error) {
	err = l.lanes.do(ctx, r.place(), id, func(ctx context.Context) (err error) {
		meta, stored, err = l.options.Objects.ApplyWhole(ctx, l.catalogue.path(r), fieldManager, force, body)
		return err
	})
	return meta, stored, err
}

// send applies an object of the set, and checks whether the API server stored the object unchanged.
func (p *pass) send(ctx context.Context, r ref, force bool, body []byte) (*metav1.PartialObjectMetadata, error) {
	meta, stored, err := p.leader.apply(ctx, p.set.id, r, force, body)
	if err != nil {
		return nil, err
	}
	field, err := alteredField(r.kind, body, stored)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.altered[r] = field
	return meta, nil
}

func (p *pass) alteredIn(r ref) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.altered[r]
}

// create creates an object. If an object with this name already exists, that object is not changed, and the error is a
// conflict.
func (p *pass) create(ctx context.Context, it item) (*metav1.PartialObjectMetadata, error) {
	body, err := it.bodyWith("resourceVersion", kube.NoVersion)
	if err != nil {
		return nil, err
	}
	return p.send(ctx, it.ref, false, body)
}

// update applies an object that belongs to the agent. It changes only the object with the given UID, and never another
// object with the same name.
func (p *pass) update(ctx context.Context, it item, uid types.UID) (*metav1.PartialObjectMetadata, error) {
	body, err := it.bodyWith("uid", string(uid))
	if err != nil {
		return nil, err
	}
	meta, err := p.send(ctx, it.ref, true, body)
	if apierrors.IsInvalid(err) && immutable(err) && !kube.Replaced(err) {
		return p.replace(ctx, it)
	}
	return meta, err
}

// inspect returns the UID of an object that belongs to the agent, or "" if the object does not exist. If the object has
// a different owner, the error names that owner.
func (p *pass) inspect(ctx context.Context, r ref, last applied) (types.UID, error) {
	meta, err := p.leader.options.Objects.Meta(ctx, p.leader.catalogue.path(r))
	if notFound(err) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	switch now := readObject(r, &meta.ObjectMeta); {
	case now.set == p.set.label && meta.Labels[v1.LabelManagedBy] == v1.ManagedBy:
		return now.uid, nil
	// The labels were removed, but the UID proves that this is the agent's object. Managed fields are no proof, because
	// any client can write them.
	case now.set == "" && last.uid != "" && last.uid == now.uid:
		return now.uid, nil
	case now.set != "":
		return "", &kube.ForeignError{
			Message: fmt.Sprintf("it belongs to the set %q: give one of the two another name", now.set),
		}
	default:
		maker := ""
		if now.other != "" {
			maker = fmt.Sprintf(" (made by %q)", now.other)
		}
		return "", &kube.ForeignError{Message: "it already exists and is not Drover's" + maker +
			": remove it or give one of the two another name"}
	}
}

// replace deletes an object that differs in immutable fields, and creates it again.
func (p *pass) replace(ctx context.Context, it item) (*metav1.PartialObjectMetadata, error) {
	if err := p.leader.delete(ctx, p.set.id, it.ref); err != nil {
		return nil, err
	}
	meta, err := p.create(ctx, it)
	if apierrors.IsConflict(err) {
		return nil,
			errors.New("it was deleted because one of its fields is immutable, but it still exists or exists again: check " +
				"its finalizers and which client creates it")
	}
	return meta, err
}

func immutable(err error) bool {
	text := err.Error()
	return strings.Contains(text, "immutable") || strings.Contains(text, "cannot change roleRef")
}

// bare returns the JSON of an object that has no fields other than its identity. Applying it removes the agent's fields
// from the object.
func (c catalogue) bare(r ref, uid types.UID) []byte {
	raw, err := json.Marshal(map[string]any{
		"apiVersion": c[r.kind].APIVersion, "kind": r.kind,
		"metadata": map[string]any{"name": r.name, "namespace": r.namespace, "uid": uid},
	})
	if err != nil { // strings can always be marshaled
		panic(err)
	}
	return raw
}

func notFound(err error) bool { return apierrors.IsNotFound(err) }

// explain returns the phase and the message for an error. An error from the API server can contain values that the
// agent sent, so the message includes only field names.
func explain(r ref, err error) (protocol.SetPhase, string) {
	if f := (*kube.ForeignError)(nil); errors.As(err, &f) {
		return protocol.SetConflict, f.Message
	}
	if names := kube.Rivals(err); len(names) > 0 {
		return protocol.SetConflict, "another field manager owns a field: " + strings.Join(names, "; ")
	}
	switch {
	case apierrors.IsInvalid(err):
		return protocol.SetFailed, "the API server rejects it as invalid: " + kube.InvalidFields(err)
	// The message of a webhook or policy may contain the Secret's data.
	case r.kind == kindSecret && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return protocol.SetFailed,
			fmt.Sprintf("the API server rejects it (%s): check the admission policies and webhooks of the member",
				apierrors.ReasonForError(err))
	case apierrors.IsForbidden(err):
		return protocol.SetFailed, err.Error() + ": if the agent lacks a right, apply its manifest again"
	default:
		return protocol.SetFailed, err.Error()
	}
}
