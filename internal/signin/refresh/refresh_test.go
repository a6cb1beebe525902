// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package refresh

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

const session = "0123456789abcdef0123456789abcdef"

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// after is a token with its successors and the state of the session, each used ten minutes after the one before.
func after(t *testing.T, uses int) (given []Token, s State, now time.Time) {
	t.Helper()
	first, s := New(session, start)
	given, now = []Token{first}, start
	for range uses {
		now = now.Add(10 * time.Minute)
		next, state, outcome := s.Use(given[len(given)-1], now)
		if outcome != Rotated {
			t.Fatalf("the present token is worth %d, want it rotated", outcome)
		}
		given, s = append(given, next), state
	}
	return given, s, now
}

func TestUse(t *testing.T) {
	foreign, _ := New(session, start)
	for name, tt := range map[string]struct {
		token func(given []Token) Token
		after time.Duration
		want  Outcome
		next  int // which of the tokens is given
	}{
		"the present one": {func(g []Token) Token { return g[3] }, 10 * time.Minute, Rotated, -1},
		"the present one, of a replica whose clock lags": {
			func(g []Token) Token { return g[3] }, -20 * time.Second, Rotated, -1,
		},
		"the present one at once": {func(g []Token) Token { return g[3] }, Pause - 1, TooSoon, -1},
		"the one before, at once": {func(g []Token) Token { return g[2] }, 0, Repeated, 3},
		"the one before, at a clock that lags": {
			func(g []Token) Token { return g[2] }, -20 * time.Second, Repeated, 3,
		},
		"the one before, at the end of the grace":         {func(g []Token) Token { return g[2] }, Grace, Repeated, 3},
		"RFC 9700 §4.14: the one before, after the grace": {func(g []Token) Token { return g[2] }, Grace + 1, Reused, -1},
		"an older one, whose grace is over":               {func(g []Token) Token { return g[1] }, 0, Reused, -1},
		"the first one":                                   {func(g []Token) Token { return g[0] }, 0, Reused, -1},
		"a token derived from an older token": {
			func(g []Token) Token { g[0].secret = newSecret(); return g[0] }, 0, Reused, -1,
		},
		"a token that was never issued": {func([]Token) Token { return foreign }, 0, Foreign, -1},
		"the present secret with a foreign family": {
			func(g []Token) Token { g[3].family = foreign.family; return g[3] }, 0, Foreign, -1,
		},
		"none": {func([]Token) Token { return Token{Session: session} }, 0, Foreign, -1},
	} {
		t.Run(name, func(t *testing.T) {
			given, s, now := after(t, 3)
			used := tt.token(append([]Token(nil), given...))
			next, state, outcome := s.Use(used, now.Add(tt.after))
			if outcome != tt.want {
				t.Fatalf("it is worth %d, want %d", outcome, tt.want)
			}
			switch outcome {
			case Rotated:
				if next == used || !same(next.secret.hash(), state.Present) || !same(used.secret.hash(), state.Former) ||
					!state.Given(next) {
					t.Errorf("the next token is not that of the next state")
				}
			case Repeated:
				if next != given[tt.next] || !same(s.Present, state.Present) {
					t.Errorf("it gives another token than the one that replaced it")
				}
			default:
				if next != (Token{}) {
					t.Errorf("it gives a token")
				}
			}
		})
	}
}

func TestEmptyStateAcceptsNoToken(t *testing.T) {
	first, _ := New(session, start)
	for _, token := range []Token{first, {}} {
		if _, _, outcome := (State{}).Use(token, start); outcome != Foreign {
			t.Errorf("it is worth %d", outcome)
		}
	}
}

func TestStoredSessionContainsNoToken(t *testing.T) {
	given, s, _ := after(t, 2)
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range given {
		for _, part := range []secret{token.family, token.secret} {
			for _, text := range []string{base64.StdEncoding.EncodeToString(part[:]),
				base64.RawURLEncoding.EncodeToString(part[:])} {
				if bytes.Contains(raw, []byte(text)) {
					t.Errorf("the state %s holds a part of a token", raw)
				}
			}
		}
	}
}

func TestParse(t *testing.T) {
	token, _ := New(session, start)
	good := token.String()
	if got, ok := Parse(good); !ok || got != token || len(good) != Len {
		t.Fatalf("a token of %d bytes is read as %+v (%t)", len(good), got, ok)
	}
	for name, raw := range map[string]string{
		"nothing": "", "cut": good[:len(good)-1], "longer": good + "A", "another prefix": "token--" + good[7:], "without a colon": strings.Replace(good, ":", "A", 1),
		"a name with a path": strings.Replace(good, session, "../../../../secrets/drover-sign-i",
			1), "capitals": strings.Replace(good, "abcdef", "ABCDEF", 1),
		"a line break": good[:len(good)-1] + "\n", "a character of base64": good[:len(good)-1] + "+", "bits beyond the end": good[:len(good)-1] + "_",
	} {
		if got, ok := Parse(raw); ok {
			t.Errorf("%s: %q is read as %+v", name, raw, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	token, _ := New(session, start)
	f.Add(token.String())
	f.Add("refresh-" + session + ":")
	f.Fuzz(func(t *testing.T, raw string) {
		if token, ok := Parse(raw); ok && token.String() != raw {
			t.Errorf("%q is read as %q", raw, token)
		}
	})
}
