// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// labelPlan is the label of a Job that names its plan, as in system-upgrade-controller.
const labelPlan = "upgrade.cattle.io/plan"

// moments are the times at which a watch reported the steps of a Plan, starting just before the Plan's creation. pods
// is the time for the same number of pods that were evicted directly before.
type moments struct{ pods, job, jobDone, label, status time.Duration }

// runner returns the time that the runner adds.
func (m moments) runner() time.Duration { return m.job - m.pods + m.label - m.jobDone }

func (m moments) over() bool { return m.job > 0 && m.jobDone > 0 && m.label > 0 && m.status > 0 }

// runPlan creates a Plan, and follows it until its status reports that it is complete.
func (p *processes) runPlan(ctx context.Context, o *v1.Plan) (moments, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	jobs, err := p.member.Client.Watch(ctx, &batchv1.JobList{}, client.InNamespace(o.Namespace), client.MatchingLabels{labelPlan: o.Name})
	if err != nil {
		return moments{}, err
	}
	defer jobs.Stop()
	nodes, err := p.member.Client.Watch(ctx, &corev1.NodeList{})
	if err != nil {
		return moments{}, err
	}
	defer nodes.Stop()
	plans, err := p.member.Client.Watch(ctx, &v1.PlanList{}, client.InNamespace(o.Namespace), client.MatchingFields{"metadata.name": o.Name})
	if err != nil {
		return moments{}, err
	}
	defer plans.Stop()
	begun := time.Now()
	if err := p.member.Client.Create(ctx, o); err != nil {
		return moments{}, err
	}
	m := moments{}
	for !m.over() {
		var e watch.Event
		open := true
		select {
		case e, open = <-jobs.ResultChan():
		case e, open = <-nodes.ResultChan():
		case e, open = <-plans.ResultChan():
		}
		if !open {
			return m, fmt.Errorf("plan %s came as far as %+v: %w", o.Name, m, errors.Join(ctx.Err(), errors.New("a watch ended")))
		}
		m.see(o.Name, e.Object, time.Since(begun))
	}
	return m, nil
}

// see records when an object first shows a step.
func (m *moments) see(plan string, object any, at time.Duration) {
	first := func(moment *time.Duration, is bool) {
		if is && *moment == 0 {
			*moment = at
		}
	}
	switch o := object.(type) {
	case *batchv1.Job:
		first(&m.job, true)
		for _, c := range o.Status.Conditions {
			first(&m.jobDone, c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue)
		}
	case *corev1.Node:
		first(&m.label, o.Labels[v1.PlanLabel(plan)] != "")
	case *v1.Plan:
		first(&m.status, meta.IsStatusConditionTrue(o.Status.Conditions, v1.ConditionComplete))
	}
}
