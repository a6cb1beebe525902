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
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/untrusted"
)

// Keys of a Secret with a revision.
const (
	keyRole    = "role"
	keyObjects = "objects"
	// labelRevision is the label with the revision.
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

// unpack returns the objects in a Secret if they belong to the revision. The revision is a digest of the objects,
// so no user can replace them.
func unpack(secret *corev1.Secret, revision string) ([]json.RawMessage, error) {
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
	if untrusted.JSON(raw, &objects, bounds) != nil ||
		baseline.Revision(string(secret.Data[keyRole]), objects) != revision {
		return nil, errors.New("its objects do not belong to the revision")
	}
	return objects, nil
}

// history returns the history with a revision that has become current.
func history(all []v1.BaselineRevision, now set.BaselineOutline, at time.Time) []v1.BaselineRevision {
	if len(all) > 0 && all[0].Revision == now.Revision {
		return all
	}
	added := []v1.BaselineRevision{{
		Revision: now.Revision, Objects: now.Objects, Since: metav1.NewTime(at.Truncate(time.Second)),
	}}
	for _, old := range all {
		if old.Revision != now.Revision && len(added) < v1.MaxBaselineRevisions {
			added = append(added, old)
		}
	}
	return added
}

// slots returns the metadata of the Secrets with the revisions of a Baseline, by their number.
func (r *Reconciler) slots(ctx context.Context, b *v1.Baseline) (map[int]*metav1.PartialObjectMetadata, error) {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("SecretList"))
	if err := r.Live.List(ctx, list, client.InNamespace(b.Namespace), client.MatchingLabels{
		v1.LabelSecretKind: v1.SecretKindBaseline, v1.LabelBaseline: b.Name,
	}); err != nil {
		return nil, fmt.Errorf("list the revisions of baseline %s/%s: %w", b.Namespace, b.Name, err)
	}
	found := map[int]*metav1.PartialObjectMetadata{}
	for i := range list.Items {
		number, is := strings.CutPrefix(list.Items[i].Name, slotName(b.Name, ""))
		if n, err := strconv.Atoi(number); is && err == nil && n >= 0 && n < v1.MaxBaselineRevisions {
			found[n] = &list.Items[i]
		}
	}
	return found, nil
}

func slotName(baseline, number string) string { return baseline + "-revision-" + number }

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
	for _, slot := range slots {
		if slot.Labels[labelRevision] == revision {
			c.packed = nil
			return nil
		}
	}
	for _, n := range writable(slots, b, revision) {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: b.Namespace, Name: slotName(b.Name, strconv.Itoa(n)), Labels: map[string]string{
					v1.LabelManagedBy: v1.ManagedBy, v1.LabelSecretKind: v1.SecretKindBaseline, v1.LabelBaseline: b.Name,
					labelRevision: revision,
				},
			},
			Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{keyRole: []byte(b.Spec.RoleTemplateName), keyObjects: c.packed},
		}
		if err := controllerutil.SetControllerReference(b, secret, r.Client.Scheme()); err != nil {
			return fmt.Errorf("store revision %s of baseline %s/%s: %w", revision, b.Namespace, b.Name, err)
		}
		if old := slots[n]; old != nil {
			secret.UID, secret.ResourceVersion = old.UID, old.ResourceVersion
			err = r.Client.Update(ctx, secret, owned.FieldOwner)
		} else {
			err = r.Client.Create(ctx, secret, owned.FieldOwner)
		}
		switch {
		case apierrors.IsAlreadyExists(err): // a Secret of a user has the name
			continue
		case err != nil:
			return fmt.Errorf("store revision %s of baseline %s/%s: %w", revision, b.Namespace, b.Name, err)
		}
		c.packed = nil
		return nil
	}
	return nil // other Secrets have all names, so this revision cannot be restored
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

// pinned returns the objects of a revision in the history.
func (r *Reconciler) pinned(
	ctx context.Context, b *v1.Baseline, revision string,
) ([]json.RawMessage, *index.Problem, error) {
	slots, err := r.slots(ctx, b)
	if err != nil {
		return nil, nil, err
	}
	missing := fmt.Sprintf("The hub does not keep revision %s: choose one from status.history", revision)
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
		objects, err := unpack(secret, revision)
		if err == nil {
			return objects, nil, nil
		}
		missing = fmt.Sprintf("Revision %s cannot be used, because Secret %s was changed: %v", revision, slot.Name, err)
	}
	return nil, &index.Problem{Reason: v1.ReasonRevisionNotFound, Message: missing, Stalled: true}, nil
}

// completeSuffix cannot be part of a Baseline's name.
const completeSuffix = "/complete"

// completeKey is the key under which the content of a Baseline's last complete revision is remembered.
func completeKey(name types.NamespacedName) types.NamespacedName {
	return types.NamespacedName{Namespace: name.Namespace, Name: name.Name + completeSuffix}
}

// completeContent returns the content of the last complete revision, or nil if the history does not contain it.
func (r *Reconciler) completeContent(ctx context.Context, b *v1.Baseline) (*content, error) {
	templates, err := r.templates(ctx)
	if err != nil {
		return nil, err
	}
	binding, err := access.BaselineBinding(templates, b)
	if err != nil {
		return nil, err
	}
	key, version := completeKey(client.ObjectKeyFromObject(b)), versionOf(b, binding, b.Status.CompleteRevision, nil)
	if known := r.known.recall(key, version); known != nil {
		return known, nil
	}
	objects, problem, err := r.pinned(ctx, b, b.Status.CompleteRevision)
	if problem != nil || err != nil {
		return nil, err
	}
	made, problem, err := build(b, binding, version, objects)
	if problem != nil || err != nil {
		return nil, err
	}
	made.packed = nil
	r.known.remember(key, made)
	return made, nil
}
