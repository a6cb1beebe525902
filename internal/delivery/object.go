// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object returns an object as it is put into a set: without the fields that only an API server sets.
func Object(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}
	o := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return o, nil
}
