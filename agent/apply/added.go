// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// added looks for a field that another field manager has added to the object. It returns the path of the field and the
// name of the manager, or "" if there is no such field. It ignores metadata and status. Server-side apply leaves such a
// field in place, although the field can defeat the object's purpose, for example by restricting a quota to some scopes
// or by adding a condition to a policy.
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

// beside returns the path of a field that the object theirs contains and the object ours lacks. It omits the keys of
// list items from the path, because they can contain values.
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
