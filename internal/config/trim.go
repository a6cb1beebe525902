// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"maps"
	"slices"
	"strings"
	"unique"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/internal/untrusted"
)

// trimmed is a placeholder for the annotations that trim removes. Without it, a merge patch that removes the last of
// Drover's annotations would remove all annotations from the object. Its value never changes, so no patch contains it.
const trimmed = v1.Group + "/annotations-trimmed"

// maxProfileLabels is the number of labels that a Cluster can have, plus the number of labels that a ClusterProfile can
// have.
const maxProfileLabels = 400

// trim is a cache transform. It removes the managed fields of objects. From objects of Drover's kinds, it also removes
// the metadata that the manager does not read, because users can give an object more than a megabyte of metadata. The
// drover-cluster-metadata policy limits the labels and finalizers of a Cluster, because these are kept.
func trim(object any) (any, error) {
	object, err := cache.TransformStripManagedFields()(object)
	if err != nil {
		return object, err
	}
	if kind, ours := kinds.Of(object); ours {
		trimOurs(object.(client.Object), kind)
	} else {
		trimOther(object)
	}
	return object, nil
}

func trimOurs(o client.Object, kind kinds.Kind) {
	if kind.Trim != nil {
		kind.Trim(o)
	}
	cluster, isCluster := o.(*v1.Cluster)
	switch {
	case kind.Metadata != nil:
		kind.Metadata.Trim(o)
		return
	case isCluster:
		shareText(cluster)
	default:
		o.SetLabels(nil)
		o.SetFinalizers(nil)
	}
	trimAnnotations(o)
	o.SetOwnerReferences(nil)
}

func trimOther(object any) {
	switch o := object.(type) {
	case *rbacv1.Role:
		made().Trim(o)
		o.Rules = index.OutlineRules(o.Rules)
	case *rbacv1.RoleBinding:
		made().Trim(o)
		kept := slices.Clone(o.Subjects[:min(len(o.Subjects), maxSubjects)])
		o.Subjects = slices.DeleteFunc(kept,
			func(s rbacv1.Subject) bool { return len(s.Name)+len(s.Namespace) > kinds.MaxAnnotation })
	case client.Object:
		if kept, known := metadata(o); known {
			kept.Trim(o)
		}
	}
}

// maxSubjects is the maximum number of subjects that the cache keeps for each RoleBinding. The manager's own
// RoleBindings have one subject, so a second one shows that a subject was added.
const maxSubjects = 2

// made returns the metadata that is kept for a Role or RoleBinding that the manager created for a binding.
func made() untrusted.Metadata {
	return untrusted.Metadata{Labels: []string{v1.LabelManagedBy}, Owners: []string{v1.Group}}
}

// metadata returns the metadata that the cache keeps for an object of another API group. The known result is false if
// all metadata is kept. This is the case for a kind if the cache contains only the objects in the manager's own
// namespace.
func metadata(o client.Object) (kept untrusted.Metadata, known bool) {
	switch o.(type) {
	case *clusterprofile.ClusterProfile:
		return untrusted.Metadata{MoreLabels: maxProfileLabels, Owners: []string{v1.Group}}, true
	}
	return kept, false
}

// shareText makes Clusters with equal strings share the memory for these strings. For example, ten thousand Ready
// Clusters have the same condition messages.
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
		claim := strings.HasPrefix(key, v1.PlanLabel("")) // only the manager is allowed to set claims
		read := key == v1.AnnotationResume || key == v1.AnnotationRestored
		return !claim && (!read || len(value) > kinds.MaxAnnotation)
	})
	if len(kept) == len(all) {
		return
	}
	kept[trimmed] = ""
	o.SetAnnotations(kept)
}
