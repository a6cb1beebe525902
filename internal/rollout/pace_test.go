// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout_test

import (
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/rollout"
)

func TestPaceOfAPlan(t *testing.T) {
	window := &v1.TimeWindow{StartTime: "02:00"}
	ring := &metav1.LabelSelector{MatchLabels: map[string]string{"ring": "one"}}
	for name, tt := range map[string]struct {
		spec v1.PlanSpec
		want rollout.Pace
	}{
		"without a rollout, members begin one at a time and none may fail": {want: rollout.Pace{MaxConcurrent: 1}},
		"paused, and in a window": {
			v1.PlanSpec{PlanPace: v1.PlanPace{Paused: true, Window: window}},
			rollout.Pace{Paused: true, Window: window, MaxConcurrent: 1},
		},
		"a rollout without a number of members runs one at a time": {
			v1.PlanSpec{PlanTarget: v1.PlanTarget{Rollout: &v1.Rollout{MaxFailedClusters: 2}}},
			rollout.Pace{MaxConcurrent: 1, MaxFailed: 2},
		},
		"waves, with and without selector and soak": {
			v1.PlanSpec{PlanTarget: v1.PlanTarget{Rollout: &v1.Rollout{MaxConcurrentClusters: 5, Waves: []v1.Wave{
				{Name: "first", ClusterSelector: ring, Soak: &metav1.Duration{Duration: time.Hour}}, {Name: "all"},
			}}}},
			rollout.Pace{MaxConcurrent: 5, Waves: []rollout.Wave{{Name: "first", Selector: ring, Soak: time.Hour},
				{Name: "all"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rollout.PaceOf(&tt.spec); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("the pace is %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestStatusOfAMember(t *testing.T) {
	complete := []metav1.Condition{{Type: v1.ConditionReady, Reason: "Other"},
		{Type: v1.ConditionComplete, Reason: v1.ReasonComplete}}
	for name, tt := range map[string]struct {
		said *v1.PlanStatus
		want *rollout.Status
	}{
		"none":                               {},
		"a status without nodes or a reason": {&v1.PlanStatus{Revision: "r"}, &rollout.Status{Revision: "r"}},
		"listed nodes are at work if no nodes were counted": {
			&v1.PlanStatus{Applying: []v1.ApplyingNode{{Node: "n"}}}, &rollout.Status{Busy: true},
		},
		"stuck nodes are not at work": {
			&v1.PlanStatus{Applying: []v1.ApplyingNode{{Node: "n"}},
				Nodes: &v1.PlanCount{Failed: 1}}, &rollout.Status{Counted: true},
		},
		"a complete plan": {
			&v1.PlanStatus{Revision: "r", LatestHash: "h", Conditions: complete, Nodes: &v1.PlanCount{Total: 3, Complete: 3}},
			&rollout.Status{Revision: "r", Hash: "h", Reason: v1.ReasonComplete, Counted: true, Complete: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := rollout.StatusOf(tt.said); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("the status is %+v, want %+v", got, tt.want)
			}
		})
	}
}
