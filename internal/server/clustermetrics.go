// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// scrapePatience bounds how long a scrape waits for a cache that is not filled yet.
const scrapePatience = time.Second

// conditionStates counts Clusters by status and reason of one condition. Every replica shows all of them, from its cache.
type conditionStates struct {
	client.Reader
	condition string
	desc      *prometheus.Desc
}

// newConditionStates returns a collector of the metric with that name. The label status has the condition's status.
func newConditionStates(reader client.Reader, condition, name, status string) conditionStates {
	help := fmt.Sprintf("Clusters by status and reason of their condition %s. Every replica counts all.", condition)
	return conditionStates{reader, condition, prometheus.NewDesc(name, help, []string{status, "reason"}, nil)}
}

// Describe implements prometheus.Collector.
func (c conditionStates) Describe(out chan<- *prometheus.Desc) { out <- c.desc }

// Collect implements prometheus.Collector.
func (c conditionStates) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	var list v1.ClusterList
	if err := c.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return // no number is better than a wrong one
	}
	type state struct{ status, reason string }
	counts := map[state]int{}
	for i := range list.Items {
		s := state{string(metav1.ConditionUnknown), v1.ReasonPending}
		if found := meta.FindStatusCondition(list.Items[i].Status.Conditions, c.condition); found != nil {
			s = state{string(found.Status), found.Reason}
		}
		counts[s]++
	}
	for s, n := range counts {
		out <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(n), s.status, s.reason)
	}
}
