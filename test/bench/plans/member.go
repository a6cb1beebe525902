// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/nodesim"
)

const (
	node = "node-0"
	// patience is the time limit for each wait that usually takes seconds.
	patience = time.Minute
	// restTime is how long the processes are idle while CPU and memory at rest are measured.
	restTime = 20 * time.Second
	// drained is the number of pods that each drain evicts.
	drained = 5
)

// processes are the processes of a hub and a member with one node.
type processes struct {
	hub    *framework.Hub
	member *framework.Plane
	agent  *framework.Agent
	sim    *nodesim.Sim
}

// measureMember runs Plans in one member, one after another.
func measureMember(ctx context.Context, programs framework.Programs, dir string, samples int, r *results) (err error) {
	p := &processes{}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.start(ctx, programs, dir); err != nil {
		return err
	}
	if err := p.rest(ctx, r, "before any Plan"); err != nil {
		return err
	}
	first, err := p.runPlan(ctx, newPlan("first"))
	if err != nil {
		return err
	}
	r.rows = append(r.rows, row{what: "the first Plan", took: []moments{first}})
	for _, kind := range []struct {
		what, name string
		drain      bool
	}{
		{"no drain, no cordon, no prepare", "plain", false},
		{fmt.Sprintf("cordon, and drain of %d pods", drained), "drain", true},
	} {
		row := row{what: kind.what, goal: true}
		before, err := p.member.Writes(ctx)
		if err != nil {
			return err
		}
		for i := range samples {
			took, err := p.sample(ctx, fmt.Sprintf("%s-%d", kind.name, i), kind.drain)
			if err != nil {
				return err
			}
			row.took = append(row.took, took)
		}
		after, err := p.member.Writes(ctx)
		if err != nil {
			return err
		}
		row.writes = (after - before) / float64(samples)
		r.rows = append(r.rows, row)
	}
	return p.rest(ctx, r, fmt.Sprintf("after %d Plans", 2*samples+1))
}

func (p *processes) sample(ctx context.Context, name string, drain bool) (moments, error) {
	o := newPlan(name)
	if !drain {
		return p.runPlan(ctx, o)
	}
	if err := p.startPods(ctx, name+"-direct"); err != nil {
		return moments{}, err
	}
	pods, err := p.evict(ctx)
	if err != nil {
		return moments{}, err
	}
	if err := p.startPods(ctx, name); err != nil {
		return moments{}, err
	}
	o.Spec.Cordon, o.Spec.Drain = true, &v1.Drain{Force: true}
	m, err := p.runPlan(ctx, o)
	m.pods = pods
	return m, err
}

// evict evicts all applications at the same time, and returns the time until a watch reported that the last one has
// terminated.
func (p *processes) evict(ctx context.Context) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	pods := &corev1.PodList{}
	if err := p.member.Client.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return 0, fmt.Errorf("evict pods: %w", err)
	}
	begun := time.Now()
	events, err := p.member.Client.Watch(ctx, &corev1.PodList{}, client.InNamespace(metav1.NamespaceDefault), &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: pods.ResourceVersion}})
	if err != nil {
		return 0, fmt.Errorf("evict pods: %w", err)
	}
	defer events.Stop()
	var asking sync.WaitGroup
	errs := make(chan error, len(pods.Items))
	for i := range pods.Items {
		asking.Go(func() {
			errs <- p.member.Client.SubResource("eviction").Create(ctx, &pods.Items[i], &policyv1.Eviction{})
		})
	}
	asking.Wait()
	for left := len(pods.Items); left > 0; {
		select {
		case err := <-errs:
			if err != nil {
				return 0, fmt.Errorf("evict pods: %w", err)
			}
		case e, open := <-events.ResultChan():
			if !open {
				return 0, fmt.Errorf("evict pods: the watch ended: %w", ctx.Err())
			}
			if e.Type == watch.Deleted {
				left--
			}
		}
	}
	return time.Since(begun), nil
}

func newPlan(name string) *v1.Plan {
	o := &v1.Plan{ObjectMeta: metav1.ObjectMeta{Namespace: v1.PlansNamespace, Name: name}}
	o.Spec.NodeSelector, o.Spec.Version = &metav1.LabelSelector{}, "v1.36.3+k3s1"
	o.Spec.Upgrade.Image = "rancher/k3s-upgrade"
	return o
}

// startPods starts applications on the node, and waits until they run.
func (p *processes) startPods(ctx context.Context, name string) error {
	grace := int64(0)
	for i := range drained {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: fmt.Sprintf("%s-%d", name, i)}}
		pod.Spec.NodeName, pod.Spec.TerminationGracePeriodSeconds = node, &grace
		pod.Spec.Containers = []corev1.Container{{Name: "app", Image: "app"}}
		if err := p.member.Client.Create(ctx, pod); err != nil {
			return fmt.Errorf("start pods: %w", err)
		}
	}
	return until(ctx, func() error { return p.running(ctx) })
}

// running returns nil when all applications are running, because pods that are still starting are evicted differently.
func (p *processes) running(ctx context.Context) error {
	pods := &corev1.PodList{}
	if err := p.member.Client.List(ctx, pods, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		return fmt.Errorf("start pods: %w", err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("start pods: pod %s is %s", pod.Name, pod.Status.Phase)
		}
	}
	return nil
}

// script makes applications run until they are evicted, and all other pods succeed immediately.
func script(pod *corev1.Pod) nodesim.Script {
	return nodesim.Script{Hangs: pod.Namespace == metav1.NamespaceDefault}
}

// start starts the hub and the member, imports the member, and waits until its agent has installed Plans.
func (p *processes) start(ctx context.Context, programs framework.Programs, dir string) error {
	plane, err := framework.StartPlane(ctx, programs, "hub", dir)
	if err != nil {
		return err
	}
	p.hub = &framework.Hub{Plane: plane} // for stop, should InstallHub err
	if p.member, err = framework.StartPlane(ctx, programs, "member", dir); err != nil {
		return err
	}
	installed, err := framework.InstallHub(ctx, plane)
	if installed != nil {
		p.hub = installed
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "member"}
	manifest, err := p.hub.CreateCluster(ctx, cluster)
	if err != nil {
		return err
	}
	if p.agent, err = framework.InstallAgent(ctx, p.member, manifest, "member", protocol.AgentNamespace); err != nil {
		return err
	}
	if err := p.agent.Start(); err != nil {
		return err
	}
	if _, err := p.hub.AwaitCluster(ctx, cluster, framework.Ready); err != nil {
		return err
	}
	p.sim = nodesim.Start(context.WithoutCancel(ctx), p.member.Client, script)
	if err := p.sim.AddNode(ctx, node, nil); err != nil {
		return err
	}
	return p.awaitKind(ctx)
}

// awaitKind waits until Plans can be read.
func (p *processes) awaitKind(ctx context.Context) error {
	return until(ctx, func() error {
		return p.member.Client.List(ctx, &v1.PlanList{}, client.InNamespace(v1.PlansNamespace))
	})
}

// until calls check every 20 ms until it returns nil.
func until(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

func (p *processes) stop() error {
	var errs []error
	if p.sim != nil {
		p.sim.Close()
	}
	if p.agent != nil && p.agent.Process != nil {
		errs = append(errs, p.agent.Process.Kill())
	}
	if p.hub != nil {
		errs = append(errs, p.hub.StopManagers(), p.hub.Kill())
	}
	if p.member != nil {
		errs = append(errs, p.member.Kill())
	}
	return errors.Join(errs...)
}

// rest measures the resource usage of an idle agent.
func (p *processes) rest(ctx context.Context, r *results, when string) error {
	before, err := p.agent.Process.Usage()
	if err != nil {
		return err
	}
	if err := wait(ctx, restTime); err != nil {
		return err
	}
	after, err := p.agent.Process.Usage()
	if err != nil {
		return err
	}
	r.idle = append(r.idle, idle{when: when, usage: after, cpu: after.CPU - before.CPU})
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
