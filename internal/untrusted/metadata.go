// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package untrusted

import (
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Bounds of metadata that is kept in memory. Kubernetes bounds annotations to 256 KiB, and labels, finalizers and
// owners only by the size of an object.
const (
	maxFinalizers = 16
	maxOwners     = 4
	// maxOwner bounds the texts of an owner reference together, in bytes.
	maxOwner = 1 << 10
)

// Metadata says what is kept of the metadata of an object.
type Metadata struct {
	// Annotations are the keys of those that are read, and how many bytes are kept of each.
	Annotations map[string]int
	// Labels are the keys of those that are read.
	Labels []string
	// MoreLabels is how many other labels are kept, the first by name, for objects that people select by labels of their
	// own.
	MoreLabels int
	// Finalizers keeps the first 16.
	Finalizers bool
	// Owners keeps the first 4 owner references of these API groups.
	Owners []string
}

// Trim drops the rest of an object's metadata. A second call changes nothing. The maps and slices that the object had
// are not changed.
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
