// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// planStates counts Plans that are for members by what they say. Every replica shows all of them, from its cache.
type planStates struct{ client.Reader }

func (planStates) desc() *prometheus.Desc {
	return prometheus.NewDesc("drover_plans", "Plans for members by the reason of their condition Complete, and whether they are stalled. Every replica counts all.",
		[]string{"reason", "stalled"}, nil)
}

// Describe implements prometheus.Collector.
func (p planStates) Describe(out chan<- *prometheus.Desc) { out <- p.desc() }

// Collect implements prometheus.Collector.
func (p planStates) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	var list v1.PlanList
	if err := p.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // no number is better than a wrong one
	}
	type state struct {
		reason  string
		stalled bool
	}
	counts := map[state]int{}
	for i := range list.Items {
		plan := &list.Items[i]
		if plan.Spec.Target() == (v1.ClusterTarget{}) {
			continue
		}
		s := state{v1.ReasonPending, meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionStalled)}
		if c := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionComplete); c != nil {
			s.reason = c.Reason
		}
		counts[s]++
	}
	for s, n := range counts {
		out <- prometheus.MustNewConstMetric(p.desc(), prometheus.GaugeValue, float64(n), s.reason, strconv.FormatBool(s.stalled))
	}
}
