// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"crypto/rand"
	"errors"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// ErrRestored is returned when the hub's etcd was restored while the replica was running. The replica then stops,
// because its caches may contain objects that no longer exist on the hub.
var ErrRestored = errors.New("the Lease lacks renewals that this replica has seen: " +
	"the hub's etcd was restored from a backup while the program was running. The replica exits, because its caches " +
	"may be newer than the hub, and starts again with the hub's present state")

// Recorder is the Lease client that a manager uses for leader election. It keeps the history in the Lease's annotation.
type Recorder struct {
	leasesv1.LeasesGetter
	// Restored is called when a Lease lacks a renewal that this process has seen. It may be nil.
	Restored func()

	id   string
	last atomic.Pointer[sighting] // nil until the Lease has been read or written
	own  atomic.Pointer[history]  // the history that this process last wrote; nil if it has never been the leader
	seen history                  // the history that was last read or written; used only by the leader election
}

// NewRecorder returns a Recorder that reads and writes Leases with a client.
func NewRecorder(client leasesv1.LeasesGetter) *Recorder {
	return &Recorder{LeasesGetter: client, id: rand.Text()[:12]}
}

// Current returns this leader's latest checkpoint, or an empty string if this process has never been the leader.
func (r *Recorder) Current() string {
	h := r.load()
	if h == nil {
		return ""
	}
	last, _ := h.last()
	return last.String()
}

// Term returns this leader's term, or an empty string if this process has never been the leader.
func (r *Recorder) Term() string {
	if h := r.load(); h != nil {
		return h.term()
	}
	return ""
}

// Term returns the term of the leader that a Lease records, or an empty string if the Lease's history has no term.
func Term(lease *coordinationv1.Lease) string { return historyOf(lease).term() }

// Forgot reports whether the hub has no record of an agent's checkpoint, because the hub's etcd was restored from an
// older backup.
func (r *Recorder) Forgot(checkpoint string) bool {
	h := r.load()
	p, ok := parsePoint(checkpoint)
	return ok && h != nil && h.forgot(p)
}

func (r *Recorder) load() *history {
	if r == nil { // there is no leader election
		return nil
	}
	return r.own.Load()
}

// Leases implements LeasesGetter.
func (r *Recorder) Leases(namespace string) leasesv1.LeaseInterface {
	return leases{LeaseInterface: r.LeasesGetter.Leases(namespace), recorder: r}
}

type leases struct {
	leasesv1.LeaseInterface
	recorder *Recorder
}

// Get implements LeaseInterface. A standby replica reads the Lease every few seconds. The leader reads it only if a
// renewal has failed, for example after a restore. In that case, Get fails, so a replica whose caches differ from the
// hub's state does not become the leader.
func (l leases) Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error) {
	lease, err := l.LeaseInterface.Get(ctx, name, options)
	if err != nil {
		return nil, err
	}
	now := historyOf(lease)
	if last, ok := l.recorder.seen.last(); ok && now.forgot(last) {
		if l.recorder.Restored != nil {
			l.recorder.Restored()
		}
		return nil, ErrRestored
	}
	l.recorder.seen = now
	l.recorder.sight(lease)
	return lease, nil
}

// Create implements LeaseInterface.
func (l leases) Create(
	ctx context.Context, lease *coordinationv1.Lease, options metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	return l.recorder.stored(l.LeaseInterface.Create(ctx, l.recorder.renew(lease), options))
}

// Update implements LeaseInterface. It fails if the Lease has changed since it was read, so that no renewal by another
// process is lost.
func (l leases) Update(
	ctx context.Context, lease *coordinationv1.Lease, options metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	return l.recorder.stored(l.LeaseInterface.Update(ctx, l.recorder.renew(lease), options))
}

// renew returns a copy of the Lease with one more renewal in its history. If the Lease is being released, renew returns
// it unchanged.
func (r *Recorder) renew(lease *coordinationv1.Lease) *coordinationv1.Lease {
	if holder := lease.Spec.HolderIdentity; holder == nil || *holder == "" {
		return lease
	}
	h := historyOf(lease)
	if own := r.load(); own != nil && own.lease == h.lease && len(h.terms) == 0 {
		h = *own // the annotation was removed
	}
	var number int32
	if n := lease.Spec.LeaseTransitions; n != nil {
		number = *n
	}
	lease = lease.DeepCopy() // a failed write must not change the history
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[v1.AnnotationTerms] = h.renew(number, r.id).String()
	return lease
}

// stored records the result of a write to the Lease, and returns it.
func (r *Recorder) stored(lease *coordinationv1.Lease, err error) (*coordinationv1.Lease, error) {
	if err != nil {
		return lease, err
	}
	r.sight(lease)
	r.seen = historyOf(lease)
	if last, ok := r.seen.last(); ok && last.id == r.id {
		h := r.seen
		r.own.Store(&h)
	}
	return lease, nil
}

func historyOf(lease *coordinationv1.Lease) history {
	return parseHistory(string(lease.UID), lease.Annotations[v1.AnnotationTerms])
}

// HeldUntil returns the expiry time of a Lease that was renewed at the given time. It returns the zero time if no
// manager holds the Lease, for example because the last leader released the Lease when it stopped.
func HeldUntil(lease *coordinationv1.Lease, renewed time.Time) time.Time {
	holder, duration := lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds
	if holder == nil || *holder == "" || duration == nil {
		return time.Time{}
	}
	return renewed.Add(time.Duration(*duration) * time.Second)
}

// sighting holds a version of the Lease, and its expiry time according to this replica's clock. The leader's clock may
// differ.
type sighting struct {
	version string
	until   time.Time
}

// sight records a Lease that was read or written. The caller may modify the Lease afterward.
func (r *Recorder) sight(lease *coordinationv1.Lease) {
	if last := r.last.Load(); last == nil || last.version != lease.ResourceVersion {
		r.last.Store(&sighting{lease.ResourceVersion, HeldUntil(lease, time.Now())})
	}
}

// Led reports whether this replica knows that some replica is the leader. Without leader election, this replica is the
// leader.
func (r *Recorder) Led() bool {
	if r == nil {
		return true
	}
	last := r.last.Load()
	return last == nil || time.Now().Before(last.until)
}
