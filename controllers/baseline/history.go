// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package baseline

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// keyObjects is the key that holds the compressed objects in a revision's Secret.
	keyObjects = "objects"
	// labelRevision is the label that contains the revision.
	labelRevision = v1.Group + "/revision"
)

// maxPacked is the maximum size of the compressed objects of a revision, in bytes. An API server accepts a Secret with
// at most a mebibyte of data.
const maxPacked = 900_000

// pack compresses objects.
func pack(objects []json.RawMessage) ([]byte, error) {
	raw, err := json.Marshal(objects)
	if err != nil {
		return nil, errors.New("the objects cannot be written as JSON")
	}
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, _ = w.Write(raw) // writing to a buffer never fails
	_ = w.Close()
	if packed.Len() > maxPacked {
		return nil, fmt.Errorf(
			"the objects have %d bytes when they are compressed, and the maximum is %d: split the Baseline",
			packed.Len(), maxPacked)
	}
	return packed.Bytes(), nil
}

// unpack returns the objects in a Secret if they belong to the revision. The revision is a digest of the role template
// and the objects, so no user can replace them.
func unpack(secret *corev1.Secret, role, revision string) ([]json.RawMessage, error) {
	r, err := gzip.NewReader(bytes.NewReader(secret.Data[keyObjects]))
	if err != nil {
		return nil, errors.New("it cannot be decompressed")
	}
	const limit = baseline.MaxSize + 2*baseline.MaxObjects // the objects, commas and brackets
	raw, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil || len(raw) > limit {
		return nil, errors.New("it cannot be decompressed")
	}
	var objects []json.RawMessage
	bounds := untrusted.Bounds{Bytes: limit, Nodes: limit, Depth: 128}
	if untrusted.JSON(raw, &objects, bounds) != nil || baseline.Revision(role, objects) != revision {
		return nil, errors.New("its objects do not belong to the revision")
	}
	return objects, nil
}

// history returns the history after a revision has become current. It keeps the revisions in recorded, or all of them
// if recorded is nil.
func history(all []v1.BaselineRevision, now v1.BaselineRevision, recorded []string) []v1.BaselineRevision {
	if recorded == nil {
		return all
	}
	if len(all) > 0 && all[0].Revision == now.Revision {
		now = all[0]
	}
	var next []v1.BaselineRevision
	for _, one := range append([]v1.BaselineRevision{now}, all...) {
		same := func(other v1.BaselineRevision) bool { return other.Revision == one.Revision }
		if slices.Contains(recorded, one.Revision) && !slices.ContainsFunc(next, same) {
			next = append(next, one)
		}
	}
	return next
}

// slots returns the metadata of the Secrets that hold the revisions of a Baseline, keyed by slot number. It omits the
// labels of Secrets that belong to an earlier Baseline with the same name, because these Secrets are about to be
// deleted.
func (r *Reconciler) slots(ctx context.Context, b *v1.Baseline) (map[int]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.Live.List(ctx, list, client.InNamespace(b.Namespace), client.MatchingLabels{
		v1.LabelSecretKind: v1.SecretKindBaseline, v1.LabelBaseline: b.Name,
	}); err != nil {
		return nil, fmt.Errorf("list the revisions of baseline %s/%s: %w", b.Namespace, b.Name, err)
	}
	var names []string
	for n := range v1.MaxBaselineRevisions {
		names = append(names, slotName(b.Name, n))
	}
	found := map[int]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		n := slices.Index(names, list.Items[i].Name)
		if n < 0 {
			continue
		}
		if found[n] = &list.Items[i]; !owned.By(found[n], b.UID) {
			found[n].Labels = nil
		}
	}
	return found, nil
}

func slotName(baseline string, number int) string { return fmt.Sprint(baseline, "-revision-", number) }

// record stores the objects of a revision in the history, unless the history contains them.
func (r *Reconciler) record(ctx context.Context, b *v1.Baseline, c *content) error {
	if c == nil || c.packed == nil {
		return nil
	}
	slots, err := r.slots(ctx, b)
	if err != nil {
		return err
	}
	revision := c.set.Baseline.Revision
	known := slices.ContainsFunc(slices.Collect(maps.Values(slots)), func(slot *metav1.PartialObjectMetadata) bool {
		return slot.Labels[labelRevision] == revision
	})
	for _, n := range writable(slots, b, revision) {
		if known {
			break
		}
		secret, err := r.secret(b, n, c)
		if err != nil {
			return err
		}
		if old := slots[n]; old != nil {
			secret.UID, secret.ResourceVersion = old.UID, old.ResourceVersion
			err = r.Client.Update(ctx, secret, owned.FieldOwner)
		} else {
			err = r.Client.Create(ctx, secret, owned.FieldOwner)
		}
		switch {
		case apierrors.IsAlreadyExists(err): // a user's Secret has this name
			continue
		case err != nil:
			return fmt.Errorf("store revision %s of baseline %s/%s: %w", revision, b.Namespace, b.Name, err)
		}
		slots[n], known = &metav1.PartialObjectMetadata{ObjectMeta: secret.ObjectMeta}, true
	}
	c.packed, c.recorded = nil, []string{}
	for _, slot := range slots {
		c.recorded = append(c.recorded, slot.Labels[labelRevision])
	}
	return nil
}

// secret returns the Secret that holds a revision in the slot with the given number.
func (r *Reconciler) secret(b *v1.Baseline, number int, c *content) (*corev1.Secret, error) {
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: b.Namespace, Name: slotName(b.Name, number), Labels: map[string]string{
				v1.LabelManagedBy: v1.ManagedBy, v1.LabelSecretKind: v1.SecretKindBaseline, v1.LabelBaseline: b.Name,
				labelRevision: c.set.Baseline.Revision,
			},
		},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{keyObjects: c.packed},
	}
	if err := controllerutil.SetControllerReference(b, secret, r.Client.Scheme()); err != nil {
		return nil, fmt.Errorf("name baseline %s/%s as the owner: %w", b.Namespace, b.Name, err)
	}
	return secret, nil
}

// writable returns the numbers of the Secrets that may be written, in order of preference: first Secrets that do not
// exist, then the Secrets with the oldest revisions. A revision that members may have or get is not overwritten.
func writable(slots map[int]*metav1.PartialObjectMetadata, b *v1.Baseline, revision string) []int {
	age := func(n int) int { // larger for older revisions
		at := slices.IndexFunc(b.Status.History, func(h v1.BaselineRevision) bool {
			return slots[n] != nil && h.Revision == slots[n].Labels[labelRevision]
		})
		switch {
		case slots[n] == nil:
			return 2 * v1.MaxBaselineRevisions
		case at < 0:
			return v1.MaxBaselineRevisions
		}
		return at
	}
	used := []string{revision, b.Status.Revision, b.Spec.Revision, b.Status.CompleteRevision}
	var free []int
	for n := range v1.MaxBaselineRevisions {
		if slots[n] == nil || !slices.Contains(used, slots[n].Labels[labelRevision]) {
			free = append(free, n)
		}
	}
	slices.SortStableFunc(free, func(x, y int) int { return age(y) - age(x) })
	return free
}

// pinned returns the objects of a revision in the history. The revision's role template must be the role template in
// the spec.
func (r *Reconciler) pinned(
	ctx context.Context, b *v1.Baseline, revision string,
) ([]json.RawMessage, *index.Problem, error) {
	missing := fmt.Sprintf("The hub does not keep revision %s: choose one from status.history", revision)
	notFound := func() *index.Problem {
		return &index.Problem{Reason: v1.ReasonRevisionNotFound, Message: missing, Stalled: true}
	}
	if role := roleOf(b, revision); role != b.Spec.RoleTemplateName {
		missing = fmt.Sprintf("Revision %s has another role template: set roleTemplateName to %s as well", revision, role)
		return nil, notFound(), nil
	}
	slots, err := r.slots(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	for _, slot := range slots {
		if slot.Labels[labelRevision] != revision {
			continue
		}
		secret := &corev1.Secret{}
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(slot), secret); client.IgnoreNotFound(err) != nil {
			return nil, nil, fmt.Errorf("read revision %s of baseline %s/%s: %w", revision, b.Namespace, b.Name, err)
		} else if err != nil {
			break
		}
		objects, err := unpack(secret, b.Spec.RoleTemplateName, revision)
		if err == nil {
			return objects, nil, nil
		}
		missing = fmt.Sprintf("Revision %s cannot be used, because Secret %s was changed: %v", revision, slot.Name, err)
	}
	return nil, notFound(), nil
}

// roleOf returns the role template of a revision, or the role template in the spec if the history does not list the
// revision.
func roleOf(b *v1.Baseline, revision string) string {
	for _, h := range b.Status.History {
		if h.Revision == revision && h.RoleTemplateName != "" {
			return h.RoleTemplateName
		}
	}
	return b.Spec.RoleTemplateName
}

// completeSuffix cannot be part of a Baseline's name.
const completeSuffix = "/complete"

// completeKey is the key under which the content of a Baseline's last complete revision is remembered.
func completeKey(name types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: name.Namespace, Name: name.Name + completeSuffix}
}

// completeContent returns the content of the last complete revision, or nil if the history does not contain it.
func (r *Reconciler) completeContent(ctx context.Context, b *v1.Baseline) (*content, error) {
	revision := b.Status.CompleteRevision
	then := b.DeepCopy()
	then.Spec.RoleTemplateName = roleOf(b, revision)
	binding, problem, err := r.binding(ctx, then)
	if problem != nil || err != nil {
		return nil, err
	}
	key, version := completeKey(client.ObjectKeyFromObject(b)), versionOf(b, binding, revision, nil)
	if known := r.known.recall(key, version); known != nil {
		return known, nil
	}
	objects, problem, err := r.pinned(ctx, then, revision)
	if problem != nil || err != nil {
		return nil, err
	}
	made, problem, err := build(then, binding, version, objects)
	if problem != nil || err != nil {
		return nil, err
	}
	made.packed = nil
	r.known.remember(key, made)
	return made, nil
}
