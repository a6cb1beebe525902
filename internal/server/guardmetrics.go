// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// guardStates counts Clusters by what their condition GuardsApplied says. Every replica shows all of them, from its cache.
type guardStates struct{ client.Reader }

func (guardStates) desc() *prometheus.Desc {
	return prometheus.NewDesc("drover_cluster_guards", "Clusters by status and reason of their condition GuardsApplied. Every replica counts all.", []string{"applied", "reason"}, nil)
}

// Describe implements prometheus.Collector.
func (g guardStates) Describe(out chan<- *prometheus.Desc) { out <- g.desc() }

// Collect implements prometheus.Collector.
func (g guardStates) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	var list v1.ClusterList
	if err := g.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // no number is better than a wrong one
	}
	type state struct{ applied, reason string }
	counts := map[state]int{}
	for i := range list.Items {
		s := state{string(metav1.ConditionUnknown), v1.ReasonPending}
		if c := meta.FindStatusCondition(list.Items[i].Status.Conditions, v1.ConditionGuardsApplied); c != nil {
			s = state{string(c.Status), c.Reason}
		}
		counts[s]++
	}
	for s, n := range counts {
		out <- prometheus.MustNewConstMetric(g.desc(), prometheus.GaugeValue, float64(n), s.applied, s.reason)
	}
}
