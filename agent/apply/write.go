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

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// applied is what was written last.
type applied struct {
	hash  [sha256.Size]byte
	mark  uint64
	uid   types.UID
	added string // by another field manager, as was reported
}

// applyOne applies an object unless it is as it was last applied.
func (p *pass) applyOne(ctx context.Context, it item) {
	r := it.ref
	if p.failed(r) {
		return
	}
	p.state.mu.Lock()
	last, written := p.state.applied[r]
	p.state.mu.Unlock()
	now, known := p.cache.get(r)
	same := written && last.hash == it.hash
	if same && known && !now.gone && now.mark == last.mark && (r.kind == kindNamespace || now.set == p.set.label) {
		last.added = now.added
		p.note(r, last)
		p.watchBudget(r, now)
		return
	}
	if same && !p.repair(r, now) {
		return
	}
	meta, err := p.write(ctx, it, now, known, last)
	switch {
	case err == nil && meta == nil: // it is gone: an event follows
	case err == nil:
		answer := p.cache.observed(r, &meta.ObjectMeta)
		p.note(r, applied{hash: it.hash, mark: answer.mark, uid: meta.UID, added: answer.added})
		p.cache.observe(r, &meta.ObjectMeta)
		if r.kind == kindClusterRole {
			p.wakeBinders(r.name)
		}
		p.recordQuota(it)
		p.watchBudget(r, now)
	case ctx.Err() == nil:
		phase, message := explain(r, err)
		p.problem(r, phase, message)
	}
}

// note remembers how an object was left, and reports what another field manager has added to it.
func (p *pass) note(r ref, last applied) {
	p.state.mu.Lock()
	p.state.applied[r] = last
	p.state.mu.Unlock()
	if last.added != "" {
		p.problem(r, protocol.SetConflict, "another field manager has added a field that is not in the set ("+last.added+"): remove the field, or delete the object and it is created again")
	}
}

// failed reports whether the object has a problem in this pass already.
func (p *pass) failed(r ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed := p.problems[r]
	return failed
}

// repair reports whether the object may be repaired now, and if so records the repair.
func (p *pass) repair(r ref, now object) bool {
	p.mu.Lock()
	b := p.set.budgets[r]
	if b == nil {
		b = &budget{}
		p.set.budgets[r] = b
	}
	wait := b.wait(p.now)
	if wait <= 0 {
		b.spend(p.now)
	}
	p.mu.Unlock()
	if wait <= 0 {
		p.log().Info("repairing", "object", r.String(), "set", p.set.id, "changedBy", now.other)
		return true
	}
	p.later(wait)
	p.problem(r, protocol.SetFighting, fightMessage(now))
	return false
}

func fightMessage(now object) string {
	who := "something"
	switch {
	case now.gone:
		return "something deletes it each time that it is repaired: stop that, or remove what wants the object on the hub"
	case now.other != "":
		who = fmt.Sprintf("%q (a field manager)", now.other)
	}
	return who + " changes it back each time that it is repaired: stop that, or remove what wants the object on the hub"
}

// watchBudget reports a fight until the budget has reset.
func (p *pass) watchBudget(r ref, now object) {
	p.mu.Lock()
	b, fought := p.set.budgets[r]
	fighting, calm := b.fighting(p.now), b.cooldown(p.now)
	if fought && calm <= 0 {
		delete(p.set.budgets, r)
	}
	p.mu.Unlock()
	if !fought || calm <= 0 {
		return
	}
	p.later(calm)
	if fighting {
		p.problem(r, protocol.SetFighting, fightMessage(now))
	}
}

// foreignError is returned when an object exists that is not ours.
type foreignError struct{ message string }

func (f *foreignError) Error() string { return f.message }

// write applies an object. It returns nil if the object must have a certain UID and is gone.
func (p *pass) write(ctx context.Context, it item, now object, known bool, last applied) (*metav1.PartialObjectMetadata, error) {
	path := p.catalogue.path(it.ref)
	if it.ref.kind == kindNamespace { // joined, never owned: fields of other managers stay
		meta, _, err := p.options.Objects.Apply(ctx, path, fieldManager, false, it.body)
		if it.uid != "" && apierrors.IsConflict(err) && len(rivals(err)) == 0 {
			return nil, nil
		}
		return meta, err
	}
	there := known && !now.gone && now.set == p.set.label
	if !there {
		var err error
		if there, err = p.inspect(ctx, path, last); err != nil {
			return nil, err
		}
	}
	meta, made, err := p.options.Objects.Apply(ctx, path, fieldManager, there, it.body)
	if err == nil && !there && !made { // another client was faster
		_, _, _ = p.options.Objects.Apply(ctx, path, fieldManager, false, bare(meta))
		return nil, &foreignError{message: "another client has just created it: give one of the two another name"}
	}
	if there && apierrors.IsInvalid(err) && immutable(err) {
		return p.replace(ctx, it, path)
	}
	return meta, err
}

// inspect reports whether an object exists and is ours; the error names another owner.
func (p *pass) inspect(ctx context.Context, path string, last applied) (there bool, err error) {
	meta, err := p.options.Objects.Meta(ctx, path)
	if notFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switch now := p.cache.read(&meta.ObjectMeta); {
	case now.set == p.set.label && meta.Labels[v1.LabelManagedBy] == v1.ManagedBy:
		return true, nil
	case now.set == "" && last.uid != "" && last.uid == now.uid: // its labels were removed; managedFields prove nothing, any client can write them
		return true, nil
	case now.set != "":
		return false, &foreignError{message: fmt.Sprintf("it belongs to the set %q: give one of the two another name", now.set)}
	default:
		maker := ""
		if now.other != "" {
			maker = fmt.Sprintf(" (made by %q)", now.other)
		}
		return false, &foreignError{message: "it is there already and not Drover's" + maker + ": remove it or give one of the two another name"}
	}
}

// replace deletes and creates an object that differs in immutable fields.
func (p *pass) replace(ctx context.Context, it item, path string) (*metav1.PartialObjectMetadata, error) {
	if err := p.delete(ctx, it.ref); err != nil {
		return nil, err
	}
	meta, _, err := p.options.Objects.Apply(ctx, path, fieldManager, false, it.body)
	return meta, err
}

func immutable(err error) bool {
	text := err.Error()
	return strings.Contains(text, "immutable") || strings.Contains(text, "cannot change roleRef")
}

// bare returns the object without fields: applying it removes ours.
func bare(meta *metav1.PartialObjectMetadata) []byte {
	raw, err := json.Marshal(map[string]any{
		"apiVersion": meta.APIVersion, "kind": meta.Kind,
		"metadata": map[string]any{"name": meta.Name, "namespace": meta.Namespace, "uid": meta.UID},
	})
	if err != nil { // strings always marshal
		panic(err)
	}
	return raw
}

func notFound(err error) bool { return apierrors.IsNotFound(err) }

// rivals returns the fields that we want to set and other field managers own.
func rivals(err error) []string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return nil
	}
	var names []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Type == metav1.CauseTypeFieldManagerConflict {
			names = append(names, fmt.Sprintf("%s: %s", cause.Field, cause.Message))
		}
	}
	return names
}

// explain returns the phase and the message for an error. The API server's errors can repeat what was sent, so only the fields are named,
// and never the values.
func explain(r ref, err error) (protocol.SetPhase, string) {
	if f := (*foreignError)(nil); errors.As(err, &f) {
		return protocol.SetConflict, f.message
	}
	if names := rivals(err); len(names) > 0 {
		return protocol.SetConflict, "another field manager owns a field: " + strings.Join(names, "; ")
	}
	switch {
	case apierrors.IsInvalid(err):
		return protocol.SetFailed, "the API server refuses it as invalid: " + fields(err)
	case r.kind == kindSecret && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown: // the message of a webhook or policy may repeat the content
		return protocol.SetFailed, fmt.Sprintf("the API server does not take it (%s): admission policies and webhooks of the member know why", apierrors.ReasonForError(err))
	case apierrors.IsForbidden(err):
		return protocol.SetFailed, err.Error() + ": if the agent lacks a right, apply its manifest again"
	default:
		return protocol.SetFailed, err.Error()
	}
}

func fields(err error) string {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		return "it does not say which field"
	}
	var all []string
	for _, cause := range status.Status().Details.Causes {
		all = append(all, cause.Field+" ("+string(cause.Type)+")")
	}
	return strings.Join(all, ", ")
}

// prune removes objects that the set no longer wants: those that carry its label and were applied by us. Namespaces stay and lose our
// fields. Objects in a namespace that is being deleted go with it.
func (p *pass) prune(ctx context.Context) {
	for _, r := range p.unclaim(p.set, p.wanted) {
		if r.kind == kindNamespace {
			p.releaseNamespace(ctx, r)
		}
	}
	for _, r := range p.cache.of(p.set.label) {
		if p.wanted[r] || ctx.Err() != nil || !p.set.deleting && !p.expired() && p.cache.deleting(r.namespace) {
			continue
		}
		if r.kind == kindNamespace {
			p.releaseNamespace(ctx, r)
			continue
		}
		if err := p.delete(ctx, r); err != nil && ctx.Err() == nil {
			phase, message := explain(r, err)
			p.problem(r, phase, message)
		}
	}
}

// removeObjects removes all objects of the set from the member.
func (p *pass) removeObjects(ctx context.Context) {
	p.wanted = map[ref]bool{}
	p.set.quotas = nil
	p.prune(ctx)
}

func (p *pass) releaseNamespace(ctx context.Context, r ref) {
	if err := p.leadership.releaseNamespace(ctx, r); err != nil && ctx.Err() == nil {
		p.problem(r, protocol.SetFailed, err.Error())
	}
}

// maxTries bounds the attempts to delete an object that changes meanwhile.
const maxTries = 3

// delete deletes an object in the version that is known, and reads it again on a conflict.
func (l *leadership) delete(ctx context.Context, r ref) error {
	path := l.catalogue.path(r)
	now, known := l.cache.get(r)
	var err error
	for range maxTries {
		if !known || now.gone || now.deleting || now.mark == 0 || now.set == "" {
			return nil
		}
		err = l.options.Objects.Delete(ctx, path, now.uid, fmt.Sprint(now.version))
		if err == nil || notFound(err) {
			l.cache.vanish(r, now.version)
			l.cache.forget(r)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		meta, failed := l.options.Objects.Meta(ctx, path)
		if notFound(failed) {
			l.cache.vanish(r, now.version)
			l.cache.forget(r)
			return nil
		}
		if failed != nil {
			return failed
		}
		label := now.set
		now = l.cache.read(&meta.ObjectMeta)
		known = now.set == label
	}
	return err
}
