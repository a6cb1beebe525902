// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package untrusted

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits on metadata that is kept in memory. Kubernetes limits annotations to 256 KiB. Labels, finalizers and owner
// references are limited only by the maximum size of an object.
const (
	maxFinalizers = 16
	maxOwners     = 4
	// maxOwner is the maximum total length of the strings in an owner reference, in bytes.
	maxOwner = 1 << 10
)

// Metadata defines which parts of an object's metadata are kept.
type Metadata struct {
	// Annotations maps the key of each annotation to keep to the maximum number of bytes of its value.
	Annotations map[string]int
	// Labels contains the keys of the labels to keep.
	Labels []string
	// MoreLabels is the number of other labels to keep, in the order of their keys. It is meant for objects that
	// users select by their own labels.
	MoreLabels int
	// Finalizers is true if the first 16 finalizers are kept.
	Finalizers bool
	// Owners lists API groups. The first 4 owner references to objects of these groups are kept.
	Owners []string
}

// Trim removes all other metadata from an object. It is idempotent. It does not modify the object's existing maps and
// slices.
func (k Metadata) Trim(o metav1.Object) {
	o.SetManagedFields(nil)
	annotations := map[string]string{}
	for key, most := range k.Annotations {
		if value, there := o.GetAnnotations()[key]; there {
			annotations[key] = strings.Clone(value[:min(len(value), most)])
		}
	}
	if o.SetAnnotations(annotations); len(annotations) == 0 {
		o.SetAnnotations(nil)
	}
	k.trimLabels(o)
	finalizers := o.GetFinalizers()
	if !k.Finalizers {
		o.SetFinalizers(nil)
	} else if len(finalizers) > maxFinalizers {
		o.SetFinalizers(slices.Clone(finalizers[:maxFinalizers]))
	}
	k.trimOwners(o)
}

func (k Metadata) trimLabels(o metav1.Object) {
	all, kept, more := o.GetLabels(), map[string]string{}, k.MoreLabels
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if named := slices.Contains(k.Labels, key); named || more > 0 {
			kept[key] = all[key]
			if !named {
				more--
			}
		}
	}
	if o.SetLabels(kept); len(kept) == 0 {
		o.SetLabels(nil)
	}
}

func (k Metadata) trimOwners(o metav1.Object) {
	var kept []metav1.OwnerReference
	for _, owner := range o.GetOwnerReferences() {
		group, _, _ := strings.Cut(owner.APIVersion, "/")
		size := len(owner.APIVersion) + len(owner.Kind) + len(owner.Name) + len(owner.UID)
		if len(kept) < maxOwners && size <= maxOwner && slices.Contains(k.Owners, group) {
			kept = append(kept, owner)
		}
	}
	o.SetOwnerReferences(kept)
}
