// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/agent/kube"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
)

// write applies an object and records it. If it returns false, it has reported a problem.
func (p *pass) write(ctx context.Context, f *follow, w wanted, e entry, now live, there bool) (live, bool) {
	o, phase, reason := compose(p.content, w.at, p.values)
	if reason != "" {
		p.report(w.ref, phase, reason)
		return live{}, false
	}
	a := attempt{pass: p, at: f.served, wanted: w, object: o, entry: e}
	// Fields are taken back from other field managers only if an earlier pass applied them.
	a.force = p.content.Conflicts == v1.ConflictsTake || e.Digest == w.digest && p.content.Drift != v1.DriftReport
	stored, err := a.send(ctx, now.uid, there)
	if err != nil {
		p.failed(ctx, w.ref, err)
		return live{}, false
	}
	f.objects.Wrote(stored)
	result := readLive(w.kind, p.name, stored)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.store.put(entry{APIVersion: w.apiVersion, Kind: w.name, Namespace: w.namespace, Name: w.object,
		UID: result.uid, Digest: w.digest, Mark: result.mark})
	delete(p.late, w.ref)
	return result, true
}

// attempt holds the parameters of one attempt to apply an object.
type attempt struct {
	pass   *pass
	at     served
	wanted wanted
	object *unstructured.Unstructured
	entry  entry
	force  bool
}

func (a *attempt) path() string { return a.at.path(a.wanted.namespace, a.wanted.object) }

// send applies the object, and returns the stored object. It changes only an object that belongs to the Baseline.
func (a *attempt) send(ctx context.Context, uid types.UID, there bool) (*kube.Whole, error) {
	if there {
		if stored, err := a.apply(ctx, "uid", string(uid), a.force); !kube.Replaced(err) || len(kube.Rivals(err)) > 0 {
			return stored, err
		}
	}
	return kube.Own(
		func() (*kube.Whole, error) { return a.apply(ctx, "resourceVersion", kube.NoVersion, false) },
		func() (types.UID, error) { return a.inspect(ctx) },
		func(uid types.UID) (*kube.Whole, error) { return a.apply(ctx, "uid", string(uid), a.force) },
	)
}

// apply sends the object with an additional metadata field that the API server treats as a precondition.
func (a *attempt) apply(ctx context.Context, field, value string, force bool) (*kube.Whole, error) {
	o := a.object.DeepCopy()
	if err := unstructured.SetNestedField(o.Object, value, "metadata", field); err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	body, err := json.Marshal(o.Object)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	var stored *kube.Whole
	err = a.pass.options.Write(ctx, a.wanted.place(), a.pass.id, func(ctx context.Context) error {
		_, raw, err := a.pass.objects.ApplyWhole(ctx, a.path(), baseline.User(a.pass.name), force, body)
		if err != nil {
			return err
		}
		stored, err = kube.ReadWhole(raw)
		return err
	})
	return stored, err
}

// inspect returns the UID of an existing object that belongs to the Baseline, or "" if the object does not exist.
func (a *attempt) inspect(ctx context.Context) (types.UID, error) {
	meta, err := a.pass.objects.Meta(ctx, a.path())
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", err
	case a.pass.owns(meta, a.entry):
		return meta.UID, nil
	case meta.Labels[v1.LabelBaseline] != "":
		return "", &kube.ForeignError{Message: fmt.Sprintf("it belongs to the Baseline %q: remove it from one of the two",
			meta.Labels[v1.LabelBaseline])}
	}
	_, other := kube.Mark(meta.ManagedFields, "")
	maker := ""
	if other != "" {
		maker = fmt.Sprintf(" (made by %q)", other)
	}
	return "", &kube.ForeignError{Message: fmt.Sprintf("it already exists and is not the Baseline's%s: remove it, or "+
		"hand it over with the label %s=%s", maker, v1.LabelBaseline, a.pass.name)}
}

// owns reports whether an object belongs to the Baseline, either because its UID is in the inventory or because it has
// the Baseline's label.
func (b *kept) owns(meta *metav1.PartialObjectMetadata, e entry) bool {
	return e.UID != "" && meta.UID == e.UID || meta.Labels[v1.LabelBaseline] == b.name
}

const (
	// grantTime is how long an API server may take to notice a new binding, and grantAgain is the delay before the next
	// attempt during this time.
	grantTime  = 2 * time.Second
	grantAgain = 50 * time.Millisecond
)

// failed reports why a request for an object failed. It reports nothing if ctx has ended.
func (p *pass) failed(ctx context.Context, r ref, err error) {
	if ctx.Err() != nil {
		return
	}
	phase, message := explain(r, baseline.User(p.name), err)
	if phase == protocol.SetForbidden && p.now.Sub(p.since) < grantTime {
		phase, message = protocol.SetPending, "the API server does not know the rights of the Baseline's user yet"
		p.later(grantAgain)
	}
	p.report(r, phase, message)
}

// wrongField matches the part of an API server's error that names a field with a wrong type, or a field that does not
// exist.
var wrongField = regexp.MustCompile(`(\.[\w./-]+): (expected \w+|field not declared in schema)`)

// wrongFields returns the fields that the API server cannot read, without their values.
func wrongFields(err error) string {
	var all []string
	for _, found := range wrongField.FindAllStringSubmatch(err.Error(), -1) {
		all = append(all, found[1]+" ("+found[2]+")")
	}
	if len(all) == 0 {
		return "it does not name a field: apply the object with kubectl and --dry-run=server to see the reason"
	}
	return strings.Join(all, ", ")
}

// explain returns the phase and the message for an error. An error from the API server can repeat values of the
// object, so the message contains only the names of fields.
func explain(r ref, user string, err error) (protocol.SetPhase, string) {
	if f := (*kube.ForeignError)(nil); errors.As(err, &f) {
		return protocol.SetConflict, f.Message
	}
	if names := kube.Rivals(err); len(names) > 0 {
		return protocol.SetConflict, "another field manager owns a field: " + strings.Join(names, "; ")
	}
	// The API server names the user only if the user lacks a right. Other refusals come from admission.
	lacksRight := apierrors.IsForbidden(err) &&
		strings.Contains(strings.ToLower(err.Error()), "user "+strconv.Quote(user))
	reason := apierrors.ReasonForError(err)
	switch status := (apierrors.APIStatus)(nil); {
	case apierrors.IsInvalid(err):
		return protocol.SetFailed, "the API server rejects it as invalid: " + kube.InvalidFields(err)
	case r.secret() && apierrors.IsForbidden(err):
		return protocol.SetForbidden, "the API server forbids it to the Baseline's user: add the right to the role " +
			"template, or check the admission policies and webhooks of the member"
	// If a field has the wrong type, the message quotes the value, and the status often has no reason.
	case errors.As(err, &status) && (reason == metav1.StatusReasonUnknown || reason == metav1.StatusReasonBadRequest):
		return protocol.SetFailed, "the API server cannot read it: " + wrongFields(err)
	case r.secret() && status != nil:
		return protocol.SetFailed, fmt.Sprintf("the API server rejects it (%s): check the admission policies and webhooks "+
			"of the member", reason)
	case lacksRight:
		return protocol.SetForbidden, err.Error() + ": add the right to the role template"
	}
	return protocol.SetFailed, err.Error()
}
