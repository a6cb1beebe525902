// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/json"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/clusterprofile"
	"github.com/drover-dev/drover/internal/untrusted"
)

// The functions in this file compare the desired profile with the existing profile. Additions by other clients do not
// count as differences. Otherwise, each reconcile would write the profile again.

// sameLabels reports whether a profile has all the desired labels, and no other labels that Drover has set.
func sameLabels(want, found *clusterprofile.ClusterProfile) bool {
	for key, value := range want.Labels {
		if at, there := found.Labels[key]; !there || at != value {
			return false
		}
	}
	return !slices.ContainsFunc(appliedLabels(found.ManagedFields), func(key string) bool { _, wanted := want.Labels[key]; return !wanted })
}

// appliedLabels returns the keys of the labels that the hub has applied.
func appliedLabels(managed []metav1.ManagedFieldsEntry) (keys []string) {
	for i := range managed {
		f := &managed[i]
		if f.Manager != v1.ManagedBy || f.Operation != metav1.ManagedFieldsOperationApply || f.Subresource != "" || f.FieldsV1 == nil {
			continue
		}
		var fields struct {
			Metadata struct {
				Labels map[string]json.RawMessage `json:"f:labels"`
			} `json:"f:metadata"`
		}
		_ = untrusted.JSON(f.FieldsV1.GetRawBytes(), &fields, untrusted.Large()) // the API server wrote this value
		for key := range fields.Metadata.Labels {
			if label, is := strings.CutPrefix(key, "f:"); is {
				keys = append(keys, label)
			}
		}
	}
	return keys
}

// sameStatus reports whether a status is up to date. It ignores the transition times of conditions, because stored
// times have only a precision of seconds.
func sameStatus(want, found clusterprofile.ClusterProfileStatus) bool {
	timeless := func(conditions []metav1.Condition) []metav1.Condition {
		all := slices.Clone(conditions)
		for i := range all {
			all[i].LastTransitionTime = metav1.Time{}
		}
		return all
	}
	ours := func(p clusterprofile.Property) bool {
		return p.Name == propertyID || p.Name == propertySet || p.Name == propertyDistribution
	}
	way := func(a clusterprofile.AccessProvider) bool { return a.Name == provider }
	return want.Version == found.Version && within(timeless(want.Conditions), timeless(found.Conditions)) &&
		within(want.Properties, found.Properties) && count(want.Properties, ours) == count(found.Properties, ours) &&
		within(want.AccessProviders, found.AccessProviders) && count(want.AccessProviders, way) == count(found.AccessProviders, way)
}

// within reports whether all contains every element of some.
func within[E any](some, all []E) bool {
	return !slices.ContainsFunc(some, func(one E) bool {
		return !slices.ContainsFunc(all, func(other E) bool { return equality.Semantic.DeepEqual(one, other) })
	})
}

func count[E any](all []E, is func(E) bool) (n int) {
	for _, one := range all {
		if is(one) {
			n++
		}
	}
	return n
}
