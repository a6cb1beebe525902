// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/rollout"
)

const (
	// refusedAgain is how long to wait before another attempt to evict a pod that a PodDisruptionBudget protects.
	refusedAgain = 5 * time.Second
	// maxEvictions is the maximum number of concurrent evictions. Because evictions run in parallel, an eviction that a
	// webhook slows down delays only a few others.
	maxEvictions = 8
	// maxRefusal is the maximum size of the reason why a pod was not evicted, in bytes.
	maxRefusal = 120
)

// leavingPod is a pod to evict.
type leavingPod struct {
	namespace, name string
	evicted         bool      // whether the API server has accepted the eviction
	again           time.Time // when to try again
	terminates      time.Time // end of the pod's grace period; zero unless the pod is being deleted
	refusal         string
}

// String returns the pod's name.
func (l *leavingPod) String() string { return l.namespace + "/" + l.name }

func terminatesAt(p *corev1.Pod) time.Time {
	if p.DeletionTimestamp == nil {
		return time.Time{}
	}
	return p.DeletionTimestamp.Time
}

// abandoned reports whether a pod has been terminating for so long that the drain no longer waits for it. As in
// kubectl, the time is counted in whole seconds.
func (d *drainer) abandoned(at time.Time) bool {
	limit := d.spec.SkipWaitForDeleteTimeout
	return limit > 0 && !at.IsZero() && int32(time.Since(at).Seconds()) > limit
}

// waits reports whether the drain is still waiting for a pod.
func (d *drainer) waits() bool {
	maps.DeleteFunc(d.pending, func(_ types.UID, l *leavingPod) bool { return d.abandoned(l.terminates) })
	return len(d.pending) > 0
}

// due returns the next time at which a pod must be evicted again or counts as abandoned, or the zero time if there
// is none.
func (d *drainer) due() time.Time {
	next := &deadline{}
	for _, l := range d.pending {
		if !l.evicted {
			next.by(l.again)
		}
		if d.spec.SkipWaitForDeleteTimeout > 0 && !l.terminates.IsZero() {
			next.by(l.terminates.Add(time.Duration(d.spec.SkipWaitForDeleteTimeout+1) * time.Second))
		}
	}
	return next.at
}

// evictDue evicts the pods that are due, a few at a time.
func (d *drainer) evictDue(ctx context.Context) error {
	var asking sync.WaitGroup
	slots := make(chan struct{}, maxEvictions)
	refused := make(chan error, len(d.pending))
	for uid, l := range d.pending {
		if l.evicted || time.Now().Before(l.again) {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			if err := d.tryEvict(ctx, uid, l); err != nil {
				refused <- err
			}
		})
	}
	asking.Wait()
	close(refused)
	return <-refused // nil if no eviction failed permanently
}

// tryEvict evicts a pod. It returns an error only if a retry cannot succeed.
func (d *drainer) tryEvict(ctx context.Context, uid types.UID, l *leavingPod) error {
	err := d.evict(ctx, uid, l)
	terminating := apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	switch {
	case err == nil, apierrors.IsNotFound(err), terminating && !l.terminates.IsZero():
		l.evicted, l.refusal = true, ""
	case ctx.Err() != nil:
	case lasting(err):
		return fmt.Errorf("evict pod %s: %w", l, err)
	default:
		l.refusal, l.again = "("+protocol.Cut(err.Error(), maxRefusal)+")", time.Now().Add(refusedAgain)
	}
	return nil
}

func (d *drainer) evict(ctx context.Context, uid types.UID, l *leavingPod) error {
	path := pathNamespaces + "/" + l.namespace + "/pods/" + l.name
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if d.spec.GracePeriod != nil {
		options.GracePeriodSeconds = new(int64(*d.spec.GracePeriod))
	}
	if d.spec.DisableEviction {
		return d.member.remove(ctx, path, options)
	}
	return d.member.rest.Post().AbsPath(path, "eviction").Body(&policyv1.Eviction{
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}, DeleteOptions: &options,
	}).Do(ctx).Error()
}

// await waits until all pods are gone or a pod is due. If the watch fails, await lists the pods instead.
func (d *drainer) await(ctx context.Context) error {
	if d.follow(ctx) || !await.Time(ctx, lookAfter) {
		return nil
	}
	return d.relist(ctx)
}

// follow watches the pods of the node. It returns false if the watch failed.
func (d *drainer) follow(ctx context.Context) bool {
	if due := d.due(); !due.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, due)
		defer cancel()
	}
	events, err := d.member.watchPods(ctx, metav1.ListOptions{FieldSelector: d.ofNode(), ResourceVersion: d.version})
	if err != nil {
		return ctx.Err() != nil
	}
	defer events.Stop()
	for len(d.pending) > 0 {
		select {
		case <-ctx.Done():
			return true
		case e, open := <-events.ResultChan():
			pod, is := e.Object.(*corev1.Pod)
			if !open || !is {
				return ctx.Err() != nil
			}
			d.see(e.Type, pod)
		}
	}
	return true
}

func (d *drainer) see(event watch.EventType, p *corev1.Pod) {
	d.version = p.ResourceVersion
	if event == watch.Deleted {
		delete(d.pending, p.UID)
	} else if l := d.pending[p.UID]; l != nil {
		l.terminates = terminatesAt(p)
	}
}

// relist lists the pods on the node, and drops pods that no longer exist.
func (d *drainer) relist(ctx context.Context) error {
	pods, err := d.list(ctx, "")
	if err != nil {
		return err
	}
	before := d.pending
	d.pending = map[types.UID]*leavingPod{}
	for i := range pods {
		if l := before[pods[i].UID]; l != nil {
			d.pending[pods[i].UID], l.terminates = l, terminatesAt(&pods[i])
		}
	}
	return nil
}

// drains holds drains in progress and finished drains, at most one for each node.
type drains struct {
	options Options
	ended   func() // called when a drain has ended

	mu  sync.Mutex // guards the fields below and their contents
	all map[string]*draining
}

// draining is a drain and its result.
type draining struct {
	drain
	cancel context.CancelFunc
	done   bool
	failed string
}

func newDrains(o Options, ended func()) *drains {
	return &drains{options: o, ended: ended, all: map[string]*draining{}}
}

// start starts a drain, and cancels any other drain of the node. The drain is added to the running wait group.
func (d *drains) start(ctx context.Context, running *sync.WaitGroup, wanted drain) {
	ctx, cancel := context.WithCancel(ctx)
	one := &draining{drain: wanted, cancel: cancel}
	d.mu.Lock()
	if before := d.all[wanted.node]; before != nil {
		before.cancel()
	}
	d.all[wanted.node] = one
	d.mu.Unlock()
	running.Go(func() {
		defer d.ended()
		defer cancel()
		err := Drain(ctx, d.options, wanted.node, wanted.spec)
		d.mu.Lock()
		defer d.mu.Unlock()
		if one.done = true; err != nil {
			one.failed = err.Error()
		}
	})
}

// follow cancels drains that no claim needs anymore, and returns the state of the remaining drains.
func (d *drains) follow(nodes []rollout.Node) map[string]rollout.Drain {
	wanted := map[string]bool{}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.all) == 0 {
		return nil
	}
	for i := range nodes {
		one := d.all[nodes[i].Name]
		if one == nil {
			continue
		}
		c, at := nodes[i].Claims[one.plan]
		wanted[one.node] = at && c.Hash == one.hash && c.Attempt == one.attempt && c.Failure == nil
	}
	known := map[string]rollout.Drain{}
	for node, one := range d.all {
		if !wanted[node] {
			one.cancel()
			delete(d.all, node)
			continue
		}
		known[node] = rollout.Drain{Hash: one.hash, Attempt: one.attempt, Done: one.done, Failed: one.failed}
	}
	return known
}
