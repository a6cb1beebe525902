// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/signin/attempts"
	"github.com/drover-dev/drover/internal/signin/password"
)

func TestSpellingsOfANameShareTheirAttempts(t *testing.T) {
	for name, same := range map[string]string{"Alice": "alice", "Álìce": "alice", "a\u0301lice": "alice", "ALİCE": "alice",
		"alice@example.com": "alice@example.com", "bob": "bob"} {
		if got := folded(name); got != same {
			t.Errorf("folded(%q) = %q, want %q", name, got, same)
		}
	}
}

func TestGuessersDoNotDelayAKnownBrowser(t *testing.T) {
	p := newPasswords()
	for all := range 1 + runtime.GOMAXPROCS(0) {
		ended, end := context.WithCancel(t.Context())
		end() // no seat is waited for
		seat, err := p.strangers.Enter(ended, limit.Requester{User: fmt.Sprint("attacker ", all)})
		if err == nil {
			t.Cleanup(seat.Release)
		}
	}
	ended, end := context.WithCancel(t.Context())
	end()
	const secret = "correct-horse-battery"
	stored, err := password.Hash(secret)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.verify(ended, attempts.Attempt{User: "alice", Source: "192.0.2.1"}, stored, secret); err == nil {
		t.Error("a stranger found a free seat, want all seats taken")
	}
	if ok, err := p.verify(t.Context(), attempts.Attempt{User: "alice", Source: "192.0.2.1", Device: "known"}, stored,
		secret); err != nil || !ok {
		t.Errorf("a known browser: %v, %v, want its password checked", ok, err)
	}
}
