// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// scrapePatience limits how long a scrape waits for a cache to sync.
const scrapePatience = time.Second

// states is a collector that counts objects by the values of two labels. The values are read from the objects'
// conditions. Every replica counts all objects in its cache.
type states[L client.ObjectList] struct {
	client.Reader
	desc *prometheus.Desc
	new  func() L
	// each calls count once for each object in a list. The arguments of count are the values of the two labels.
	each func(list L, count func(first, second string))
}

// newConditionStates returns a collector for the named metric. It counts Clusters by the status and the reason of one
// condition. The status argument is the name of the label for the condition's status.
func newConditionStates(reader client.Reader, condition, name, status string) prometheus.Collector {
	help := fmt.Sprintf("Clusters by status and reason of their condition %s. Every replica counts all Clusters.",
		condition)
	return states[*v1.ClusterList]{
		Reader: reader, desc: prometheus.NewDesc(name, help, []string{status, "reason"}, nil),
		new: func() *v1.ClusterList { return &v1.ClusterList{} },
		each: func(list *v1.ClusterList, count func(status, reason string)) {
			for i := range list.Items {
				if c := meta.FindStatusCondition(list.Items[i].Status.Conditions, condition); c != nil {
					count(string(c.Status), c.Reason)
				} else {
					count(string(metav1.ConditionUnknown), v1.ReasonPending)
				}
			}
		},
	}
}

// newPlanStates returns a collector that counts the Plans that apply to members.
func newPlanStates(reader client.Reader) prometheus.Collector {
	const help = "Plans for members by the reason of their condition Complete, and by whether they are stalled. Every " +
		"replica counts all Plans."
	return states[*v1.PlanList]{
		Reader: reader, desc: prometheus.NewDesc("drover_plans", help, []string{"reason", "stalled"}, nil),
		new: func() *v1.PlanList { return &v1.PlanList{} },
		each: func(list *v1.PlanList, count func(reason, stalled string)) {
			for i := range list.Items {
				plan := &list.Items[i]
				if plan.Spec.Target() == (v1.ClusterTarget{}) {
					continue
				}
				reason := v1.ReasonPending
				if c := meta.FindStatusCondition(plan.Status.Conditions, v1.ConditionComplete); c != nil {
					reason = c.Reason
				}
				count(reason, strconv.FormatBool(meta.IsStatusConditionTrue(plan.Status.Conditions, v1.ConditionStalled)))
			}
		},
	}
}

// Describe implements prometheus.Collector.
func (s states[L]) Describe(out chan<- *prometheus.Desc) { out <- s.desc }

// Collect implements prometheus.Collector.
func (s states[L]) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	list := s.new()
	if err := s.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
		return // no value is better than a wrong value
	}
	counts := map[[2]string]int{}
	s.each(list, func(first, second string) { counts[[2]string{first, second}]++ })
	for labels, n := range counts {
		out <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), labels[0], labels[1])
	}
}
