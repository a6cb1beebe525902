// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// trimmed stands for the annotations that trim left out. With it a merge patch that takes the last one of ours away does not say that there shall be
// none at all. It is the same before and after any change, so it is never written.
const trimmed = v1.Group + "/annotations-trimmed"

// maxAnnotation bounds an annotation that people write and the manager reads, in bytes.
const maxAnnotation = 1 << 10

// trim is a cache transform: of objects it leaves out managed fields, and of our kinds the annotations that the manager does not read. Whoever may make a
// Cluster may give it 256 KiB of them.
func trim(object any) (any, error) {
	object, err := cache.TransformStripManagedFields()(object)
	if err != nil {
		return object, err
	}
	switch o := object.(type) {
	case *v1.Cluster, *v1.Plan, *v1.Project, *v1.RoleTemplate, *v1.ClusterRoleTemplateBinding, *v1.ProjectRoleTemplateBinding:
		trimAnnotations(o.(client.Object))
	}
	return object, nil
}

func trimAnnotations(o client.Object) {
	all := o.GetAnnotations()
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(key, value string) bool {
		claim := strings.HasPrefix(key, v1.PlanLabel("")) // only the manager may set it
		return !claim && (key != v1.AnnotationResume || len(value) > maxAnnotation)
	})
	if len(kept) == len(all) {
		return
	}
	kept[trimmed] = ""
	o.SetAnnotations(kept)
}
