// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pki

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"slices"
	"time"
)

// State is the hub's authority through a change: what signs now, what signs next and is already announced, and what signed
// before and is still trusted.
type State struct {
	// Active signs the hub's serving certificates.
	Active KeyPair
	// Next is announced to all agents and signs nothing yet. Empty when no change is under way.
	Next KeyPair
	// Old are the certificates, as PEM, that signed before Active and are still announced.
	Old []byte
	// Changed is when Next or Active last became what it is. Zero for an authority that never changed.
	Changed time.Time
}

// Timing of a change of the authority.
const (
	// RenewBefore is how long before its end an authority is replaced on its own.
	RenewBefore = 365 * 24 * time.Hour
	// RetireAfter is how long a replaced authority is still announced, for agents that were away.
	RetireAfter = 30 * 24 * time.Hour
	// ForceBefore is how long before its end an authority gives way even if agents are still missing.
	ForceBefore = 30 * 24 * time.Hour
)

// Input is what the next step of an authority depends on.
type Input struct {
	State State
	// Requested is whether a person asked for a change that has not begun yet.
	Requested bool
	// Forced is whether a person decided not to wait for the missing.
	Forced bool
	// Retired is whether a person wants the old authority trusted no longer, as when its key was stolen.
	Retired bool
	// Missing names the members that have joined and have not confirmed the announced bundle.
	Missing []string
	Now     time.Time
}

// Step is one step of an authority's life.
type Step string

const (
	// StepWait changes nothing.
	StepWait Step = "Wait"
	// StepCreate makes the first authority.
	StepCreate Step = "Create"
	// StepAnnounce makes the next authority and announces it beside the active one.
	StepAnnounce Step = "Announce"
	// StepPromote lets the next authority sign; every member knows it.
	StepPromote Step = "Promote"
	// StepRetire stops announcing the old one.
	StepRetire Step = "Retire"
)

// Decision is the next step, why, and when to look again although nothing happened (zero: never).
type Decision struct {
	Step   Step
	Why    string
	LookAt time.Time
}

// Decide says which step is next. It is pure.
func Decide(in Input) (Decision, error) {
	if len(in.State.Active.Cert) == 0 {
		return Decision{Step: StepCreate, Why: "there is no authority yet"}, nil
	}
	active, err := tls.X509KeyPair(in.State.Active.Cert, in.State.Active.Key)
	if err != nil {
		return Decision{}, fmt.Errorf("read active CA: %w", err)
	}
	renewAt := active.Leaf.NotAfter.Add(-RenewBefore)
	if len(in.State.Next.Cert) > 0 {
		return decidePromotion(in, active.Leaf.NotAfter.Add(-ForceBefore)), nil
	}
	retireAt := in.State.Changed.Add(RetireAfter)
	switch {
	case in.Requested:
		return Decision{Step: StepAnnounce, Why: "a change was requested"}, nil
	case !in.Now.Before(renewAt):
		return Decision{Step: StepAnnounce, Why: "the active authority ends at " + active.Leaf.NotAfter.UTC().Format(time.RFC3339)}, nil
	case len(in.State.Old) > 0 && in.Retired:
		return Decision{Step: StepRetire, Why: "the end of the old authority was requested"}, nil
	case len(in.State.Old) > 0 && !in.Now.Before(retireAt):
		return Decision{Step: StepRetire, Why: "the old authority was replaced long ago"}, nil
	case len(in.State.Old) > 0:
		return Decision{Step: StepWait, Why: "the old authority is still announced", LookAt: earlier(retireAt, renewAt)}, nil
	}
	return Decision{Step: StepWait, Why: "the authority is in order", LookAt: renewAt}, nil
}

func decidePromotion(in Input, forceAt time.Time) Decision {
	switch {
	case len(in.Missing) == 0:
		return Decision{Step: StepPromote, Why: "every member knows the next authority"}
	case in.Forced:
		return Decision{Step: StepPromote, Why: fmt.Sprintf("forced although %d members do not know the next authority", len(in.Missing))}
	case !in.Now.Before(forceAt):
		return Decision{Step: StepPromote, Why: "the active authority is about to end"}
	}
	return Decision{Step: StepWait, Why: missingMessage(in.Missing), LookAt: forceAt}
}

func missingMessage(missing []string) string {
	const most = 5
	names := slices.Sorted(slices.Values(missing))
	if len(names) > most {
		return fmt.Sprintf("waiting for %d member(s) to learn the next authority, among them %v", len(names), names[:most])
	}
	return fmt.Sprintf("waiting for %d member(s) to learn the next authority: %v", len(names), names)
}

// Apply carries out a step on a state and returns the new state.
func Apply(s State, step Step, now time.Time) (State, error) {
	switch step {
	case StepWait:
		return s, nil
	case StepRetire:
		s.Old = nil
		return s, nil
	case StepPromote:
		return State{Active: s.Next, Old: s.Active.Cert, Changed: now}, nil
	case StepCreate, StepAnnounce:
		pair, err := NewAuthority(now)
		if err != nil {
			return s, err
		}
		if step == StepCreate {
			return State{Active: pair}, nil
		}
		s.Next, s.Changed = pair, now
		return s, nil
	}
	return s, fmt.Errorf("unknown step %q", step)
}

// Bundle is what agents are to trust, as PEM: the active authority first, then the next, then the old.
func (s State) Bundle() []byte {
	return bytes.Join([][]byte{s.Active.Cert, s.Next.Cert, s.Old}, nil)
}
