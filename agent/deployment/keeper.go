// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deployment changes the agent's own Deployment as the hub requests, restores the previous one if the new one
// does not become ready, and removes the agent.
package deployment

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/time/rate"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/protocol"
)

const (
	retryAfter     = 5 * time.Second // delay after a failed request; doubles up to maxRetry
	maxRetry       = 5 * time.Minute
	unmanagedAfter = time.Minute // how often to check again while there is no Deployment that the agent may change
	rewatchAfter   = 5 * time.Second
	callTimeout    = 10 * time.Second
	maxMessage     = 512 // the maximum size of a message in a report, in bytes
)

// These limits protect the API server if another controller keeps reverting the Deployment or if Drover has a bug. A
// normal change takes five writes.
const (
	writesAtOnce = 60
	writeEvery   = 10 * time.Second
)

// Options configure a Keeper.
type Options struct {
	Deployment *kube.Deployment // the agent's own Deployment
	DaemonSet  *kube.DaemonSet  // DaemonSet of the node agents
	NodeLease  *kube.Lease      // the Lease that node agents use to elect a leader
	Direct     *kube.DaemonSet  // DaemonSet of the pods that review users' tokens for API servers
	Secrets    *kube.Secrets    // Secrets in the agent's namespace
	// Nodes returns the number of nodes in the member, and reports whether the number is known. Call Keeper.Wake when the
	// number changes.
	Nodes func() (int32, bool)
	// Changed is called when Keeper.Report has changed.
	Changed func()
	Log     logr.Logger
}

// Keeper changes the agent's Deployment as the hub requests while this replica is the leader.
type Keeper struct {
	options Options
	store   store
	wake    chan struct{}
	writes  *rate.Limiter
	retry   wait.Backoff // used only by the goroutine that leads, as are nodes and direct
	nodes   daemonSetKeeper
	direct  daemonSetKeeper

	mu     sync.Mutex // guards report
	report *protocol.Deployment
}

// New returns a Keeper.
func New(o Options) *Keeper {
	return &Keeper{
		options: o, store: store{o.Secrets}, wake: make(chan struct{}, 1),
		writes: rate.NewLimiter(rate.Every(writeEvery), writesAtOnce), retry: retries(),
		nodes:  daemonSetKeeper{wanted: nodeAgents, client: o.DaemonSet, lease: o.NodeLease},
		direct: daemonSetKeeper{wanted: directSet, client: o.Direct, nowhere: "no node has the label " + controlPlane},
	}
}

// retries returns the pauses after failed requests.
func retries() wait.Backoff {
	return wait.Backoff{Duration: retryAfter, Factor: 2, Jitter: 0.1, Steps: math.MaxInt32, Cap: maxRetry}
}

// Report returns the state of the Deployment, or nil before the Keeper has read it.
func (k *Keeper) Report() *protocol.Deployment {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.report
}

// Wake makes the Keeper check the Deployment again.
func (k *Keeper) Wake() { await.Signal(k.wake) }

// Lead keeps the Deployment in the state that the hub requested until ctx is done.
func (k *Keeper) Lead(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	k.nodes.kept, k.direct.kept = kept{}, kept{} // another replica may have been the leader in between
	running.Go(func() { k.follow(ctx, k.options.Deployment.Watch) })
	running.Go(func() {
		k.follow(ctx, func(ctx context.Context) (watch.Interface, error) {
			return k.options.Secrets.Watch(ctx, protocol.DeploymentSecret)
		})
	})
	await.Loop(ctx, k.wake, k.settle)
}

// follow wakes the Keeper on each event of a watch until ctx is done.
func (k *Keeper) follow(ctx context.Context, open func(context.Context) (watch.Interface, error)) {
	for ctx.Err() == nil {
		w, err := open(ctx)
		if err != nil {
			again := rewatchAfter
			if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
				again = unmanagedAfter
			}
			await.Time(ctx, again)
			continue
		}
		began := time.Now()
		for range w.ResultChan() {
			k.Wake()
		}
		w.Stop()
		await.Time(ctx, max(0, rewatchAfter-time.Since(began)))
	}
}

// settle performs steps until no more steps are due. It returns the time until the next check, or 0 if the Keeper can
// wait for the next event.
func (k *Keeper) settle(ctx context.Context) time.Duration {
	for ctx.Err() == nil {
		again, err := k.step(ctx)
		switch {
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
			continue // another client wrote in the meantime, so check again; k.writes limits how often
		case err != nil && ctx.Err() == nil:
			pause := k.retry.Step()
			k.options.Log.Error(err, "cannot change the deployment; retrying", "after", pause.Round(time.Second).String())
			return pause
		case again != nil:
			k.retry = retries()
			return *again
		}
	}
	return 0
}

// step observes and reports the state, and performs one step. If no step is due, it returns the time until the next
// check.
func (k *Keeper) step(ctx context.Context) (again *time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	live, err := k.options.Deployment.Get(ctx)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		k.setReport(&protocol.Deployment{Unmanaged: true, Message: protocol.Cut(err.Error(), maxMessage)})
		later := unmanagedAfter
		return &later, nil
	}
	if err != nil {
		return nil, err
	}
	r, secret, err := k.store.read(ctx)
	if err != nil {
		return nil, err
	}
	o := observed{record: r, live: live, now: time.Now()}
	if nodes, known := k.options.Nodes(); known {
		o.nodes = nodes
	}
	s, current := next(o), report(o)
	if s.act == stay && !current.RolledOut && deadlineExceeded(live) {
		if current.NotReady, err = k.whyNotReady(ctx, current.Digest); err != nil {
			return nil, err
		}
	}
	if s.act == stay {
		for _, set := range []*daemonSetKeeper{&k.nodes, &k.direct} {
			later, failed := set.keep(ctx, live, o.now)
			if err = errors.Join(err, failed); s.again == 0 || later > 0 && later < s.again {
				s.again = later
			}
		}
		current.NodeAgents, current.Direct = k.nodes.problem, k.direct.problem
		k.setReport(current) // comes first, because the report does not depend on the DaemonSets
		return &s.again, err
	}
	current.NodeAgents, current.Direct = k.nodes.problem, k.direct.problem
	k.setReport(current)
	if pause := k.pause(); pause > 0 {
		return &pause, nil
	}
	return nil, k.act(ctx, o, s, secret)
}

// pause returns how long to wait before the next write, or 0 to write immediately.
func (k *Keeper) pause() time.Duration {
	reservation := k.writes.Reserve()
	pause := reservation.Delay()
	if pause > 0 {
		reservation.Cancel()
		k.options.Log.Info("the deployment changes too often; waiting", "after", pause.Round(time.Second).String())
	}
	return pause
}

func (k *Keeper) act(ctx context.Context, o observed, s step, secret *corev1.Secret) error {
	switch s.act {
	case write:
		k.options.Log.Info("recording the phase of the deployment's change", "digest", s.record.Digest, "phase",
			s.record.Phase)
		return k.store.write(ctx, s.record, secret)
	case apply:
		return k.apply(ctx, o, secret)
	case restore:
		k.options.Log.Info("rolling back the deployment", "message", o.record.Message)
		return k.change(ctx, o, o.record.Previous)
	case explain:
		var err error
		if s.record.Message, err = k.whyNotReady(ctx, s.record.Digest); err != nil {
			return err
		}
		return k.store.write(ctx, s.record, secret)
	case scale:
		k.options.Log.Info("changing the number of replicas", "nodes", o.nodes, "replicas", s.replicas)
		patch, err := o.scalePatch(s.replicas)
		if err != nil {
			return fmt.Errorf("make patch: %w", err)
		}
		return k.options.Deployment.Patch(ctx, patch)
	}
	return nil
}

// whyNotReady returns the reason why the pods with the given digest are not ready.
func (k *Keeper) whyNotReady(ctx context.Context, digest string) (string, error) {
	pods, err := k.options.Deployment.Pods(ctx)
	return protocol.Cut(whyNotReady(pods, digest), maxMessage), err
}

// apply applies the desired Deployment. If the API server rejects the Deployment, apply records the rejection.
func (k *Keeper) apply(ctx context.Context, o observed, secret *corev1.Secret) error {
	err := k.change(ctx, o, o.record.Wanted)
	if apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) {
		k.options.Log.Error(err, "the API server rejects the deployment")
		return k.store.write(ctx, o.record.refused(protocol.Cut(err.Error(), maxMessage)), secret)
	}
	return err
}

func (k *Keeper) change(ctx context.Context, o observed, raw []byte) error {
	target := &appsv1.Deployment{}
	if err := json.Unmarshal(raw, target); err != nil {
		return fmt.Errorf("decode stored deployment: %w", err)
	}
	patch, err := o.patch(target)
	if err != nil {
		return fmt.Errorf("make patch: %w", err)
	}
	return k.options.Deployment.Patch(ctx, patch)
}

func (k *Keeper) setReport(report *protocol.Deployment) {
	k.mu.Lock()
	same := reflect.DeepEqual(k.report, report)
	k.report = report
	k.mu.Unlock()
	if !same {
		k.options.Changed()
	}
}
