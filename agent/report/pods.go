// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// unfinished selects the pods whose requests count. A pod that has finished leaves the watch.
const unfinished = "status.phase!=Succeeded,status.phase!=Failed"

// podTally sums the requests of pods.
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

// strings returns the requests of all pods, as quantities.
func (t *podTally) strings() map[string]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requested.strings()
}

func readPod(pod *corev1.Pod) amounts {
	// These are the requests that the scheduler counts.
	requested := amountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}), maxOfPod)
	requested.pods = 1
	return requested
}
