// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// Outage is a time during which a Cluster was shown as not Ready.
type Outage struct {
	Cluster  types.NamespacedName
	From, To time.Time // To is zero while it lasts
	Reason   string
	Message  string
}

// Lasted returns how long the outage lasted. If it has not ended, the duration up to now is returned.
func (s Outage) Lasted(now time.Time) time.Duration {
	if s.To.IsZero() {
		return now.Sub(s.From)
	}
	return s.To.Sub(s.From)
}

func (s Outage) String() string {
	return fmt.Sprintf("%s %s for %s: %s %s", s.From.Format("15:04:05.000"), s.Cluster, s.Lasted(time.Now()).Round(time.Millisecond), s.Reason, s.Message)
}

// ReadinessWatch watches the Ready conditions of all Clusters at the hub's API server.
type ReadinessWatch struct {
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	away    map[types.NamespacedName]Outage
	outages []Outage // that have ended
}

// WatchReadiness watches until ctx ends. Afterward, the caller must call Wait.
func WatchReadiness(ctx context.Context, api client.WithWatch) *ReadinessWatch {
	t := &ReadinessWatch{away: map[types.NamespacedName]Outage{}}
	t.running.Go(func() {
		for ctx.Err() == nil {
			t.once(ctx, api)
		}
	})
	return t
}

// Wait returns when the watch has ended.
func (t *ReadinessWatch) Wait() { t.running.Wait() }

// once runs one watch until the API server ends it. Each watch starts with all Clusters.
func (t *ReadinessWatch) once(ctx context.Context, api client.WithWatch) {
	clusters, err := api.Watch(ctx, &v1.ClusterList{})
	if err != nil {
		pause := time.NewTimer(100 * time.Millisecond)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		return
	}
	defer clusters.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, open := <-clusters.ResultChan():
			if !open {
				return
			}
			if c, ok := event.Object.(*v1.Cluster); ok {
				t.note(c, event.Type == watch.Deleted, time.Now())
			}
		}
	}
}

func (t *ReadinessWatch) note(c *v1.Cluster, deleted bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := client.ObjectKeyFromObject(c)
	outage, away := t.away[name]
	ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady)
	switch well := deleted || ready != nil && ready.Status == "True"; {
	case well && away:
		outage.To = now
		t.outages = append(t.outages, outage)
		delete(t.away, name)
	case !well && !away:
		outage = Outage{Cluster: name, From: now}
		if ready != nil {
			outage.Reason, outage.Message = ready.Reason, ready.Message
		}
		t.away[name] = outage
	}
}

// Outages returns all outages that have ended since the last Reset, and the current ones.
func (t *ReadinessWatch) Outages() []Outage {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.outages)
	for _, outage := range t.away {
		all = append(all, outage)
	}
	slices.SortFunc(all, func(a, b Outage) int { return a.From.Compare(b.From) })
	return all
}

// Reset drops the outages that have ended.
func (t *ReadinessWatch) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.outages = nil
}
