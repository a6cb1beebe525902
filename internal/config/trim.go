// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"strings"
	"unique"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// trimmed replaces the annotations that trim left out. Without it, a merge patch that removes the last one of ours would remove all annotations. It is
// the same before and after a change, so that no patch contains it.
const trimmed = v1.Group + "/annotations-trimmed"

// maxAnnotation bounds an annotation that people write and the manager reads, in bytes.
const maxAnnotation = 1 << 10

// trim is a cache transform: of objects it leaves out managed fields, and of our kinds the metadata that the manager does not read, since a user may
// give an object more than a megabyte of it. What is kept of a Cluster, its labels and finalizers, is bounded by a policy (drover-cluster-metadata).
func trim(object any) (any, error) {
	object, err := cache.TransformStripManagedFields()(object)
	if err != nil {
		return object, err
	}
	switch o := object.(type) {
	case *v1.Cluster:
		trimAnnotations(o)
		o.OwnerReferences = nil
		shareText(o)
	case *v1.Plan, *v1.Project, *v1.RoleTemplate, *v1.ClusterRoleTemplateBinding, *v1.ProjectRoleTemplateBinding, *v1.User:
		other := o.(client.Object)
		trimAnnotations(other)
		other.SetOwnerReferences(nil)
		other.SetLabels(nil)
		other.SetFinalizers(nil)
	}
	return object, nil
}

// shareText lets Clusters that say the same share the text: of ten thousand that are Ready each has the same conditions.
func shareText(c *v1.Cluster) {
	shared := func(text string) string { return unique.Make(text).Value() }
	for i := range c.Status.Conditions {
		condition := &c.Status.Conditions[i]
		condition.Type, condition.Reason, condition.Message = shared(condition.Type), shared(condition.Reason), shared(condition.Message)
		condition.Status = metav1.ConditionStatus(shared(string(condition.Status)))
	}
	c.Status.Version, c.Status.Distribution = shared(c.Status.Version), shared(c.Status.Distribution)
}

func trimAnnotations(o client.Object) {
	all := o.GetAnnotations()
	kept := maps.Clone(all)
	maps.DeleteFunc(kept, func(key, value string) bool {
		claim := strings.HasPrefix(key, v1.PlanLabel("")) // only the manager may set it
		read := key == v1.AnnotationResume || key == v1.AnnotationRestored
		return !claim && (!read || len(value) > maxAnnotation)
	})
	if len(kept) == len(all) {
		return
	}
	kept[trimmed] = ""
	o.SetAnnotations(kept)
}
