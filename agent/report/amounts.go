// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	podresources "k8s.io/component-helpers/resource"

	"github.com/drover-dev/drover/agent/watch"
)

// amounts is a compact resource list. Resources that every node and pod has are stored in fields. All other resources
// are stored in a map, which is usually nil.
type amounts struct {
	milliCPU         int64
	memory           int64 // bytes
	ephemeralStorage int64 // bytes
	pods             int64
	extended         map[corev1.ResourceName]int64
}

// amountsOf reads a resource list. It reduces amounts above the maximum to the maximum, and omits amounts that are
// zero.
func amountsOf(list corev1.ResourceList, most int64) amounts {
	var a amounts
	for name, q := range list {
		switch name {
		case corev1.ResourceCPU:
			a.milliCPU = bounded(q, 1000, most)
		case corev1.ResourceMemory:
			a.memory = bounded(q, 1, most)
		case corev1.ResourceEphemeralStorage:
			a.ephemeralStorage = bounded(q, 1, most)
		case corev1.ResourcePods:
			a.pods = bounded(q, 1, most)
		default:
			if v := bounded(q, 1, most); v != 0 && !strings.HasPrefix(string(name), "attachable-volumes-") {
				a.extend(name, v)
			}
		}
	}
	return a
}

func (a *amounts) extend(name corev1.ResourceName, v int64) {
	if a.extended == nil {
		a.extended = make(map[corev1.ResourceName]int64, 1)
	}
	a.extended[name] += v
}

// Limits on each amount for one node and one pod. They prevent overflows of the sums for up to 8,192 nodes and 524,288
// pods. The sums themselves cannot be limited, because they are maintained by adding and subtracting.
const (
	maxOfNode = 1 << 50
	maxOfPod  = 1 << 44
)

// maxDigits is the largest amount without a unit that protocol.Report.Bound accepts.
const maxDigits = 999_999_999_999_999_999

// bounded returns an amount in units of 1/parts. It reduces a larger amount to the given maximum, to prevent an
// overflow.
func bounded(q resource.Quantity, parts, most int64) int64 {
	switch {
	case q.CmpInt64(most/parts) > 0:
		return most
	case q.Sign() < 0:
		return 0
	case parts == 1:
		return q.Value()
	}
	return q.MilliValue()
}

// add adds b if sign is 1, and subtracts b if sign is -1.
func (a *amounts) add(b amounts, sign int64) {
	a.milliCPU += sign * b.milliCPU
	a.memory += sign * b.memory
	a.ephemeralStorage += sign * b.ephemeralStorage
	a.pods += sign * b.pods
	for name, v := range b.extended {
		a.extend(name, sign*v)
		if a.extended[name] == 0 {
			delete(a.extended, name)
		}
	}
}

// Amounts of at least gibiFrom bytes are reported in gibibytes. Smaller amounts are reported in mebibytes, or in bytes
// below one mebibyte.
const (
	mebi     = 1 << 20
	gibi     = 1 << 30
	gibiFrom = 10 * gibi
)

// CPU amounts of at least coarseCPUFrom are rounded down to multiples of coarseCPU, so that they do not change every
// time a pod is added or removed.
const (
	coarseCPUFrom = 10_000 // in milli-CPUs
	coarseCPU     = 100    // in milli-CPUs
)

// strings returns the amounts as quantities, rounded down so that small changes are not visible. It omits amounts that
// are zero.
func (a *amounts) strings() map[string]string {
	out := make(map[string]string, 4+len(a.extended))
	if a.milliCPU > 0 {
		milli := min(a.milliCPU, maxDigits)
		if milli >= coarseCPUFrom {
			milli -= milli % coarseCPU
		}
		out[string(corev1.ResourceCPU)] = resource.NewMilliQuantity(milli, resource.DecimalSI).String()
	}
	count := func(name corev1.ResourceName, v int64) {
		if v > 0 {
			out[string(name)] = resource.NewQuantity(min(v, maxDigits), resource.DecimalSI).String()
		}
	}
	size := func(name corev1.ResourceName, v int64) {
		if v > 0 {
			out[string(name)] = roundBytes(v)
		}
	}
	size(corev1.ResourceMemory, a.memory)
	size(corev1.ResourceEphemeralStorage, a.ephemeralStorage)
	count(corev1.ResourcePods, a.pods)
	for name, v := range a.extended {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			size(name, v)
			continue
		}
		count(name, v)
	}
	return out
}

func roundBytes(v int64) string {
	unit := int64(mebi)
	switch {
	case v >= gibiFrom:
		unit = gibi
	case v < mebi:
		unit = 1
	}
	return resource.NewQuantity(v-v%unit, resource.BinarySI).String()
}

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
	requested := amountsOf(podresources.PodRequests(pod, podresources.PodResourcesOptions{}), maxOfPod)
	requested.pods = 1
	return requested
}
