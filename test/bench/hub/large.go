// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// largeCluster makes the member large, and measures the memory of an agent that starts there.
func (b *bench) largeCluster(ctx context.Context) error {
	a := b.agents[0]
	if err := a.kill(); err != nil {
		return err
	}
	// Without this, the nodes, which have no kubelets, are not marked as unreachable, and no pods are evicted.
	controllers := b.member.Process(lab.ControllerManager)
	if err := controllers.Pause(); err != nil {
		return err
	}
	defer func() { _ = controllers.Resume() }()
	if err := b.fill(ctx); err != nil {
		return err
	}
	if _, err := b.clusters.await(ctx, a.cluster, framework.NotReady(v1.ReasonTunnelLost)); err != nil {
		return err
	}
	took, err := b.startTimed(ctx, a)
	if err != nil {
		return err
	}
	b.results.add("large-start", millis(took))
	whole := func(c *v1.Cluster) bool {
		return framework.Ready(c) && c.Status.Nodes != nil && int(c.Status.Nodes.Total) == b.nodes
	}
	if _, err := b.clusters.await(ctx, a.cluster, whole); err != nil {
		return err
	}
	if err := awaitIdle(ctx, a.Process); err != nil { // until it has read the pods too
		return err
	}
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	usage, err := a.Process.Usage()
	if err != nil {
		return err
	}
	peak, err := peakOf(a.Process.PID())
	b.results.add("large-rss", mib(usage.RSS))
	b.results.add("large-anon", mib(usage.Anonymous))
	b.results.add("large-peak", peak)
	return err
}

// awaitIdle waits until a process uses less than a twentieth of a core.
func awaitIdle(ctx context.Context, process *lab.Process) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		clock, err := startClock(process)
		if err != nil {
			return err
		}
		if err := pause(ctx, time.Second); err != nil {
			return fmt.Errorf("wait for the agent to be idle: %w", err)
		}
		if percent, err := clock.percent(); err != nil || percent < 5 {
			return err
		}
	}
}

// fill creates the nodes and pods.
func (b *bench) fill(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range b.nodes + b.pods {
		if ctx.Err() != nil {
			break
		}
		group.Go(func() error {
			object := node(i)
			if i >= b.nodes {
				object = pod(i-b.nodes, b.nodes)
			}
			if err := b.member.Client.Create(ctx, object); err != nil {
				return fmt.Errorf("create %T: %w", object, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func nodeName(i int) string { return fmt.Sprintf("node-%05d.eu-central-1.compute.internal", i) }

// node returns a node as a kubelet registers it, with the maximum number of images that a kubelet reports by default.
func node(i int) client.Object {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("65843212Ki"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("203056560Ki"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{
			corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: "eu-central-1" + string(rune('a'+i%3)), corev1.LabelInstanceTypeStable: "m5.4xlarge",
		}},
		Spec:   corev1.NodeSpec{ProviderID: "aws:///eu-central-1/" + nodeName(i)},
		Status: corev1.NodeStatus{Capacity: capacity, Allocatable: capacity},
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: kind, Status: status, Reason: "Kubelet" + string(kind),
			Message: "as the kubelet finds it", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()})
	}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{SizeBytes: 12345678, Names: []string{
			fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064d", j, j), fmt.Sprintf("registry.example.com/team/image-%d:v1", j)}})
	}
	return n
}

// pod returns a pod of an ordinary Deployment on one of the nodes.
func pod(i, nodes int) client.Object {
	none := false
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: workspace, Name: fmt.Sprintf("deployment-name-%05d-7f9c4d5b6-abcde", i),
			Labels:      map[string]string{"app": fmt.Sprintf("deployment-name-%05d", i), "pod-template-hash": "7f9c4d5b6"},
			Annotations: map[string]string{"checksum/config": strings.Repeat("0123456789abcdef", 40)},
		},
		Spec: corev1.PodSpec{NodeName: nodeName(i % nodes), AutomountServiceAccountToken: &none},
	}
	for c := range 2 {
		container := corev1.Container{Name: fmt.Sprintf("container-%d", c), Image: "registry.example.com/team/image:v1.2.3",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceCPU: resource.MustParse("125m"), corev1.ResourceMemory: resource.MustParse("256Mi")}}}
		for e := range 20 {
			container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("SOME_VARIABLE_%d", e), Value: "some value of some length"})
		}
		p.Spec.Containers = append(p.Spec.Containers, container)
	}
	return p
}

// peakOf returns the peak resident memory of a process, in MiB.
func peakOf(pid int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read peak memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return mib(kib << 10), err
		}
	}
	return 0, fmt.Errorf("read peak memory: process %d has no VmHWM", pid)
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
