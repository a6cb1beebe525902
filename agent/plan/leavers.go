// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"encoding/json"
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

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// refusedAgain is how long to wait before a pod is evicted again that a PodDisruptionBudget holds.
	refusedAgain = 5 * time.Second
	// askAtOnce is how many evictions are under way at once: one that takes long, for a webhook, keeps few others.
	askAtOnce = 8
	// maxRefusal is how many bytes an error says of why a pod was not evicted.
	maxRefusal = 120
)

// leaver is a pod that is to go.
type leaver struct {
	namespace, name string
	told            bool      // it is not to be told again
	again           time.Time // when to tell it again
	leaves          time.Time // when its grace is over; zero unless it is being deleted
	refusal         string
}

// String names the pod.
func (l *leaver) String() string { return l.namespace + "/" + l.name }

func leaves(p *corev1.Pod) time.Time {
	if p.DeletionTimestamp == nil {
		return time.Time{}
	}
	return p.DeletionTimestamp.Time
}

// given says whether a pod has been on its way for so long that it is not waited for. As there, whole seconds count.
func (d *drainer) given(leaves time.Time) bool {
	limit := d.spec.SkipWaitForDeleteTimeout
	return limit > 0 && !leaves.IsZero() && int32(time.Since(leaves).Seconds()) > limit
}

// waits says whether any pod is still waited for.
func (d *drainer) waits() bool {
	maps.DeleteFunc(d.pending, func(_ types.UID, l *leaver) bool { return d.given(l.leaves) })
	return len(d.pending) > 0
}

// due is when one is to be told again or is waited for no longer; zero for never.
func (d *drainer) due() time.Time {
	next := &deadline{}
	for _, l := range d.pending {
		if !l.told {
			next.by(l.again)
		}
		if d.spec.SkipWaitForDeleteTimeout > 0 && !l.leaves.IsZero() {
			next.by(l.leaves.Add(time.Duration(d.spec.SkipWaitForDeleteTimeout+1) * time.Second))
		}
	}
	return next.at
}

// tell asks the pods to go that are to be asked, a few at once.
func (d *drainer) tell(ctx context.Context) error {
	var asking sync.WaitGroup
	slots := make(chan struct{}, askAtOnce)
	refused := make(chan error, len(d.pending))
	for uid, l := range d.pending {
		if l.told || time.Now().Before(l.again) {
			continue
		}
		slots <- struct{}{}
		asking.Go(func() {
			defer func() { <-slots }()
			if err := d.ask(ctx, uid, l); err != nil {
				refused <- err
			}
		})
	}
	asking.Wait()
	close(refused)
	return <-refused // nil when there is none
}

// ask asks a pod to go. It errs when asking again would be no better.
func (d *drainer) ask(ctx context.Context, uid types.UID, l *leaver) error {
	err := d.evict(ctx, uid, l)
	terminating := apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
	switch {
	case err == nil, apierrors.IsNotFound(err), terminating && !l.leaves.IsZero():
		l.told, l.refusal = true, ""
	case ctx.Err() != nil:
	case lasting(err):
		return fmt.Errorf("evict pod %s: %w", l, err)
	default:
		l.refusal, l.again = "("+protocol.Cut(err.Error(), maxRefusal)+")", time.Now().Add(refusedAgain)
	}
	return nil
}

func (d *drainer) evict(ctx context.Context, uid types.UID, l *leaver) error {
	path := pathNamespaces + "/" + l.namespace + "/pods/" + l.name
	options := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}
	if d.spec.GracePeriod != nil {
		options.GracePeriodSeconds = new(int64(*d.spec.GracePeriod))
	}
	if d.spec.DisableEviction {
		return d.member.remove(ctx, path, options)
	}
	body, err := json.Marshal(policyv1.Eviction{
		TypeMeta:   metav1.TypeMeta{APIVersion: "policy/v1", Kind: "Eviction"},
		ObjectMeta: metav1.ObjectMeta{Namespace: l.namespace, Name: l.name}, DeleteOptions: &options,
	})
	if err != nil {
		return fmt.Errorf("encode eviction: %w", err)
	}
	return d.member.rest.Post().AbsPath(path, "eviction").SetHeader("Content-Type", jsonType).Body(body).Do(ctx).Error()
}

// await waits until all have gone or something is due. Where the API server does not tell, it is asked.
func (d *drainer) await(ctx context.Context) error {
	if d.follow(ctx) || !pause(ctx, lookAfter) {
		return nil
	}
	return d.lookAgain(ctx)
}

// follow notes what a watch tells of the node's pods; false when it told of too little.
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
		l.leaves = leaves(p)
	}
}

// lookAgain forgets pods that have gone.
func (d *drainer) lookAgain(ctx context.Context) error {
	pods, err := d.list(ctx, "")
	if err != nil {
		return err
	}
	before := d.pending
	d.pending = map[types.UID]*leaver{}
	for i := range pods {
		if l := before[pods[i].UID]; l != nil {
			d.pending[pods[i].UID], l.leaves = l, leaves(&pods[i])
		}
	}
	return nil
}
