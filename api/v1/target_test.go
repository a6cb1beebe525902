// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestATargetSelectsClusters(t *testing.T) {
	tests := map[string]struct {
		target v1.ClusterTarget
		want   bool
		fails  bool
	}{
		"by name":         {v1.ClusterTarget{ClusterName: "prod"}, true, false},
		"by another name": {v1.ClusterTarget{ClusterName: "test"}, false, false},
		"by label": {
			v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}, true, false,
		},
		"by another label": {
			v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "test"}}}, false,
			false,
		},
		"the empty selector means all": {v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{}}, true, false},
		"nothing means none":           {v1.PlanSpec{}.Target(), false, false},
		"both together mean none": {
			v1.ClusterTarget{ClusterName: "prod", ClusterSelector: &metav1.LabelSelector{}}, false, false,
		},
		"a selector that cannot be read": {
			v1.ClusterTarget{
				ClusterSelector: &metav1.LabelSelector{
					MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}},
				},
			},
			false, true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := tt.target.Selects("prod", map[string]string{"env": "prod"})
			if got != tt.want || (err != nil) != tt.fails {
				t.Errorf("got %t, %v, want %t and an error: %t", got, err, tt.want, tt.fails)
			}
		})
	}
}
