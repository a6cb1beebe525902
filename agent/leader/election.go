// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package leader uses a Lease to elect one of the agent's replicas as the leader.
//
// The leader performs the tasks that only one replica may perform.
//
// The election works as in client-go. That implementation is not used, because it links the clientset for every
// Kubernetes API group and takes more memory than the rest of the agent. A replica takes the Lease if its holder has
// not renewed it for the Lease's duration. The replica measures this time with its own clock from when it observed the
// last change, so the replicas' clocks need not agree. A leader that cannot renew the Lease stops before another
// replica starts.
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

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

// ErrNotLeading is returned if this replica is not the leader and the task is reserved for the leader.
var ErrNotLeading = errors.New("this replica of the agent does not lead: ask another")

// Intervals and timeouts of the election. The leader writes the Lease twelve times a minute. With client-go's defaults,
// it would write thirty times a minute. A leader that is killed is replaced within 19 s, and a leader that stops
// gracefully is replaced within 2 s.
const (
	duration      = 15 * time.Second // how long a Lease lasts without a renewal
	renewInterval = 5 * time.Second
	renewDeadline = 10 * time.Second // a leader stops if it has not renewed the Lease for this long
	lookInterval  = 2 * time.Second  // how often other replicas check the Lease, and how soon a failed renewal is retried
	callTimeout   = 4 * time.Second
)

// Leases reads and writes one Lease. Errors can be checked with k8s.io/apimachinery/pkg/api/errors.
type Leases interface {
	Get(ctx context.Context) (*coordinationv1.Lease, error)
	Create(ctx context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error)
	// Update fails with a conflict if the Lease has changed since it was read.
	Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error)
}

// Options configure an Election.
type Options struct {
	Leases Leases
	// Name identifies this process among the replicas. A later process, such as the next container in the same pod, can
	// use the same name to become the leader again immediately. Two running processes must not have the same name.
	Name string
	// Lead is called when this replica becomes the leader. It must return soon after ctx is done. No other replica
	// becomes the leader before Lead has returned.
	Lead func(ctx context.Context)
	// Follow is called when this replica notices that another replica is the leader, and when it stops being the leader
	// itself.
	Follow func()
	// Look is how often the replica checks the Lease while another replica is the leader. It defaults to 2 s.
	Look time.Duration
	// Restored is called when the Lease's version is lower than the last one. This happens when the cluster's etcd was
	// restored from a backup. Data that was read before the restore is no longer valid, and this replica is no longer
	// the leader. Restored may be nil.
	Restored func()
	Log      logr.Logger
}

// Election runs the leader election on behalf of one replica.
type Election struct {
	options Options
	seen    seen
	newest  uint64 // the newest version of the Lease that this replica has seen
}

// seen records the version of a Lease that another replica wrote, and the time when this replica first saw that
// version.
type seen struct {
	version string
	at      time.Time
}

// New returns an Election.
func New(o Options) *Election {
	if o.Look == 0 {
		o.Look = lookInterval
	}
	return &Election{options: o}
}

// Run takes part in the election until ctx is done, and then releases the Lease.
func (e *Election) Run(ctx context.Context) {
	for ctx.Err() == nil {
		lease, err := e.acquire(ctx)
		if lease != nil {
			e.lead(ctx, lease)
			continue
		}
		if err != nil && ctx.Err() == nil {
			e.options.Log.V(1).Info("cannot take the lease", "error", err.Error())
		}
		await.Time(ctx, e.options.Look)
	}
}

// acquire tries once to become the leader. It returns the Lease if it succeeds.
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
		return nil, nil // another replica was faster
	}
	return lease, err
}

// errRestored is returned if the Lease's version is lower than the last version that was seen.
var errRestored = errors.New("the cluster went back to an earlier state: its etcd was restored from a backup")

// observe records the version of a Lease that was read or written. If Options.Restored is set and the version is lower
// than the last one, observe calls it and returns errRestored. The version changes only when the Lease is written, and
// then increases. A lower version therefore comes from a backup. This is reliable regardless of the writes to etcd
// since the restore, and even if the restore increased etcd's revisions. The replica that was the leader detects the
// restore at its next write. The other replicas detect it before they take the Lease, because they take it only after
// it was unchanged for its duration.
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

// free records the Lease and reports whether it can be taken.
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

// spec returns the spec that a leader writes. The before parameter is the current spec, or nil if there is none.
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

// lead leads until the Lease is lost or ctx is done.
func (e *Election) lead(ctx context.Context, lease *coordinationv1.Lease) {
	e.options.Log.Info("leading", "name", e.options.Name)
	leading, stop := context.WithCancel(ctx)
	defer stop()
	_ = e.observe(lease) // this replica has just written the Lease
	var running sync.WaitGroup
	running.Go(func() { e.options.Lead(leading) })
	lease, err := e.renew(leading, lease)
	stop()
	running.Wait()
	e.options.Follow()
	if ctx.Err() != nil {
		e.release(lease)
		return
	}
	e.options.Log.Info("no longer leading", "error", err.Error())
}

// renew renews the Lease until it is lost or ctx is done, and returns the reason.
func (e *Election) renew(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	renewed, wait := time.Now(), renewInterval
	for {
		if await.Time(ctx, wait); ctx.Err() != nil {
			return lease, ctx.Err()
		}
		asked := time.Now()
		next, err := e.update(ctx, lease, asked, renewed.Add(renewDeadline))
		switch {
		case err == nil:
			_ = e.observe(next) // this replica has just written the Lease
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

// errTaken is returned if another replica has taken the Lease.
var errTaken = errors.New("another replica has taken the lease")

// update renews the Lease once. The cause of a conflict may be an earlier write by this replica whose response was
// lost.
func (e *Election) update(ctx context.Context, lease *coordinationv1.Lease, now,
	deadline time.Time) (*coordinationv1.Lease, error) {
	if limit := now.Add(callTimeout); limit.Before(deadline) {
		deadline = limit
	}
	ctx, cancel := context.WithDeadline(ctx, deadline)
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

// release releases the Lease, so that other replicas do not have to wait until it expires.
func (e *Election) release(lease *coordinationv1.Lease) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	noHolder, second := "", int32(1)
	lease = lease.DeepCopy()
	lease.Spec.HolderIdentity, lease.Spec.LeaseDurationSeconds = &noHolder, &second
	if _, err := e.options.Leases.Update(ctx, lease); err != nil && !apierrors.IsNotFound(err) {
		e.options.Log.V(1).Info("cannot release the lease; other replicas wait for its end", "error", err.Error())
	}
}

// Term returns the current term according to the Lease. It reads the Lease each time, because a cached term may be out
// of date if this process was suspended.
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
