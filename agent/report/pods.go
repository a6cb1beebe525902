// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	corev1 "k8s.io/api/core/v1"
)

// unfinished selects the pods whose requests count. A pod that finishes leaves the watch.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// podTally sums what pods request.
type podTally struct {
	tally[amounts]
	requested amounts // guarded by tally.mu
}

func newPodTally(changed func()) *podTally {
	t := &podTally{}
	t.changed = changed
	t.read = readPod
	t.count = func(n amounts, sign int64) { t.requested.add(n, sign) }
	return t
}

// strings is what all pods request, as quantities.
func (t *podTally) strings() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requested.strings()
}

func readPod(obj any) *summary[amounts] {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil
	}
	requested := podRequests(&pod.Spec)
	requested.pods = 1
	return summarize(&pod.ObjectMeta, requested)
}

// podRequests is what the scheduler counts for a pod: its containers and sidecars together, or the most that initialising it needs
// at one time, and the overhead. Requests of the pod as a whole, where set, take the place of those of its containers.
func podRequests(spec *corev1.PodSpec) amounts {
	var total, sidecars, peak amounts
	for i := range spec.InitContainers {
		c := &spec.InitContainers[i]
		now := sidecars.copy()
		now.add(amountsOf(c.Resources.Requests), 1)
		peak.raise(now)
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			sidecars = now
		}
	}
	total.add(sidecars, 1)
	for i := range spec.Containers {
		total.add(amountsOf(spec.Containers[i].Resources.Requests), 1)
	}
	total.raise(peak)
	if spec.Resources != nil {
		total.override(amountsOf(spec.Resources.Requests))
	}
	total.add(amountsOf(spec.Overhead), 1)
	return total
}
