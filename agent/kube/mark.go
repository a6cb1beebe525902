// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"encoding/binary"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mark returns a hash of the fields that a field manager owns and of the time when it last applied them. The mark is 0
// if the manager has applied no fields. A client that changes one of these fields becomes the field's owner, so the
// mark changes, too. Changes that leave the mark the same, such as a change to a quota's status, are not drift.
//
// Mark also returns the last other field manager that wrote the object, or "" if there is none.
func Mark(managed []metav1.ManagedFieldsEntry, manager string) (mark uint64, other string) {
	var latest time.Time
	for i := range managed {
		f := &managed[i]
		switch {
		case f.Manager == manager && f.Operation == metav1.ManagedFieldsOperationApply && f.Subresource == "":
			mark = markOf(f)
		case f.Subresource == "" && (f.Time == nil || !f.Time.Time.Before(latest)):
			other = f.Manager
			if f.Time != nil {
				latest = f.Time.Time
			}
		}
	}
	return mark, other
}

func markOf(f *metav1.ManagedFieldsEntry) uint64 {
	hash := sha256.New()
	if f.FieldsV1 != nil {
		_, _ = hash.Write(f.FieldsV1.GetRawBytes()) // writing to a hash never fails
	}
	if f.Time != nil {
		_, _ = hash.Write([]byte(f.Time.UTC().Format(time.RFC3339)))
	}
	return binary.BigEndian.Uint64(hash.Sum(nil)) | 1
}
