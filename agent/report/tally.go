// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/drover-dev/drover/agent/watch"
)

// tally stores a few numbers for each object and the sums of these numbers, but not the objects themselves.
type tally[O watch.Object, N any] struct {
	*watch.Store[O, N]
	count func(n N, sign int64) // adds to the sum; called under mu

	mu sync.Mutex // guards the data that count writes
}

// begin creates the store. The read function returns the numbers for an object, and seen is called after each event and
// each list.
func (t *tally[O, N]) begin(read func(O) N, seen func()) {
	t.Store = watch.NewStore(watch.Options[O, N]{
		Read: func(o O) (N, bool) { return read(o), true }, Changed: t.changed, Seen: seen,
	})
}

func (t *tally[O, N]) changed(_ watch.Name, before, now *N) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if before != nil {
		t.count(*before, -1)
	}
	if now != nil {
		t.count(*now, 1)
	}
}

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
	// PodRequests returns a pod's resource requests as the scheduler counts them.
	requested := amountsOf(resource.PodRequests(pod, resource.PodResourcesOptions{}), maxOfPod)
	requested.pods = 1
	return requested
}
