// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
)

const (
	waves = 5
	// atOnce is the number of members that apply the Plan at the same time.
	atOnce = 5
	// fleetPatience is the time limit for the connection of a fleet, and then for its Plan.
	fleetPatience = 5 * time.Minute
	// settleTime is how long to wait for the last writes.
	settleTime = 3 * time.Second
	// ring is the label of Clusters that contains their wave.
	ring = "ring"
)

// fleetResult is the cost of one Plan in all members for the hub.
type fleetResult struct {
	members        int
	took, own, cpu time.Duration // own is the time of the nodes themselves
	writes         float64
}

func (f *fleetResult) write(text *strings.Builder) {
	each := float64(f.members)
	fmt.Fprintf(text, "\n## A fleet\n\nThe benchmark uses a real hub whose manager runs as a process, not in a container, and %[1]d simulated members with %[2]d nodes each. The Plan has %[4]d waves, and %[3]d members apply it at a time. The nodes of one member take a total of %[5]s.\n\n"+
		"| figure | total | for each member |\n|---|---|---|\n", f.members, sim.PlanNodes, atOnce, waves, sim.PlanTime)
	fmt.Fprintf(text, "| time | %.1f s | |\n| nodes' own time | %.1f s | |\n| overhead, ms | %.0f | %.0f |\n", f.took.Seconds(), f.own.Seconds(), ms(f.took-f.own), ms(f.took-f.own)/each)
	fmt.Fprintf(text, "| CPU of the manager, ms | %.0f | %.1f |\n| writes on the hub | %.0f | %.2f |\n", ms(f.cpu), ms(f.cpu)/each, f.writes, f.writes/each)
	text.WriteString("\nBy design, each member causes two writes: one when it starts and one when it is complete. While the counts change, the Plan's status is written at most once per second. The remaining writes are events. " +
		"Members that apply the Plan at the same time share the overhead.\n")
}

// measureFleet rolls out one Plan.
func measureFleet(ctx context.Context, programs framework.Programs, dir string, members int) (result *fleetResult, err error) {
	plane, err := framework.StartPlane(ctx, programs, "fleet", dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, plane.Kill()) }()
	h, err := framework.InstallHub(ctx, plane)
	if h != nil {
		defer func() { err = errors.Join(err, h.StopManagers()) }()
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fleetPatience)
	defer cancel()
	fleet, err := enrol(ctx, h, members)
	if err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { fleet.Run(ctx) })
	if err := awaitReady(ctx, h, members); err != nil {
		return nil, err
	}
	return rollOut(ctx, h, members)
}

// enrol creates the Clusters, each with the label of its wave.
func enrol(ctx context.Context, h *framework.Hub, members int) (*sim.Sim, error) {
	bundle, err := h.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	enrolled, err := sim.Enrolment{Hub: h.Client, Server: h.URL(), Bundle: bundle, Clusters: members, Workspaces: 1}.Do(ctx)
	if err != nil {
		return nil, err
	}
	for i := range members {
		name := sim.ClusterName(i, 1)
		c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"%d"}}}`, ring, i%waves)
		if err := h.Client.Patch(ctx, c, client.RawPatch("application/merge-patch+json", patch)); err != nil {
			return nil, fmt.Errorf("label cluster %s: %w", name, err)
		}
	}
	return sim.New(sim.Options{Server: h.URL(), Bundle: bundle, Members: enrolled})
}

// awaitReady waits until all Clusters are Ready and writes on the hub have ceased.
func awaitReady(ctx context.Context, h *framework.Hub, members int) error {
	for {
		clusters := &v1.ClusterList{}
		if err := h.Client.List(ctx, clusters); err != nil {
			return fmt.Errorf("wait for the fleet: %w", err)
		}
		ready := 0
		for i := range clusters.Items {
			if framework.Ready(&clusters.Items[i]) {
				ready++
			}
		}
		if err := wait(ctx, settleTime); err != nil {
			return fmt.Errorf("wait for the fleet: %d of %d are ready: %w", ready, members, err)
		}
		if ready == members {
			return nil
		}
	}
}

// rollOut creates a Plan for all members, and counts until it is complete.
func rollOut(ctx context.Context, h *framework.Hub, members int) (*fleetResult, error) {
	before, err := h.Writes(ctx)
	if err != nil {
		return nil, err
	}
	cpu, err := h.Manager.Usage()
	if err != nil {
		return nil, err
	}
	o := fleetPlan()
	stream, err := h.Client.Watch(ctx, &v1.PlanList{}, client.InNamespace(o.Namespace))
	if err != nil {
		return nil, err
	}
	defer stream.Stop()
	begun := time.Now()
	if err := h.Client.Create(ctx, o); err != nil {
		return nil, err
	}
	for e := range stream.ResultChan() {
		if p, ok := e.Object.(*v1.Plan); ok && meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete) {
			break
		}
	}
	r := &fleetResult{members: members, took: time.Since(begun), own: ownTime(members)}
	if err := wait(ctx, settleTime); err != nil { // a watch may have ended and begun again
		return nil, fmt.Errorf("wait for plan %s: %w", o.Name, err)
	}
	after, err := h.Writes(ctx)
	if err != nil {
		return nil, err
	}
	used, err := h.Manager.Usage()
	r.writes, r.cpu = after-before, used.CPU-cpu.CPU
	return r, err
}

// ownTime returns the minimum time for all members: the waves run one after another, each with atOnce members at the
// same time.
func ownTime(members int) time.Duration {
	rounds := 0
	for w := range waves {
		size := (members + waves - 1 - w) / waves
		rounds += (size + atOnce - 1) / atOnce
	}
	return time.Duration(rounds) * sim.PlanTime
}

func fleetPlan() *v1.Plan {
	o := newPlan("fleet")
	o.Namespace = sim.ClusterName(0, 1).Namespace
	o.Spec.ClusterSelector = &metav1.LabelSelector{}
	o.Spec.Rollout = &v1.Rollout{MaxConcurrentClusters: atOnce}
	for w := range waves {
		o.Spec.Rollout.Waves = append(o.Spec.Rollout.Waves, v1.Wave{
			Name: "ring-" + strconv.Itoa(w), ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{ring: strconv.Itoa(w)}},
		})
	}
	return o
}
