// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package attempts

import (
	"fmt"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func at(user, source string) Attempt { return Attempt{User: user, Source: source} }

func TestGuessingBecomesSlow(t *testing.T) {
	log, now := New(), start
	for i := range 5 {
		if wait := log.Begin(at("alice", "10.0.0.1"), now); wait != 0 {
			t.Fatalf("attempt %d waits for %s, want the first five to be free", i, wait)
		}
	}
	for _, seconds := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900, 900} {
		want := time.Duration(seconds) * time.Second
		if wait := log.Begin(at("alice", "10.0.0.1"), now); wait != want {
			t.Fatalf("the next attempt waits for %s, want %s", wait, want)
		}
		now = now.Add(want)
		if wait := log.Begin(at("alice", "10.0.0.1"), now); wait != 0 {
			t.Fatalf("an attempt after the wait waits for %s more", wait)
		}
	}
	if wait := log.Begin(at("alice", "10.0.0.2"), now); wait != 0 {
		t.Errorf("alice at another address waits for %s: an attacker could lock her out", wait)
	}
	if wait := log.Begin(at("bob", "10.0.0.1"), now); wait != 0 {
		t.Errorf("another user of the address waits for %s", wait)
	}
	if wait := log.Begin(at("alice", "10.0.0.1"), now.Add(forget)); wait != 0 {
		t.Errorf("an hour later she waits for %s", wait)
	}
}

func TestGuessingFromManyAddressesOrOfManyUsersBecomesSlow(t *testing.T) {
	log := New()
	for i := range 50 {
		if wait := log.Begin(at("alice", fmt.Sprintf("10.0.0.%d", i)), start); wait != 0 {
			t.Fatalf("attempt %d waits for %s", i, wait)
		}
		if wait := log.Begin(at(fmt.Sprintf("user-%d", i), "10.0.1.1"), start); wait != 0 {
			t.Fatalf("attempt %d waits for %s", i, wait)
		}
	}
	if wait := log.Begin(at("alice", "10.0.0.200"), start); wait != time.Second {
		t.Errorf("the 51st address waits for %s, want 1s", wait)
	}
	if wait := log.Begin(at("carol", "10.0.1.1"), start); wait != time.Second {
		t.Errorf("the 51st user waits for %s, want 1s", wait)
	}
	now := start
	for range 20 {
		now = now.Add(time.Minute)
		if wait := log.Begin(at("alice", "10.0.2."+fmt.Sprint(now.Minute())), now); wait != 0 {
			t.Fatalf("alice waits for %s after a minute, want a minute at most, wherever the attacker is", wait)
		}
	}
}

func TestSuccessfulAttemptsDoNotCount(t *testing.T) {
	log := New()
	for i := range 1000 {
		if wait := log.Begin(at("alice", "10.0.0.1"), start); wait != 0 {
			t.Fatalf("after %d successes she waits for %s", i, wait)
		}
		log.Succeeded(at("alice", "10.0.0.1"), start)
	}
	if n := log.known.Len(); n != 0 {
		t.Errorf("%d keys are remembered, want none", n)
	}
}

func TestMemoryOfAttemptsIsBounded(t *testing.T) {
	log := New()
	for i := range remembered {
		log.Begin(at(fmt.Sprint("u", i), fmt.Sprint("s", i)), start)
	}
	if n := log.known.Len(); n != remembered {
		t.Errorf("%d keys are remembered, want %d", n, remembered)
	}
}

func TestAttackersDoNotSlowDownADeviceThatTheUserKnows(t *testing.T) {
	log, now := New(), start
	own := Attempt{User: "alice", Source: "10.0.0.1", Device: "d"}
	for i := range 200 {
		now = now.Add(time.Minute)
		log.Begin(at("alice", fmt.Sprint("10.0.1.", i)), now)
		log.Begin(at(fmt.Sprint("user-", i), "10.0.0.1"), now)
		log.Begin(at("alice", "10.0.0.1"), now)
	}
	if wait := log.Begin(at("alice", "10.0.9.9"), now); wait == 0 {
		t.Error("alice at another address does not wait: the attackers have not reached the bound")
	}
	for i := range 5 {
		if wait := log.Begin(own, now); wait != 0 {
			t.Fatalf("attempt %d on her own device waits for %s", i, wait)
		}
	}
	if wait := log.Begin(own, now); wait != time.Second {
		t.Errorf("a guess on a stolen device waits for %s, want 1s after five", wait)
	}
}

func TestUncheckedAttemptsDoNotCount(t *testing.T) {
	log := New()
	log.Begin(at("alice", "10.0.0.1"), start)
	for i := range 100 {
		if wait := log.Begin(at("alice", "10.0.0.1"), start); wait != 0 {
			t.Fatalf("after %d attempts that were not checked she waits for %s", i, wait)
		}
		log.Withdrawn(at("alice", "10.0.0.1"), start)
	}
	for range 4 {
		log.Begin(at("alice", "10.0.0.1"), start)
	}
	if wait := log.Begin(at("alice", "10.0.0.1"), start); wait != time.Second {
		t.Errorf("after five failures she waits for %s: an attempt that was not checked forgot one", wait)
	}
}
