// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/set"
)

// item is an object to apply.
type item struct {
	ref  ref
	from *unstructured.Unstructured // the object that body encodes
	body []byte
	hash [sha256.Size]byte
	uid  types.UID           // UID that the object must have; empty if any UID is allowed
	hard corev1.ResourceList // the limits of a quota that Drover owns; nil for any other object
	role string              // the ClusterRole that the object binds; empty for other objects
}

func newItem(r ref, o *unstructured.Unstructured) (item, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return item{}, fmt.Errorf("encode: %w", err)
	}
	it := item{ref: r, from: o, body: body, hash: sha256.Sum256(body), uid: o.GetUID()}
	it.role = boundRole(o)
	if r.kind == kindQuota && r.name == set.QuotaName {
		it.hard, err = hardOf(o)
	}
	return it, err
}

// bodyWith returns the body with an additional metadata field that the API server treats as a precondition.
func (it item) bodyWith(field, value string) ([]byte, error) {
	meta, _, err := unstructured.NestedMap(it.from.Object, "metadata")
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	meta[field] = value
	object := maps.Clone(it.from.Object)
	object["metadata"] = meta
	body, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("encode: %w", err)
	}
	return body, nil
}

func hardOf(o *unstructured.Unstructured) (corev1.ResourceList, error) {
	amounts, _, err := unstructured.NestedStringMap(o.Object, "spec", "hard")
	if err != nil {
		return nil, fmt.Errorf("read quota: %w", err)
	}
	hard := corev1.ResourceList{}
	for name, text := range amounts {
		amount, err := resource.ParseQuantity(text)
		if err != nil {
			return nil, fmt.Errorf("read quota of %s: %w", name, err)
		}
		hard[corev1.ResourceName(name)] = amount
	}
	return hard, nil
}

// phases groups the objects by the order in which they are applied: namespaces, other objects, quotas that shrink, and
// quotas that grow. This order ensures that an amount is never granted twice while it moves from one namespace to
// another. A quota that shrinks for some resources and grows for others is applied twice, the first time with only the
// reductions.
func phases(items []item, held map[string]corev1.ResourceList) ([4][]item, error) {
	var out [4][]item
	for _, it := range items {
		switch {
		case it.ref.kind == kindNamespace:
			out[0] = append(out[0], it)
		case it.hard == nil:
			out[1] = append(out[1], it)
		default:
			shrinks, grows := change(held[it.ref.namespace], it.hard)
			if shrinks && grows {
				lesser, err := it.lesser(held[it.ref.namespace])
				if err != nil {
					return out, err
				}
				out[2] = append(out[2], lesser)
			}
			if grows {
				out[3] = append(out[3], it)
			} else {
				out[2] = append(out[2], it)
			}
		}
	}
	return out, nil
}

// change reports whether a quota shrinks and whether it grows. A limit on a resource that was previously unlimited
// counts as growth.
func change(held, wanted corev1.ResourceList) (shrinks, grows bool) {
	for name, amount := range wanted {
		before, had := held[name]
		switch order := amount.Cmp(before); {
		case !had:
			grows = grows || amount.Sign() > 0
		case order < 0:
			shrinks = true
		case order > 0:
			grows = true
		}
	}
	return shrinks, grows
}

// lesser returns a quota with the smaller of the current and the desired limit for each resource.
func (it item) lesser(held corev1.ResourceList) (item, error) {
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(it.body); err != nil {
		return item{}, fmt.Errorf("decode quota: %w", err)
	}
	amounts := map[string]any{}
	for name, amount := range it.hard {
		if before, had := held[name]; had && before.Cmp(amount) < 0 {
			amount = before
		}
		amounts[string(name)] = amount.String()
	}
	if err := unstructured.SetNestedMap(o.Object, amounts, "spec", "hard"); err != nil {
		return item{}, fmt.Errorf("write quota: %w", err)
	}
	return newItem(it.ref, o)
}

// added returns the path of a field that another field manager has added to the object, and the name of that manager.
// It returns "" if there is no such field. It ignores metadata and status. Server-side apply leaves such a field in
// place. The field can defeat the object's purpose, for example by restricting a quota to some scopes or by adding a
// condition to a policy.
func added(managed []metav1.ManagedFieldsEntry) string {
	var ours map[string]any
	for i := range managed {
		if f := &managed[i]; f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply &&
			f.Subresource == "" {
			ours = fieldsOf(f)
		}
	}
	for i := range managed {
		f := &managed[i]
		if f.Subresource != "" || f.Manager == fieldManager && f.Operation == metav1.ManagedFieldsOperationApply {
			continue
		}
		theirs := fieldsOf(f)
		delete(theirs, "f:metadata")
		delete(theirs, "f:status")
		if path := beside(theirs, ours); path != "" {
			return fmt.Sprintf("%s, by %q", path, f.Manager)
		}
	}
	return ""
}

func fieldsOf(f *metav1.ManagedFieldsEntry) map[string]any {
	var fields map[string]any
	if f.FieldsV1 != nil {
		_ = json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields) // the API server stores only valid JSON in managed fields
	}
	return fields
}

// beside returns the path of a field that is in theirs but not in ours. The path omits the keys of list items, because
// the keys can contain values.
func beside(theirs, ours map[string]any) string {
	for _, key := range slices.Sorted(maps.Keys(theirs)) {
		if key == "." {
			continue
		}
		mine, both := ours[key]
		name, named := strings.CutPrefix(key, "f:")
		if !both && !named {
			return "an element"
		}
		if !both {
			return name
		}
		below, _ := theirs[key].(map[string]any)
		mineBelow, _ := mine.(map[string]any)
		switch path := beside(below, mineBelow); {
		case path != "" && named:
			return name + "." + path
		case path != "":
			return path
		}
	}
	return ""
}
