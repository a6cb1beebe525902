// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package drain compares the drain of plans with the drain of kubectl.
//
// The agent does not link kubectl's code, because it is too large.
package drain

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubectl/pkg/drain"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/plan"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	node = "node-a"
	// missing is the name of a DaemonSet that does not exist.
	missing = "missing"
	// patience is the maximum duration of a drain that has nothing to wait for.
	patience = 30 * time.Second
)

// outcome is the result of a drain.
type outcome struct {
	refused bool
	asked   []string // the pods that were evicted or deleted, and how
	err     error
}

func (o outcome) String() string {
	return fmt.Sprintf("refused %t (%v), asked %q", o.refused, o.err, o.asked)
}

func same(x, y outcome) bool { return x.refused == y.refused && slices.Equal(x.asked, y.asked) }

// agentDrain returns the outcome of the drain of a plan.
func agentDrain(t *testing.T, pods []corev1.Pod, spec v1.Drain) outcome {
	t.Helper()
	m := newAPIServer(pods)
	client, err := kube.New(&rest.Config{Transport: m, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err = plan.Drain(ctx, plan.Options{Client: client.REST, Objects: client.Objects(), Namespace: protocol.AgentNamespace, Log: logr.Discard()}, node, spec)
	return outcome{refused: err != nil, asked: m.evicted(), err: err}
}

// kubectlDrain returns the outcome of "kubectl drain" with the same options.
func kubectlDrain(t *testing.T, pods []corev1.Pod, spec v1.Drain) outcome {
	t.Helper()
	m := newAPIServer(pods)
	client, err := kubernetes.NewForConfig(&rest.Config{Transport: m, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: runtime.ContentTypeJSON}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := &drain.Helper{
		Ctx: ctx, Client: client, Out: io.Discard, ErrOut: io.Discard, Timeout: patience, ChunkSize: 500, GracePeriodSeconds: -1,
		Force: spec.Force, IgnoreAllDaemonSets: *spec.IgnoreDaemonSets, DeleteEmptyDirData: *spec.DeleteEmptydirData,
		DisableEviction: spec.DisableEviction, SkipWaitForDeleteTimeoutSeconds: int(spec.SkipWaitForDeleteTimeout),
	}
	if spec.GracePeriod != nil {
		d.GracePeriodSeconds = int(*spec.GracePeriod)
	}
	if spec.PodSelector != nil {
		d.PodSelector = metav1.FormatLabelSelector(spec.PodSelector)
	}
	list, errs := d.GetPodsForDeletion(node)
	if len(errs) > 0 {
		return outcome{refused: true, asked: m.evicted(), err: errs[0]}
	}
	err = d.DeleteOrEvictPods(list.Pods())
	return outcome{refused: err != nil, asked: m.evicted(), err: err}
}

// dimension is a way in which pods, or drains, differ.
type dimension[T any] []func(*T)

func nothing[T any](*T) {}

func owned(apiVersion, kind, name string, controller bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: "owner", Controller: &controller}}
	}
}

func phase(is corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = is }
}

// leaving is a pod that is being deleted. Its grace period ends after the given time, or has ended.
func leaving(in time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.DeletionTimestamp = new(metav1.NewTime(time.Now().Add(in))) }
}

var podDimensions = []dimension[corev1.Pod]{
	{nothing[corev1.Pod], func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "mirror"} }},
	{
		nothing[corev1.Pod], owned("apps/v1", "ReplicaSet", "web", true), owned("apps/v1", "DaemonSet", "log", true), owned("apps/v1", "DaemonSet", missing, true),
		owned("apps/v1", "ReplicaSet", "web", false), owned("v1", "Node", node, true), owned("apps.example.org/v1", "DaemonSet", "other", true),
	},
	{nothing[corev1.Pod], func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	}},
	{phase(corev1.PodRunning), phase(corev1.PodPending), phase(corev1.PodSucceeded), phase(corev1.PodFailed)},
	{nothing[corev1.Pod], leaving(time.Hour), leaving(-30 * time.Second), leaving(-time.Hour)},
	{nothing[corev1.Pod], func(p *corev1.Pod) { p.Labels = map[string]string{"app": "keep"} }},
}

var drainDimensions = []dimension[v1.Drain]{
	{nothing[v1.Drain], func(d *v1.Drain) { d.Force = true }},
	{nothing[v1.Drain], func(d *v1.Drain) { d.IgnoreDaemonSets = new(false) }},
	{nothing[v1.Drain], func(d *v1.Drain) { d.DeleteEmptydirData = new(false) }},
	{nothing[v1.Drain], func(d *v1.Drain) { d.SkipWaitForDeleteTimeout = 60 }},
}

// These dimensions do not affect which pods are evicted in ways that depend on the pod.
var moreDrainDimensions = append(slices.Clone(drainDimensions),
	dimension[v1.Drain]{nothing[v1.Drain], func(d *v1.Drain) { d.DisableEviction = true }},
	dimension[v1.Drain]{nothing[v1.Drain], func(d *v1.Drain) { d.GracePeriod = new(int32(0)) }, func(d *v1.Drain) { d.GracePeriod = new(int32(7)) }},
	dimension[v1.Drain]{
		nothing[v1.Drain],
		func(d *v1.Drain) {
			d.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "keep"}}
		},
		func(d *v1.Drain) {
			d.PodSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpDoesNotExist}}}
		},
	},
)

// each calls do for every combination of choices of the dimensions.
func each[T any](dimensions []dimension[T], base func() T, do func(T)) {
	if len(dimensions) == 0 {
		do(base())
		return
	}
	for _, change := range dimensions[0] {
		each(dimensions[1:], func() T { x := base(); change(&x); return x }, do)
	}
}

// one returns a random combination of choices of the dimensions.
func one[T any](r *rand.Rand, dimensions []dimension[T], base T) T {
	for _, d := range dimensions {
		d[r.IntN(len(d))](&base)
	}
	return base
}

func pod(name string) corev1.Pod {
	return corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name, UID: types.UID(name), ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: node},
	}
}

func options() v1.Drain { return v1.Drain{IgnoreDaemonSets: new(true), DeleteEmptydirData: new(true)} }

func compare(t *testing.T, pods []corev1.Pod, spec v1.Drain) (got outcome) {
	t.Helper()
	got = agentDrain(t, pods, spec)
	if want := kubectlDrain(t, pods, spec); !same(got, want) {
		t.Errorf("drain %+v\nof %+v\nours:   %s\ntheirs: %s", spec, pods, got, want)
	}
	return got
}

func TestDrainTreatsEachPodAsKubectlDoes(t *testing.T) {
	went, stayed, hindered := 0, 0, 0
	each(drainDimensions, options, func(spec v1.Drain) {
		each(podDimensions, func() corev1.Pod { return pod("app") }, func(p corev1.Pod) {
			switch got := compare(t, []corev1.Pod{p}, spec); {
			case got.refused:
				hindered++
			case len(got.asked) == 0:
				stayed++
			default:
				went++
			}
		})
		if t.Failed() {
			t.FailNow() // hundreds more would fail in the same way
		}
	})
	if t.Logf("%d went, %d stayed, %d hindered", went, stayed, hindered); min(went, stayed, hindered) == 0 {
		t.Error("an outcome was not tried")
	}
}

func TestAnyNodeIsDrainedAsWithKubectl(t *testing.T) {
	const nodes, most = 1000, 6
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range nodes {
		var pods []corev1.Pod
		for i := range r.IntN(most + 1) {
			pods = append(pods, one(r, podDimensions, pod(fmt.Sprintf("app-%d", i))))
		}
		compare(t, pods, one(r, moreDrainDimensions, options()))
		if t.Failed() {
			t.FailNow()
		}
	}
}

// If a node only has pods of all exceptions, kubectl evicts all of them, and a plan none.
func TestDrainSparesPodsThatKubectlWouldEvict(t *testing.T) {
	spec := options()
	spec.Force = true
	for name, change := range map[string]func(*corev1.Pod){
		"the agent, which is to uncordon the node": func(p *corev1.Pod) {
			p.Namespace, p.Labels = protocol.AgentNamespace, map[string]string{"app.kubernetes.io/name": protocol.AgentName}
		},
		"pods of plans, which may be at work on the node": func(p *corev1.Pod) {
			p.Namespace, p.Labels = v1.PlansNamespace, map[string]string{"upgrade.cattle.io/controller": v1.ManagedBy}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("ours")
			change(&p)
			if got, want := agentDrain(t, []corev1.Pod{p}, spec), kubectlDrain(t, []corev1.Pod{p}, spec); got.refused || want.refused || len(got.asked) > 0 || len(want.asked) != 1 {
				t.Errorf("ours:   %s\ntheirs: %s", got, want)
			}
		})
	}
}
