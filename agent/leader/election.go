// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leader elects one of the agent's replicas, by a Lease, for what only one may do.
//
// It is not client-go's: that links the clientset of every group of Kubernetes, which costs more memory than the rest
// of the agent. What it does is the same. A replica takes a Lease that its holder has not renewed for the Lease's
// duration, as measured by the replica's own clock since it saw the last change, so that clocks need not agree. A
// leader that cannot renew stops before another replica starts.
package leader

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNotLeading is returned by what only the replica that leads does.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// Periods. A leader writes twelve times a minute, where client-go's usual periods make it thirty; one that is killed is
// replaced within 19 s, one that stops in good order within 2 s.
const (
	duration      = 15 * time.Second // how long a Lease lasts that is not renewed
	renewInterval = 5 * time.Second
	renewDeadline = 10 * time.Second // a leader that could not renew for so long stops
	askInterval   = 30 * time.Second // how often one that leads without a Lease asks for it
	lookInterval  = 2 * time.Second  // how often others look, and how soon a leader tries again
	callTimeout   = 4 * time.Second
)

// Leases reads and writes the one Lease. Its errors work with k8s.io/apimachinery/pkg/api/errors.
type Leases interface {
	Get(ctx context.Context) (*coordinationv1.Lease, error)
	Create(ctx context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error)
	// Update fails with a conflict if the Lease has changed since it was read.
	Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// Options of an Election.
type Options struct {
	Leases Leases
	// Name of this process among the replicas. Another process may have it only when this one has ended, as the next
	// container of the same pod: it leads again at once.
	Name string
	// Lead is run while this replica leads. It must return soon after its context ends; no other replica leads before
	// that.
	Lead func(ctx context.Context)
	// Follow is called when it is known that another replica leads, and when this one stops leading.
	Follow func()
	// Look is how often it looks while another leads; 2 s if it is 0.
	Look time.Duration
	// Restored is called when the Lease is older than it was before: the cluster's etcd was restored from a backup,
	// so that nothing which was read before counts. This replica does not lead any more then. Nil if nothing follows
	// of that.
	Restored func()
	// NeedsLease reports whether it never leads where Leases are forbidden.
	NeedsLease bool
	Log        logr.Logger
}

// Election makes this replica the leader whenever there is none.
type Election struct {
	options Options
	seen    seen
	newest  uint64 // version of the Lease that was seen last
}

// seen is what the others wrote, and when this replica first saw it.
type seen struct {
	version string
	at      time.Time
}

// New makes an Election.
func New(o Options) *Election {
	if o.Look == 0 {
		o.Look = lookInterval
	}
	return &Election{options: o}
}

// Run takes part until ctx ends, and then gives the Lease back.
//
// Where Leases are forbidden, as by the manifest of an older Drover, which has one replica only, it leads without, and
// asks again from time to time. An API server that has just started forbids everything for a moment, so that a replica
// which has seen the Lease before waits for it.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		lease, err := e.acquire(ctx)
		switch {
		case apierrors.IsForbidden(err) && ctx.Err() == nil && !e.options.NeedsLease && e.newest == 0:
			e.options.Log.Info("leading without a Lease, as the only replica: apply the manifest from the hub to have several",
				"error", err.Error())
			e.lead(ctx, nil)
		case lease != nil:
			e.lead(ctx, lease)
		default:
			if err != nil && ctx.Err() == nil {
				e.options.Log.V(1).Info("lease not taken", "error", err.Error())
			}
			pause(ctx, e.options.Look)
		}
	}
}

// acquire tries once to become the leader. It returns the Lease if it did.
func (e *Election) acquire(ctx context.Context) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	lease, err := e.options.Leases.Get(ctx)
	if apierrors.IsNotFound(err) {
		return e.options.Leases.Create(ctx, e.spec(nil, time.Now()))
	}
	if err == nil {
		err = e.observe(lease)
	}
	if err != nil {
		return nil, err
	}
	now := time.Now()
	if !e.free(lease, now) {
		e.options.Follow()
		return nil, nil
	}
	lease.Spec = e.spec(&lease.Spec, now)
	lease, err = e.options.Leases.Update(ctx, lease)
	if apierrors.IsConflict(err) {
		return nil, nil // another replica was first
	}
	return lease, err
}

// errRestored says that the Lease went back to an earlier version.
var errRestored = errors.New("the cluster went back to an earlier state: its etcd was restored from a backup")

// observe notes the version of a Lease that was read or written. It grows with each write of the Lease and with
// nothing else, so that one that is lower is of a backup, however much was written to etcd since, and also where the
// restore moved the revisions of etcd forward. The replica that led sees that at its next write, and the others
// before they take the Lease: they must have seen it unchanged for its duration.
func (e *Election) observe(lease *coordinationv1.Lease) error {
	before := e.newest
	if version, err := strconv.ParseUint(lease.ResourceVersion, 10, 64); err == nil {
		e.newest = version
	}
	if e.newest >= before || e.options.Restored == nil {
		return nil
	}
	e.options.Log.Info("the cluster went back to an earlier state", "leaseVersion", e.newest, "before", before)
	e.options.Restored()
	return errRestored
}

// free reports whether a Lease can be taken. It records what it sees.
func (e *Election) free(lease *coordinationv1.Lease, now time.Time) bool {
	holder := lease.Spec.HolderIdentity
	if holder == nil || *holder == "" || *holder == e.options.Name {
		return true
	}
	if lease.ResourceVersion != e.seen.version {
		e.seen = seen{version: lease.ResourceVersion, at: now}
		return false
	}
	lasts := duration
	if d := lease.Spec.LeaseDurationSeconds; d != nil {
		lasts = time.Duration(*d) * time.Second
	}
	return now.Sub(e.seen.at) >= lasts
}

// spec is what a leader writes. before is what was there, nil if nothing was.
func (e *Election) spec(before *coordinationv1.LeaseSpec, now time.Time) coordinationv1.LeaseSpec {
	at, seconds, transitions := metav1.NewMicroTime(now), int32(duration/time.Second), int32(0)
	spec := coordinationv1.LeaseSpec{
		HolderIdentity: &e.options.Name, LeaseDurationSeconds: &seconds, AcquireTime: &at, RenewTime: &at,
		LeaseTransitions: &transitions,
	}
	if before != nil && before.LeaseTransitions != nil {
		transitions = *before.LeaseTransitions + 1
	}
	return spec
}

// lead leads until the Lease is lost or ctx ends. Without a Lease it leads until there is one that another replica
// holds.
func (e *Election) lead(ctx context.Context, lease *coordinationv1.Lease) {
	e.options.Log.Info("leading", "name", e.options.Name)
	leading, stop := context.WithCancel(ctx)
	defer stop()
	if lease != nil {
		_ = e.observe(lease) // our own write
	}
	var running sync.WaitGroup
	running.Go(func() { e.options.Lead(leading) })
	err := errTaken
	if lease == nil {
		lease = e.awaitRight(leading)
	}
	if lease != nil {
		lease, err = e.renew(leading, lease)
	}
	stop()
	running.Wait()
	e.options.Follow()
	if ctx.Err() != nil {
		e.release(lease)
		return
	}
	e.options.Log.Info("no longer leading", "error", err.Error())
}

// awaitRight asks until it can take the Lease, and returns nil when another replica has it or ctx ends.
func (e *Election) awaitRight(ctx context.Context) *coordinationv1.Lease {
	for {
		if pause(ctx, askInterval); ctx.Err() != nil {
			return nil
		}
		lease, err := e.acquire(ctx)
		if lease != nil || err == nil {
			return lease
		}
	}
}

// renew renews the Lease until it is lost or ctx ends, and says why.
func (e *Election) renew(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	renewed, wait := time.Now(), renewInterval
	for {
		if pause(ctx, wait); ctx.Err() != nil {
			return lease, ctx.Err()
		}
		asked := time.Now()
		next, err := e.update(ctx, lease, asked, renewed.Add(renewDeadline))
		switch {
		case err == nil:
			_ = e.observe(next) // our own write
			lease, renewed, wait = next, asked, renewInterval
		case apierrors.IsNotFound(err), errors.Is(err, errTaken), errors.Is(err, errRestored):
			return lease, err
		case !time.Now().Before(renewed.Add(renewDeadline)):
			return lease, err
		default:
			wait = min(lookInterval, max(0, time.Until(renewed.Add(renewDeadline))))
		}
	}
}

// errTaken says that another replica has taken the Lease.
var errTaken = errors.New("another replica has taken the lease")

// update renews once. A conflict may come from our own write whose response was lost.
func (e *Election) update(ctx context.Context, lease *coordinationv1.Lease, now,
	deadline time.Time) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithDeadline(ctx, earlier(now.Add(callTimeout), deadline))
	defer cancel()
	want := lease.DeepCopy()
	at := metav1.NewMicroTime(now)
	want.Spec.RenewTime = &at
	next, err := e.options.Leases.Update(ctx, want)
	if !apierrors.IsConflict(err) {
		return next, err
	}
	if want, err = e.options.Leases.Get(ctx); err != nil {
		return nil, err
	}
	if err := e.observe(want); err != nil {
		return nil, err
	}
	if holder := want.Spec.HolderIdentity; holder == nil || *holder != e.options.Name {
		return nil, errTaken
	}
	want.Spec.RenewTime = &at
	return e.options.Leases.Update(ctx, want)
}

// release gives the Lease back, so that no replica waits for its end.
func (e *Election) release(lease *coordinationv1.Lease) {
	if lease == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	noHolder, second := "", int32(1)
	lease = lease.DeepCopy()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &noHolder, &second
	if _, err := e.options.Leases.Update(ctx, lease); err != nil && !apierrors.IsNotFound(err) {
		e.options.Log.V(1).Info("lease not given back, others wait for its end", "error", err.Error())
	}
}

// Term returns the term that is in force, as the Lease says now. It is read, and not remembered: what is remembered
// may be of before a pause of this process.
func Term(ctx context.Context, leases Leases) (protocol.Term, error) {
	lease, err := leases.Get(ctx)
	if apierrors.IsNotFound(err) {
		return protocol.Term{}, nil
	}
	if err != nil {
		return protocol.Term{}, err
	}
	return termOf(lease), nil
}

func termOf(lease *coordinationv1.Lease) protocol.Term {
	spec := lease.Spec
	if spec.HolderIdentity == nil || *spec.HolderIdentity == "" || spec.AcquireTime == nil {
		return protocol.Term{}
	}
	transitions := int32(0)
	if spec.LeaseTransitions != nil {
		transitions = *spec.LeaseTransitions
	}
	since := spec.AcquireTime.UTC().Format(time.RFC3339Nano)
	return protocol.Term{Term: fmt.Sprintf("%d/%s/%s", transitions, since, *spec.HolderIdentity)}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
