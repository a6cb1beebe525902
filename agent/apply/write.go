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
	added string // by somebody else, as was told
}

// applyOne applies an object if it is not as it was last applied.
func (p *pass) applyOne(ctx context.Context, it item) {
	r := it.ref
	if p.failed(r) {
		return
	}
	p.book.mu.Lock()
	last, written := p.book.applied[r]
	p.book.mu.Unlock()
	now, known := p.world.get(r)
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
	case err == nil && meta == nil: // it is gone, which will be seen
	case err == nil:
		answer := p.world.observed(r, &meta.ObjectMeta)
		p.note(r, applied{hash: it.hash, mark: answer.mark, uid: meta.UID, added: answer.added})
		p.world.observe(r, &meta.ObjectMeta)
		if r.kind == kindClusterRole {
			p.wakeBinders(r.name)
		}
		p.hold(it)
		p.watchBudget(r, now)
	case ctx.Err() == nil:
		phase, message := explain(r, err)
		p.problem(r, phase, message)
	}
}

// note remembers how an object was left, and tells what somebody else has added to it.
func (p *pass) note(r ref, last applied) {
	p.book.mu.Lock()
	p.book.applied[r] = last
	p.book.mu.Unlock()
	if last.added != "" {
		p.problem(r, protocol.SetConflict, "somebody has added to it what it is not to have ("+last.added+"): take that away, or delete it and it is made anew")
	}
}

// failed is whether the object was tried in this pass already, in vain.
func (p *pass) failed(r ref) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, failed := p.problems[r]
	return failed
}

// repair says whether the object may be repaired now, and notes that it is.
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

// watchBudget reports a fight until it is calm.
func (p *pass) watchBudget(r ref, now object) {
	p.mu.Lock()
	b, fought := p.set.budgets[r]
	fighting, calm := b.fighting(p.now), b.calm(p.now)
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

// foreign says that an object is there that is not ours.
type foreign struct{ message string }

func (f *foreign) Error() string { return f.message }

// write applies an object. It returns nil for one that had to be a certain one, which is gone.
func (p *pass) write(ctx context.Context, it item, now object, known bool, last applied) (*metav1.PartialObjectMetadata, error) {
	path := p.catalogue.path(it.ref)
	if it.ref.kind == kindNamespace { // joined, never owned: what others say of it stays
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
	if err == nil && !there && !made { // somebody was faster
		_, _, _ = p.options.Objects.Apply(ctx, path, fieldManager, false, bare(meta))
		return nil, &foreign{message: "somebody else has just made it: give one of the two another name"}
	}
	if there && apierrors.IsInvalid(err) && immutable(err) {
		return p.replace(ctx, it, path)
	}
	return meta, err
}

// inspect says whether an object is there and ours; an error says whose it is.
func (p *pass) inspect(ctx context.Context, path string, last applied) (there bool, err error) {
	meta, err := p.options.Objects.Meta(ctx, path)
	if notFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	switch now := p.world.read(&meta.ObjectMeta); {
	case now.set == p.set.label && meta.Labels[v1.LabelManagedBy] == v1.ManagedBy:
		return true, nil
	case now.set == "" && last.uid != "" && last.uid == now.uid: // its labels were taken away; what managedFields say of it anybody can write
		return true, nil
	case now.set != "":
		return false, &foreign{message: fmt.Sprintf("it belongs to the set %q: give one of the two another name", now.set)}
	default:
		maker := ""
		if now.other != "" {
			maker = fmt.Sprintf(" (made by %q)", now.other)
		}
		return false, &foreign{message: "it is there already and not Drover's" + maker + ": remove it or give one of the two another name"}
	}
}

// replace makes an object anew, where what differs cannot be changed.
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

// bare is an object with none of our fields: applied, it takes them away.
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

// rivals are the field managers that hold what we want to set.
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

// explain says what an error means for a person. The API server's errors can repeat what was sent, so of a refusal only the fields are
// named, and never the values.
func explain(r ref, err error) (protocol.SetPhase, string) {
	if f := (*foreign)(nil); errors.As(err, &f) {
		return protocol.SetConflict, f.message
	}
	if names := rivals(err); len(names) > 0 {
		return protocol.SetConflict, "somebody else manages a field: " + strings.Join(names, "; ")
	}
	switch {
	case apierrors.IsInvalid(err):
		return protocol.SetFailed, "the API server refuses it as invalid: " + fields(err)
	case r.kind == kindSecret && apierrors.ReasonForError(err) != metav1.StatusReasonUnknown: // the words of a webhook, or of a policy, may repeat it
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

// prune removes what the set no longer wants: what carries its label and was applied by us. Namespaces stay and lose our fields. What is in
// a namespace that is on its way out goes with it.
func (p *pass) prune(ctx context.Context) {
	for _, r := range p.unclaim(p.set, p.wanted) {
		if r.kind == kindNamespace {
			p.loosen(ctx, r)
		}
	}
	for _, r := range p.world.of(p.set.label) {
		if p.wanted[r] || ctx.Err() != nil || !p.set.deleting && !p.expired() && p.world.deleting(r.namespace) {
			continue
		}
		if r.kind == kindNamespace {
			p.loosen(ctx, r)
			continue
		}
		if err := p.delete(ctx, r); err != nil && ctx.Err() == nil {
			phase, message := explain(r, err)
			p.problem(r, phase, message)
		}
	}
}

// strip removes all that the set has in the member.
func (p *pass) strip(ctx context.Context) {
	p.wanted = map[ref]bool{}
	p.set.quotas = nil
	p.prune(ctx)
}

func (p *pass) loosen(ctx context.Context, r ref) {
	if err := p.term.loosen(ctx, r); err != nil && ctx.Err() == nil {
		p.problem(r, protocol.SetFailed, err.Error())
	}
}

// maxTries is how often a deletion is tried when the object changes meanwhile.
const maxTries = 3

// delete deletes an object that is as it was when it was last seen, or as it is now.
func (t *term) delete(ctx context.Context, r ref) error {
	path := t.catalogue.path(r)
	now, known := t.world.get(r)
	var err error
	for range maxTries {
		if !known || now.gone || now.deleting || now.mark == 0 || now.set == "" {
			return nil
		}
		err = t.options.Objects.Delete(ctx, path, now.uid, fmt.Sprint(now.version))
		if err == nil || notFound(err) {
			t.world.vanish(r, now.version)
			t.world.forget(r)
			return nil
		}
		if !apierrors.IsConflict(err) {
			return err
		}
		meta, failed := t.options.Objects.Meta(ctx, path)
		if notFound(failed) {
			t.world.vanish(r, now.version)
			t.world.forget(r)
			return nil
		}
		if failed != nil {
			return failed
		}
		label := now.set
		now = t.world.read(&meta.ObjectMeta)
		known = now.set == label
	}
	return err
}
