// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// unfinished is the field selector for the pods whose resource requests count. A pod that has finished no longer
// matches, so the watch reports it as deleted.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// podTally sums the resource requests of pods.
type podTally struct {
	tally[*corev1.Pod, amounts]
	requested amounts // guarded by tally.mu
}

func newPodTally(seen func()) *podTally {
	t := &podTally{}
	t.count = func(n amounts, sign int64) { t.requested.add(n, sign) }
	t.begin(readPod, seen)
	return t
}

// strings returns the resource requests of all pods as quantities.
func (t *podTally) strings() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requested.strings()
}

func readPod(pod *corev1.Pod) amounts {
	// PodRequests returns the same requests that the scheduler counts.
	requested := amountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}), maxOfPod)
	requested.pods = 1
	return requested
}
