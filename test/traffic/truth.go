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

// Spell is a time in which a Cluster was shown as not Ready.
type Spell struct {
	Cluster  types.NamespacedName
	From, To time.Time // To is zero while it lasts
	Reason   string
	Message  string
}

// Lasted is how long the spell is, up to a moment if it has not ended.
func (s Spell) Lasted(now time.Time) time.Duration {
	if s.To.IsZero() {
		return now.Sub(s.From)
	}
	return s.To.Sub(s.From)
}

func (s Spell) String() string {
	return fmt.Sprintf("%s %s for %s: %s %s", s.From.Format("15:04:05.000"), s.Cluster, s.Lasted(time.Now()).Round(time.Millisecond), s.Reason, s.Message)
}

// Truth watches what the hub says of all its Clusters, at the API server itself.
type Truth struct {
	running sync.WaitGroup

	mu     sync.Mutex // guards what follows
	away   map[types.NamespacedName]Spell
	spells []Spell // that have ended
}

// WatchTruth watches until ctx ends. Wait for it after that.
func WatchTruth(ctx context.Context, api client.WithWatch) *Truth {
	t := &Truth{away: map[types.NamespacedName]Spell{}}
	t.running.Go(func() {
		for ctx.Err() == nil {
			t.once(ctx, api)
		}
	})
	return t
}

// Wait returns when the watch has ended.
func (t *Truth) Wait() { t.running.Wait() }

// once watches as long as the API server lets it. Each watch begins with all that there is.
func (t *Truth) once(ctx context.Context, api client.WithWatch) {
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

func (t *Truth) note(c *v1.Cluster, deleted bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	name := client.ObjectKeyFromObject(c)
	spell, away := t.away[name]
	ready := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady)
	switch well := deleted || ready != nil && ready.Status == "True"; {
	case well && away:
		spell.To = now
		t.spells = append(t.spells, spell)
		delete(t.away, name)
	case !well && !away:
		spell = Spell{Cluster: name, From: now}
		if ready != nil {
			spell.Reason, spell.Message = ready.Reason, ready.Message
		}
		t.away[name] = spell
	}
}

// Spells are all spells that have ended since the last Reset, and those that last.
func (t *Truth) Spells() []Spell {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := slices.Clone(t.spells)
	for _, spell := range t.away {
		all = append(all, spell)
	}
	slices.SortFunc(all, func(a, b Spell) int { return a.From.Compare(b.From) })
	return all
}

// Reset forgets the spells that have ended.
func (t *Truth) Reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.spells = nil
}
