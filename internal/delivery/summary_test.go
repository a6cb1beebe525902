// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
)

func TestSummarize(t *testing.T) {
	failed := func(cluster, reason string) delivery.Outcome {
		return delivery.Outcome{Cluster: cluster, Stage: delivery.Failed, Reason: reason, Failures: []v1.Failure{{Cluster: cluster, Object: "set", Message: "m"}}}
	}
	at := func(stage delivery.Stage) delivery.Outcome { return delivery.Outcome{Cluster: "a", Stage: stage} }
	for name, tt := range map[string]struct {
		outcomes []delivery.Outcome
		reason   string
		ready    bool
		stalled  bool
		summary  string
	}{
		"no member is selected":      {nil, v1.ReasonNoClusters, true, false, "0/0"},
		"all have it":                {[]delivery.Outcome{at(delivery.Applied), at(delivery.Applied)}, v1.ReasonApplied, true, false, "2/2"},
		"one is on its way":          {[]delivery.Outcome{at(delivery.Applied), at(delivery.Pending), at(delivery.Away)}, v1.ReasonDelivering, false, false, "1/3"},
		"a role is missing":          {[]delivery.Outcome{failed("a", v1.ReasonRoleMissing), failed("b", v1.ReasonDeliveryFailed)}, v1.ReasonDeliveryFailed, false, false, "0/2"},
		"only that":                  {[]delivery.Outcome{failed("a", v1.ReasonRoleMissing)}, v1.ReasonRoleMissing, false, true, "0/1"},
		"one is away":                {[]delivery.Outcome{at(delivery.Applied), at(delivery.Away)}, v1.ReasonApplied, true, false, "1/2"},
		"all are away":               {[]delivery.Outcome{at(delivery.Away), at(delivery.Away)}, v1.ReasonMembersAway, true, false, "0/2"},
		"one is away, and one fails": {[]delivery.Outcome{at(delivery.Away), failed("b", v1.ReasonConflict)}, v1.ReasonConflict, false, true, "0/2"},
		"a failure comes before what is on its way": {[]delivery.Outcome{at(delivery.Pending), failed("b", v1.ReasonDeliveryFailed)}, v1.ReasonDeliveryFailed, false, false, "0/2"},
		"what a person must mend comes first":       {[]delivery.Outcome{failed("a", v1.ReasonDeliveryFailed), failed("b", v1.ReasonConflict)}, v1.ReasonConflict, false, true, "0/2"},
	} {
		t.Run(name, func(t *testing.T) {
			v := delivery.Summarize(tt.outcomes)
			if v.Reason != tt.reason || v.Ready != tt.ready || v.Stalled != tt.stalled || v.Clusters.Summary != tt.summary {
				t.Errorf("got %+v, want another reason, Ready, Stalled or summary", v)
			}
		})
	}
	t.Run("the message is a sentence about one cluster, and about one object unless all are meant", func(t *testing.T) {
		of := func(object, message string) string {
			o := failed("b", v1.ReasonConflict)
			o.Failures[0].Object, o.Failures[0].Message = object, message
			return delivery.Summarize([]delivery.Outcome{at(delivery.Applied), o}).Message
		}
		const start = "1 of 2 clusters do not have all of it. In cluster b: "
		if got := of("set", "It could not be sent"); got != start+"It could not be sent" {
			t.Errorf("got %v, want the sentence for the whole set", got)
		}
		if got := of("ClusterRole x", "it is not Drover's"); got != start+"ClusterRole x: it is not Drover's" {
			t.Errorf("got %v, want the sentence with the object", got)
		}
	})
	t.Run("ten failures are named at most", func(t *testing.T) {
		var many []delivery.Outcome
		for i := range 30 {
			many = append(many, failed(fmt.Sprintf("c%02d", 30-i), v1.ReasonDeliveryFailed))
		}
		if v := delivery.Summarize(many); len(v.Failures) != v1.MaxFailures || v.Failures[0].Cluster != "c01" || v.Clusters.Failed != 30 {
			t.Errorf("got %+v, want the first failures by name, and 30 counted", v)
		}
	})
}

func TestSummary(t *testing.T) {
	now := time.Now()
	t.Run("what was handed over a moment ago is not written down", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending, Since: now}})
		if v.Delay(false, now) <= 0 || v.Delay(false, now.Add(time.Second)) != 0 {
			t.Errorf("got %v, want the condition written at once after a second", v)
		}
	})
	t.Run("what has come to a member that is busy is written when the burst has ended, or after two seconds", func(t *testing.T) {
		for name, tt := range map[string]struct {
			outcomes []delivery.Outcome
			after    time.Duration
			want     time.Duration
		}{
			"busy":                                  {[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 0, 500 * time.Millisecond},
			"busy for long":                         {[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 1900 * time.Millisecond, 100 * time.Millisecond},
			"busy for too long":                     {[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 2 * time.Second, 0},
			"not busy":                              {[]delivery.Outcome{{Stage: delivery.Applied, Since: now}}, 0, 0},
			"one of two members":                    {[]delivery.Outcome{{Stage: delivery.Applied, Since: now}, {Stage: delivery.Applied, Since: now, Busy: true}}, 0, 500 * time.Millisecond},
			"busy, and still pending":               {[]delivery.Outcome{{Stage: delivery.Pending, Since: now, Busy: true}}, 0, time.Second},
			"busy, and handed over at another time": {[]delivery.Outcome{{Stage: delivery.Applied, Busy: true}}, 0, 0},
		} {
			if got := delivery.Summarize(tt.outcomes).Delay(true, now.Add(tt.after)); got != tt.want {
				t.Errorf("%s: it waits for %v, want %v", name, got, tt.want)
			}
		}
	})
	t.Run("what agents have not told yet changes no status that was written before", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Unreported}})
		if v.Delay(true, now) <= 0 || v.Delay(false, now) != 0 {
			t.Errorf("got %v, want only the status of what was Ready to wait", v)
		}
	})
	t.Run("what members say is not urgent; what the hub says is", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}})
		if v.Urgent(true, &v1.ClusterCount{Desired: 1}) || !v.Urgent(false, &v1.ClusterCount{Desired: 1}) || !v.Urgent(true, &v1.ClusterCount{Desired: 2}) || !v.Urgent(true, nil) {
			t.Errorf("got %v, want it urgent when Ready or the number of clusters changes", v)
		}
		if v.Refuse(1, v1.ReasonConflict, "m", true); !v.Urgent(true, &v1.ClusterCount{Desired: 1}) {
			t.Errorf("got %v, want a refusal to be urgent", v)
		}
	})
	t.Run("what is refused counts the members that do not have it", func(t *testing.T) {
		v := delivery.Summarize(nil)
		if v.Refuse(3, v1.ReasonConflict, "m", true); v.Clusters.Summary != "0/3" || v.Clusters.Desired != 3 {
			t.Errorf("the clusters are %v, want 0/3", v.Clusters)
		}
	})
	t.Run("Ready speaks of what can be reached, Complete of the whole, as kstatus and kubectl wait read them", func(t *testing.T) {
		expired := func(held, away int) delivery.Summary {
			var v delivery.Summary
			v.Expire("it expired", held, away, 0)
			return v
		}
		for name, tt := range map[string]struct {
			summary         delivery.Summary
			ready, complete string
		}{
			"all have it":             {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}}), "True Applied", "True Applied"},
			"one is away":             {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}, {Stage: delivery.Away}}), "True Applied", "False MembersAway"},
			"no member ever had it":   {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Away}}), "False MembersAway", "False MembersAway"},
			"one is on its way":       {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending}, {Stage: delivery.Away}}), "False Delivering", "False Delivering"},
			"expired":                 {expired(0, 0), "True Expired", "True Expired"},
			"expired, and there yet":  {expired(1, 1), "True Expired", "False Delivering"},
			"expired, and one is off": {expired(0, 1), "True Expired", "False MembersAway"},
		} {
			var conditions []metav1.Condition
			if news := tt.summary.Write(&conditions, 1, now); news != (tt.summary.Reason != v1.ReasonDelivering) {
				t.Errorf("%s: the first state is news: %t", name, news)
			}
			got := map[string]string{}
			for _, c := range conditions {
				got[c.Type] = string(c.Status) + " " + c.Reason
			}
			if want := map[string]string{v1.ConditionReady: tt.ready, v1.ConditionComplete: tt.complete}; !maps.Equal(got, want) {
				t.Errorf("%s: %v, want %v", name, got, want)
			}
		}
	})
	t.Run("while all members are away, Ready stays True only where a member has had it", func(t *testing.T) {
		away := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Away}})
		for name, tt := range map[string]struct {
			before delivery.Summary
			want   metav1.ConditionStatus
		}{
			"a member had it":            {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}}), metav1.ConditionTrue},
			"no cluster was selected":    {delivery.Summarize(nil), metav1.ConditionFalse},
			"it was on its way":          {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending}}), metav1.ConditionFalse},
			"no member was ever there":   {away, metav1.ConditionFalse},
			"the only member refused it": {delivery.Summarize([]delivery.Outcome{{Stage: delivery.Failed, Reason: v1.ReasonConflict, Failures: []v1.Failure{{}}}}), metav1.ConditionFalse},
		} {
			var conditions []metav1.Condition
			tt.before.Write(&conditions, 1, now)
			for generation := range int64(3) { // it stays so, also when the spec changes
				away.Write(&conditions, 1+generation, now)
				if got := meta.FindStatusCondition(conditions, v1.ConditionReady); got.Status != tt.want || got.Reason != v1.ReasonMembersAway {
					t.Errorf("%s: Ready is %s %s, want %s %s", name, got.Status, got.Reason, tt.want, v1.ReasonMembersAway)
				}
			}
		}
	})
	t.Run("a condition that no longer stalls loses Stalled", func(t *testing.T) {
		var conditions []metav1.Condition
		v := delivery.Summarize(nil)
		v.Refuse(0, v1.ReasonConflict, "m", true)
		if !v.Write(&conditions, 1, now) || len(conditions) != 3 {
			t.Errorf("the conditions are %v, want three", conditions)
		}
		if again := v.Write(&conditions, 1, now); again {
			t.Error("the same was news twice")
		}
		if ok := delivery.Summarize(nil); !ok.Write(&conditions, 2, now) || len(conditions) != 2 || conditions[0].ObservedGeneration != 2 {
			t.Errorf("the conditions are %v, want two of generation 2", conditions)
		}
	})
}
