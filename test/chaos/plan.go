// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A kind of fault.
type kind string

// The kinds of faults.
const (
	killed   kind = "SIGKILL"        // and started again after the time
	stopped  kind = "SIGTERM"        // and started again after the time
	hung     kind = "SIGSTOP"        // and SIGCONT after the time
	cut      kind = "cut"            // all connections are reset
	refusing kind = "cut and refuse" // new ones as well, for the time
	stalled  kind = "stall"          // nothing passes for the time
	slowed   kind = "slow"           // by latency, jitter and bandwidth, for the time
)

// class is the class of a target. It determines the possible faults.
type class int

const (
	manager class = iota
	agent
	simulator
	apiServer
	link
)

// harm is a fault that can occur in a class of targets, with its relative frequency and its duration.
type harm struct {
	kind        kind
	weight      int
	least, most time.Duration
	ends        bool // the process ends, and its leaks with it
}

func harmsOf(c class) []harm {
	switch c {
	case manager:
		return []harm{
			{killed, 3, 0, 4 * time.Second, true}, {stopped, 3, 0, 4 * time.Second, true}, {hung, 3, time.Second, 20 * time.Second, false},
		}
	case agent:
		return []harm{
			{killed, 3, 0, 8 * time.Second, true}, {stopped, 2, 0, 8 * time.Second, true}, {hung, 3, time.Second, 40 * time.Second, false},
		}
	case simulator:
		return []harm{{hung, 1, time.Second, 40 * time.Second, false}}
	case apiServer:
		return []harm{{hung, 2, time.Second, 12 * time.Second, false}, {killed, 1, 0, 5 * time.Second, false}}
	case link:
		return []harm{
			{cut, 4, 0, 0, false}, {refusing, 2, time.Second, 10 * time.Second, false},
			{stalled, 3, time.Second, longestStall, false}, {slowed, 3, 5 * time.Second, 30 * time.Second, false},
		}
	}
	return nil
}

// longestStall is the longest stall of a link.
const longestStall = 30 * time.Second

// target is a process or link in which faults occur.
type target struct {
	name  string
	class class
}

// action is a fault in a target at a given time.
type action struct {
	after  time.Duration // since the begin
	target string
	class  class
	kind   kind
	lasts  time.Duration
	seed   uint64 // of the random choices within the action
}

func (a action) String() string {
	text := fmt.Sprintf("%s %s", a.kind, a.target)
	if a.lasts > 0 {
		text += fmt.Sprintf(" for %s", a.lasts.Round(time.Millisecond))
	}
	return text
}

const (
	pauseLeast = 300 * time.Millisecond
	pauseMost  = 4 * time.Second
	// recovery is how long a target is left alone after a fault.
	recovery = 5 * time.Second
	// calmShare is the last part of the run. No process ends in this part, because leaks in ended processes could not be
	// detected.
	calmShare = 0.4
)

// plan returns the actions of a run. The same seed results in the same actions.
func plan(seed uint64, duration time.Duration, targets []target) []action {
	random := rand.New(rand.NewPCG(seed, 1))
	free := make([]time.Duration, len(targets)) // when a target may be chosen again
	var actions []action
	for now := time.Duration(0); ; {
		now += between(random, pauseLeast, pauseMost)
		if now >= duration {
			return actions
		}
		i := random.IntN(len(targets))
		calm := now > duration-time.Duration(calmShare*float64(duration))
		a, ok := choose(random, targets[i], calm)
		if !ok || free[i] > now {
			continue
		}
		a.after, a.seed = now, random.Uint64()
		free[i] = now + a.lasts + recovery
		actions = append(actions, a)
	}
}

func choose(random *rand.Rand, t target, calm bool) (action, bool) {
	total := 0
	for _, h := range harmsOf(t.class) {
		if !calm || !h.ends {
			total += h.weight
		}
	}
	if total == 0 {
		return action{}, false
	}
	pick := random.IntN(total)
	for _, h := range harmsOf(t.class) {
		if calm && h.ends {
			continue
		}
		if pick -= h.weight; pick < 0 {
			return action{target: t.name, class: t.class, kind: h.kind, lasts: between(random, h.least, h.most)}, true
		}
	}
	return action{}, false
}

func between(random *rand.Rand, least, most time.Duration) time.Duration {
	if most <= least {
		return least
	}
	return least + time.Duration(random.Int64N(int64(most-least)))
}
