// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/delivery"
)

func TestSummarize(t *testing.T) {
	failed := func(cluster, reason string) delivery.Outcome {
		return delivery.Outcome{
			Cluster: cluster, Stage: delivery.Failed, Reason: reason,
			Failures: []v1.Failure{{Cluster: cluster, Object: "set", Message: "m"}},
		}
	}
	at := func(stage delivery.Stage) delivery.Outcome { return delivery.Outcome{Cluster: "a", Stage: stage} }
	for name, tt := range map[string]struct {
		outcomes []delivery.Outcome
		reason   string
		ready    bool
		stalled  bool
		summary  string
	}{
		"no member is selected": {nil, v1.ReasonNoClusters, true, false, "0/0"},
		"all have it": {
			[]delivery.Outcome{at(delivery.Applied), at(delivery.Applied)}, v1.ReasonApplied, true, false, "2/2",
		},
		"one is pending": {
			[]delivery.Outcome{at(delivery.Applied), at(delivery.Pending), at(delivery.Away)}, v1.ReasonDelivering, false, false,
			"1/3",
		},
		"a role is missing": {
			[]delivery.Outcome{failed("a", v1.ReasonRoleMissing), failed("b", v1.ReasonDeliveryFailed)}, v1.ReasonDeliveryFailed,
			false, false, "0/2",
		},
		"only a role is missing": {
			[]delivery.Outcome{failed("a", v1.ReasonRoleMissing)}, v1.ReasonRoleMissing, false, true, "0/1",
		},
		"only rights of a Baseline are missing": {
			[]delivery.Outcome{failed("a", v1.ReasonForbidden), failed("b", v1.ReasonUnhealthy)}, v1.ReasonForbidden, false,
			true, "0/2",
		},
		"an object of a Baseline is unhealthy": {
			[]delivery.Outcome{failed("a", v1.ReasonUnhealthy), failed("b", v1.ReasonDrifted)}, v1.ReasonUnhealthy, false,
			false, "0/2",
		},
		"one is away": {
			[]delivery.Outcome{at(delivery.Applied), at(delivery.Away)}, v1.ReasonApplied, true, false, "1/2",
		},
		"all are away": {
			[]delivery.Outcome{at(delivery.Away), at(delivery.Away)}, v1.ReasonMembersAway, true, false, "0/2",
		},
		"one is away, and one fails": {
			[]delivery.Outcome{at(delivery.Away), failed("b", v1.ReasonConflict)}, v1.ReasonConflict, false, true, "0/2",
		},
		"a failure precedes a pending set": {
			[]delivery.Outcome{at(delivery.Pending), failed("b", v1.ReasonDeliveryFailed)}, v1.ReasonDeliveryFailed, false,
			false, "0/2",
		},
		"a failure that a person must resolve comes first": {
			[]delivery.Outcome{failed("a", v1.ReasonDeliveryFailed), failed("b", v1.ReasonConflict)}, v1.ReasonConflict, false,
			true, "0/2",
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := delivery.Summarize(tt.outcomes)
			if v.Reason != tt.reason || v.Ready != tt.ready || v.Stalled != tt.stalled || v.Clusters.Summary != tt.summary {
				t.Errorf("got %+v, want the reason %s, Ready %t, Stalled %t and %s",
					v, tt.reason, tt.ready, tt.stalled, tt.summary)
			}
		})
	}
	t.Run("the message names one cluster, and one object unless it concerns all objects", func(t *testing.T) {
		of := func(object, message string) string {
			o := failed("b", v1.ReasonConflict)
			o.Failures[0].Object, o.Failures[0].Message = object, message
			return delivery.Summarize([]delivery.Outcome{at(delivery.Applied), o}).Message
		}
		const start = "1 of 2 clusters do not have all of it. In cluster b: "
		if got := of("set", "It could not be sent"); got != start+"It could not be sent" {
			t.Errorf("got %q, want the sentence for the whole set", got)
		}
		if got := of("ClusterRole x", "it is not Drover's"); got != start+"ClusterRole x: it is not Drover's" {
			t.Errorf("got %q, want the sentence with the object", got)
		}
	})
	t.Run("at most ten failures are listed", func(t *testing.T) {
		var many []delivery.Outcome
		for i := range 30 {
			many = append(many, failed(fmt.Sprintf("c%02d", 30-i), v1.ReasonDeliveryFailed))
		}
		v := delivery.Summarize(many)
		if len(v.Failures) != v1.MaxFailures || v.Failures[0].Cluster != "c01" || v.Clusters.Failed != 30 {
			t.Errorf("got %+v, want the first failures by name, and 30 counted", v)
		}
	})
}

func TestSummary(t *testing.T) {
	now := time.Now()
	t.Run("a set that has just been declared is not reported yet", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending, Since: now}})
		if v.Delay(false, now) <= 0 || v.Delay(false, now.Add(time.Second)) != 0 {
			t.Errorf("got the delays %s and %s, want more than 0, and 0 after a second",
				v.Delay(false, now), v.Delay(false, now.Add(time.Second)))
		}
	})
	t.Run("a set in a busy member is reported when the burst has ended, or after two seconds", func(t *testing.T) {
		for name, tt := range map[string]struct {
			outcomes []delivery.Outcome
			after    time.Duration
			want     time.Duration
		}{
			"busy": {
				[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 0, 500 * time.Millisecond,
			},
			"busy for almost two seconds": {
				[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 1900 * time.Millisecond,
				100 * time.Millisecond,
			},
			"busy for two seconds": {
				[]delivery.Outcome{{Stage: delivery.Applied, Since: now, Busy: true}}, 2 * time.Second, 0,
			},
			"not busy": {[]delivery.Outcome{{Stage: delivery.Applied, Since: now}}, 0, 0},
			"one of two members is busy": {
				[]delivery.Outcome{{Stage: delivery.Applied, Since: now}, {Stage: delivery.Applied, Since: now, Busy: true}}, 0,
				500 * time.Millisecond,
			},
			"busy, and still pending": {
				[]delivery.Outcome{{Stage: delivery.Pending, Since: now, Busy: true}}, 0, time.Second,
			},
			"busy, and declared at another time": {[]delivery.Outcome{{Stage: delivery.Applied, Busy: true}}, 0, 0},
		} {
			if got := delivery.Summarize(tt.outcomes).Delay(true, now.Add(tt.after)); got != tt.want {
				t.Errorf("%s: the delay is %v, want %v", name, got, tt.want)
			}
		}
	})
	t.Run("unreported members do not change an existing status", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Unreported}})
		if v.Delay(true, now) <= 0 || v.Delay(false, now) != 0 {
			t.Errorf("got the delays %s and %s, want more than 0 for an observed generation, and 0 for a new one",
				v.Delay(true, now), v.Delay(false, now))
		}
	})
	t.Run("changes in members are not urgent, but changes on the hub are", func(t *testing.T) {
		v := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}})
		one, two := &v1.ClusterCount{Desired: 1}, &v1.ClusterCount{Desired: 2}
		if v.Urgent(true, one) || !v.Urgent(false, one) || !v.Urgent(true, two) || !v.Urgent(true, nil) {
			t.Errorf("%+v: want it urgent when the generation or the number of clusters changes, and not otherwise", v)
		}
		if v.Refuse(1, v1.ReasonConflict, "m", true); !v.Urgent(true, &v1.ClusterCount{Desired: 1}) {
			t.Errorf("%+v: want a refusal to be urgent", v)
		}
	})
	t.Run("conditions that are written again stay the same", func(t *testing.T) {
		v := delivery.Summarize(nil)
		v.Refuse(3, v1.ReasonConflict, "m", true)
		var conditions []metav1.Condition
		v.Write(&conditions, 1, now)
		before := slices.Clone(conditions)
		if v.Write(&conditions, 1, now.Add(time.Hour)); !meta.IsStatusConditionTrue(before, v1.ConditionStalled) ||
			!slices.Equal(conditions, before) {
			t.Errorf("got %+v, want %+v with Stalled", conditions, before)
		}
		v.Stalled = false
		if v.Write(&conditions, 1, now); meta.FindStatusCondition(conditions, v1.ConditionStalled) != nil {
			t.Errorf("got %+v, want no Stalled", conditions)
		}
	})
	t.Run("a refusal counts the members that do not have the object", func(t *testing.T) {
		v := delivery.Summarize(nil)
		if v.Refuse(3, v1.ReasonConflict, "m", true); v.Clusters.Summary != "0/3" || v.Clusters.Desired != 3 {
			t.Errorf("the clusters are %v, want 0/3", v.Clusters)
		}
	})
	t.Run("Ready covers the connected members and Complete all members, as kstatus and kubectl wait expect",
		func(t *testing.T) {
			expired := func(held, away int) delivery.Summary {
				var v delivery.Summary
				v.Expire("it expired", held, away, 0)
				return v
			}
			for name, tt := range map[string]struct {
				summary         delivery.Summary
				ready, complete string
			}{
				"all have it": {
					delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}}), "True Applied", "True Applied",
				},
				"one is away": {
					delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}, {Stage: delivery.Away}}), "True Applied",
					"False MembersAway",
				},
				"no member ever had it": {
					delivery.Summarize([]delivery.Outcome{{Stage: delivery.Away}}), "False MembersAway", "False MembersAway",
				},
				"one is pending": {
					delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending}, {Stage: delivery.Away}}), "False Delivering",
					"False Delivering",
				},
				"expired":                      {expired(0, 0), "True Expired", "True Expired"},
				"expired, but not removed yet": {expired(1, 1), "True Expired", "False Delivering"},
				"expired, and one is away":     {expired(0, 1), "True Expired", "False MembersAway"},
			} {
				var conditions []metav1.Condition
				if news := tt.summary.Write(&conditions, 1, now); news != (tt.summary.Reason != v1.ReasonDelivering) {
					t.Errorf("%s: the first state is news: %t, want %t", name, news, !news)
				}
				got := map[string]string{}
				for _, c := range conditions {
					got[c.Type] = string(c.Status) + " " + c.Reason
				}
				if want := map[string]string{v1.ConditionReady: tt.ready, v1.ConditionComplete: tt.complete}; !maps.Equal(got,
					want) {
					t.Errorf("%s: got %v, want %v", name, got, want)
				}
			}
		})
	t.Run("while all members are away, Ready stays True only if a member has had the object", func(t *testing.T) {
		away := delivery.Summarize([]delivery.Outcome{{Stage: delivery.Away}})
		for name, tt := range map[string]struct {
			before delivery.Summary
			want   metav1.ConditionStatus
		}{
			"a member had it": {
				delivery.Summarize([]delivery.Outcome{{Stage: delivery.Applied}}), metav1.ConditionTrue,
			},
			"no cluster was selected": {delivery.Summarize(nil), metav1.ConditionFalse},
			"it was pending": {
				delivery.Summarize([]delivery.Outcome{{Stage: delivery.Pending}}), metav1.ConditionFalse,
			},
			"all members were always away": {away, metav1.ConditionFalse},
			"the only member refused it": {
				delivery.Summarize([]delivery.Outcome{{Stage: delivery.Failed, Reason: v1.ReasonConflict,
					Failures: []v1.Failure{{}}}}), metav1.ConditionFalse,
			},
		} {
			var conditions []metav1.Condition
			tt.before.Write(&conditions, 1, now)
			for generation := range int64(3) { // the result is stable even when the spec changes
				away.Write(&conditions, 1+generation, now)
				if got := meta.FindStatusCondition(conditions, v1.ConditionReady); got.Status != tt.want ||
					got.Reason != v1.ReasonMembersAway {
					t.Errorf("%s: Ready is %s %s, want %s %s", name, got.Status, got.Reason, tt.want, v1.ReasonMembersAway)
				}
			}
		}
	})
	t.Run("Stalled is removed when it no longer applies", func(t *testing.T) {
		var conditions []metav1.Condition
		v := delivery.Summarize(nil)
		v.Refuse(0, v1.ReasonConflict, "m", true)
		if !v.Write(&conditions, 1, now) || len(conditions) != 3 {
			t.Errorf("the conditions are %v, want three", conditions)
		}
		if again := v.Write(&conditions, 1, now); again {
			t.Error("the same condition was news twice, want it once")
		}
		if ok := delivery.Summarize(nil); !ok.Write(&conditions, 2, now) || len(conditions) != 2 ||
			conditions[0].ObservedGeneration != 2 {
			t.Errorf("the conditions are %v, want two of generation 2", conditions)
		}
	})
}
