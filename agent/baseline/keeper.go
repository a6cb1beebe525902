// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package baseline keeps the objects of Baselines in the member.
//
// It applies, watches and deletes objects as the Baseline's own user, never with the rights of the agent itself. Only
// the inventory, a Secret in the agent's namespace, is read and written as the agent.
package baseline

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/repair"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// Options configure a Keeper.
type Options struct {
	Client  *kube.Client
	Secrets *kube.Secrets // Secrets in the agent's namespace
	// Write calls write as soon as the agent may write to the place. The id parameter is the ID of the set.
	Write func(ctx context.Context, place, id string, write func(context.Context) error) error
	// Changed is called with the ID of a set when one of its objects has changed.
	Changed func(id string)
	Now     func() time.Time
	Log     logr.Logger
}

// Keeper keeps the objects of Baselines while its replica leads. Each set ID must be used by one goroutine at a time.
type Keeper struct {
	options Options
	ctx     context.Context // ends the watches
	kinds   *kinds
	running sync.WaitGroup

	mu  sync.Mutex // guards the field below
	all map[string]*kept
}

// New returns a Keeper whose watches end with ctx. It uses no resources until Keep is called.
func New(ctx context.Context, o Options) *Keeper {
	return &Keeper{options: o, ctx: ctx, kinds: newKinds(o.Client, o.Now), all: map[string]*kept{}}
}

// Wait returns after ctx has ended and all watches have stopped.
func (k *Keeper) Wait() { k.running.Wait() }

// Result is the state of a Baseline.
type Result struct {
	// Problems lists the objects that are not in the desired state.
	Problems []protocol.SetObject
	State    protocol.BaselineState
	// Again is the time until Keep must be called again. It is 0 if only a change makes another call necessary.
	Again time.Duration
}

// kept is the state of a Baseline in the member.
type kept struct {
	*Keeper
	id, name string
	objects  *kube.Objects // with the rights of the Baseline's user
	content  *set.BaselineContent
	values   map[string]string
	wanted   []wanted
	since    time.Time // when the content or the values arrived
	watches  map[kind]*follow

	mu      sync.Mutex // guards the fields below while objects are written in parallel
	store   inventory
	budgets repair.Budgets[ref]
	late    map[ref]time.Time // when each unhealthy object was first seen in that state
}

// of returns the Baseline of a set.
func (k *Keeper) of(id string) *kept {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := k.all[id]
	if b == nil {
		b = &kept{Keeper: k, id: id, watches: map[kind]*follow{}, late: map[ref]time.Time{},
			store: inventory{secrets: k.options.Secrets, secret: secretName(id)}}
		k.all[id] = b
	}
	return b
}

// named sets the Baseline's name, from which its user and its label are derived.
func (b *kept) named(name string) {
	b.name, b.objects = name, b.options.Client.Objects().As(baseline.User(name))
}

// Keep applies the objects of a Baseline, and deletes objects that are no longer part of it. The values parameter is
// nil if the values of the Cluster are not known.
func (k *Keeper) Keep(ctx context.Context, id string, content *set.BaselineContent, values map[string]string) Result {
	b := k.of(id)
	p := &pass{kept: b, now: k.options.Now()}
	p.state = protocol.BaselineState{Revision: content.Revision, Objects: int32(len(content.Objects))}
	if !b.store.read { // the watches dropped events of objects that the inventory lacked
		b.stopWatches(nil)
	}
	if set.ID(set.Baseline, content.Name) != id || len(content.Name) > maxName {
		p.fail("the set has the name of another Baseline")
	} else if err := b.store.load(ctx); err != nil {
		p.fail("the inventory cannot be read: " + err.Error())
	} else {
		b.want(content, values, p.now)
		b.store.describe(content.Name, content.DeletionPolicy)
		p.keep(ctx)
	}
	return p.result()
}

// maxName is the maximum length of a Baseline's name, because the name is used as the value of a label.
const maxName = 63

// want replaces the desired content.
func (b *kept) want(content *set.BaselineContent, values map[string]string, now time.Time) {
	if b.content == content && (values == nil) == (b.values == nil) && maps.Equal(b.values, values) {
		return
	}
	b.named(content.Name)
	b.content, b.values, b.since = content, values, now
	b.wanted = prepare(content, values)
}

// Close ends the watches of a Baseline.
func (k *Keeper) Close(id string) {
	k.mu.Lock()
	b := k.all[id]
	delete(k.all, id)
	k.mu.Unlock()
	if b != nil {
		b.stopWatches(nil)
	}
}
