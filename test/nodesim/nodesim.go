// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodesim simulates the nodes of a control plane: the scheduler, the kubelets, and the programs in pods.
package nodesim

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Script defines how a pod runs and ends.
type Script struct {
	// Takes is how long the container runs.
	Takes time.Duration
	// Exit is the exit code of the container.
	Exit int32
	// Log is the container's log.
	Log string
	// Hangs makes the container run until the pod is deleted.
	Hangs bool
	// Unpullable makes the image pull fail.
	Unpullable bool
	// Evicted makes the kubelet evict the pod, as when the node lacks memory or disk space.
	Evicted bool
	// Dies makes the node fail together with the pod: the node is not ready anymore, and does not terminate deleted pods
	// until Revive is called.
	Dies bool
}

// kubeletVersion is the version of the simulated kubelets. Plans that upgrade Kubernetes check it.
const kubeletVersion = "v1.36.3"

// Sim simulates nodes. The caller must close it.
type Sim struct {
	client  client.WithWatch
	kubelet *httptest.Server
	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex // guards the rest
	scripts func(*corev1.Pod) Script
	pods    map[types.UID]context.CancelFunc // those that run
	logs    map[string]string                // by namespace and name
	seen    []string                         // nodes on which a pod of a Job began, in order
	dead    map[string]bool                  // nodes
}

// Start runs the pods of a control plane according to scripts. If scripts is nil, all pods succeed immediately.
func Start(ctx context.Context, c client.WithWatch, scripts func(*corev1.Pod) Script) *Sim {
	ctx, cancel := context.WithCancel(ctx)
	s := &Sim{client: c, stop: cancel, scripts: scripts, pods: map[types.UID]context.CancelFunc{}, logs: map[string]string{}, dead: map[string]bool{}}
	if s.scripts == nil {
		s.scripts = func(*corev1.Pod) Script { return Script{} }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /containerLogs/{namespace}/{pod}/{container}", s.serveLogs)
	s.kubelet = httptest.NewTLSServer(mux)
	s.running.Go(func() { s.run(ctx) })
	return s
}

// Close ends the processes of all pods and the kubelet. Objects remain.
func (s *Sim) Close() {
	s.stop()
	s.running.Wait()
	s.kubelet.CloseClientConnections()
	s.kubelet.Close()
}

// AddNode creates a ready node of ordinary size, or takes over a node that another Sim created.
func (s *Sim) AddNode(ctx context.Context, name string, labels map[string]string) error {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}}}
	for key, value := range labels {
		node.Labels[key] = value
	}
	err := s.client.Create(ctx, node)
	if apierrors.IsAlreadyExists(err) {
		err = s.client.Get(ctx, client.ObjectKeyFromObject(node), node)
	}
	if err != nil {
		return fmt.Errorf("add node: %w", err)
	}
	host, port, err := net.SplitHostPort(s.kubelet.Listener.Addr().String())
	if err != nil {
		return fmt.Errorf("add node: %w", err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		return fmt.Errorf("add node: %w", err)
	}
	before := client.MergeFrom(node.DeepCopy())
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: host}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(number)
	node.Status.Capacity = corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("16Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.NodeInfo.KubeletVersion = kubeletVersion
	setReady(node, corev1.ConditionTrue)
	return s.client.Status().Patch(ctx, node, before)
}

func setReady(node *corev1.Node, ready corev1.ConditionStatus) {
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready, LastHeartbeatTime: metav1.Now()}}
}

// Revive makes a failed node ready again, and terminates its pods that have been deleted in the meantime.
func (s *Sim) Revive(ctx context.Context, name string) error {
	s.mu.Lock()
	delete(s.dead, name)
	s.mu.Unlock()
	pods := &corev1.PodList{}
	if err := s.client.List(ctx, pods); err != nil {
		return fmt.Errorf("revive node %s: %w", name, err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.Spec.NodeName == name && p.DeletionTimestamp != nil {
			s.remove(ctx, p)
		}
	}
	return s.report(ctx, name, corev1.ConditionTrue)
}

// report sets whether a node is ready.
func (s *Sim) report(ctx context.Context, name string, ready corev1.ConditionStatus) error {
	node := &corev1.Node{}
	if err := s.client.Get(ctx, client.ObjectKey{Name: name}, node); err != nil {
		return fmt.Errorf("report node %s: %w", name, err)
	}
	before := client.MergeFrom(node.DeepCopy())
	setReady(node, ready)
	return s.client.Status().Patch(ctx, node, before)
}

// Seen returns the nodes on which pods of Jobs have started, in order.
func (s *Sim) Seen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.seen...)
}

func (s *Sim) serveLogs(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	text := s.logs[r.PathValue("namespace")+"/"+r.PathValue("pod")]
	s.mu.Unlock()
	_, _ = w.Write([]byte(text)) // the reader may have gone
}

// run follows all pods until ctx ends.
func (s *Sim) run(ctx context.Context) {
	for ctx.Err() == nil {
		list := &corev1.PodList{}
		events, err := s.client.Watch(ctx, list)
		if err != nil {
			pause(ctx)
			continue
		}
		for e := range events.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok {
				s.see(ctx, e.Type, pod)
			}
		}
	}
}

func (s *Sim) see(ctx context.Context, event watch.EventType, pod *corev1.Pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end, began := s.pods[pod.UID]
	switch {
	case event == watch.Deleted:
		if began {
			end()
			delete(s.pods, pod.UID)
		}
	case s.dead[pod.Spec.NodeName]:
	case pod.DeletionTimestamp != nil:
		if began {
			end()
		}
		s.running.Go(func() { s.remove(ctx, pod) })
	case pod.Spec.NodeName == "":
		s.running.Go(func() { s.bind(ctx, pod) })
	case !began && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed: // a running pod lost its Sim
		life, cancel := context.WithCancel(ctx)
		s.pods[pod.UID] = cancel
		script := s.scripts(pod)
		if script.Dies {
			s.dead[pod.Spec.NodeName] = true
		}
		s.logs[pod.Namespace+"/"+pod.Name] = script.Log
		if pod.Labels["job-name"] != "" {
			s.seen = append(s.seen, pod.Spec.NodeName)
		}
		s.running.Go(func() { s.play(life, pod, script) })
	}
}

// bind assigns a pod to the node in its affinity.
func (s *Sim) bind(ctx context.Context, pod *corev1.Pod) {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return
	}
	required := pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	if required == nil || len(required.NodeSelectorTerms) == 0 || len(required.NodeSelectorTerms[0].MatchExpressions) == 0 {
		return
	}
	node := required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	_ = s.client.SubResource("binding").Create(ctx, pod, binding) // a pod that is gone, or bound, needs none
}

// remove terminates a pod like its kubelet, and returns when the pod is gone. It first reports that the pod has
// stopped, because otherwise the Job controller would keep the pod.
func (s *Sim) remove(ctx context.Context, pod *corev1.Pod) {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		stopped := pod.Status.DeepCopy()
		stopped.Phase = corev1.PodFailed
		for i := range stopped.ContainerStatuses {
			stopped.ContainerStatuses[i].State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 137, FinishedAt: metav1.Now()}}
		}
		s.setStatus(ctx, pod, *stopped)
	}
	for ctx.Err() == nil {
		err := s.client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		pause(ctx)
	}
}

// pause waits before the next attempt.
func pause(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	<-ctx.Done()
}

// play runs a pod according to its script until it ends.
func (s *Sim) play(ctx context.Context, pod *corev1.Pod, script Script) {
	container := corev1.ContainerStatus{Name: pod.Spec.Containers[0].Name, Image: pod.Spec.Containers[0].Image, ImageID: "sim", ContainerID: "sim://" + string(pod.UID)}
	started := metav1.Now()
	if script.Unpullable {
		container.ContainerID, container.ImageID = "", ""
		container.State.Waiting = &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}
		s.setStatus(ctx, pod, corev1.PodStatus{Phase: corev1.PodPending, ContainerStatuses: []corev1.ContainerStatus{container}})
		return
	}
	container.State.Running = &corev1.ContainerStateRunning{StartedAt: started}
	s.setStatus(ctx, pod, corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &started, ContainerStatuses: []corev1.ContainerStatus{container}})
	if script.Dies {
		_ = s.report(ctx, pod.Spec.NodeName, corev1.ConditionFalse) // a node that was removed has no status
	}
	if script.Hangs || script.Dies {
		return
	}
	timer := time.NewTimer(script.Takes)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	container.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: script.Exit, StartedAt: started, FinishedAt: metav1.Now()}}
	status := corev1.PodStatus{Phase: corev1.PodSucceeded, StartTime: &started, ContainerStatuses: []corev1.ContainerStatus{container}}
	if script.Exit != 0 || script.Evicted {
		status.Phase = corev1.PodFailed
	}
	if script.Evicted {
		status.Reason = "Evicted"
		status.Conditions = []corev1.PodCondition{{
			Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: "TerminationByKubelet", LastTransitionTime: metav1.Now(),
		}}
	}
	s.setStatus(ctx, pod, status)
}

// setStatus writes a pod's status.
func (s *Sim) setStatus(ctx context.Context, pod *corev1.Pod, status corev1.PodStatus) {
	next := pod.DeepCopy()
	next.Status = status
	_ = s.client.Status().Patch(ctx, next, client.MergeFrom(pod)) // the pod may be gone
}
