// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package link

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/tunnel"
)

func refused(status int, after time.Duration) error {
	return &tunnel.HandshakeError{StatusCode: status, RetryAfter: after}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	down := errors.New("connection refused")
	most := func(n time.Duration) time.Duration { return n - 1 } // the longest possible wait
	for name, tc := range map[string]struct {
		opened []time.Duration
		err    error
		most   time.Duration // of the last wait, plus 1
		least  time.Duration
	}{
		"the first failure waits up to half a second": {[]time.Duration{0}, down, 500 * time.Millisecond, 0},
		"so does the second":                          {[]time.Duration{0, 0}, down, 500 * time.Millisecond, 0},
		"each further failure doubles it":             {[]time.Duration{0, 0, 0, 0}, down, 2 * time.Second, 0},
		"up to 30 seconds":                            {make([]time.Duration, 40), down, 30 * time.Second, 0},
		"a tunnel that was short is a failure":        {[]time.Duration{0, 0, 59 * time.Second}, down, time.Second, 0},
		"a healthy minute starts over": {[]time.Duration{0, 0, 0, time.Minute}, down, 500 * time.Millisecond,
			0},
		"401 waits one to five minutes": {[]time.Duration{0}, refused(401, 0), 5 * time.Minute, time.Minute},
		"403 waits one to five minutes": {[]time.Duration{0}, refused(403, 0), 5 * time.Minute, time.Minute},
		"410 waits one to five minutes": {[]time.Duration{0, 0, 0}, refused(410, 0), 5 * time.Minute,
			time.Minute},
		"410 honours a longer Retry-After": {[]time.Duration{0}, refused(410, time.Hour), time.Hour + 4*time.Minute,
			time.Hour},
		"503 waits as for any failure": {[]time.Duration{0}, refused(503, 0), 500 * time.Millisecond, 0},
		"503 honours Retry-After and spreads": {[]time.Duration{0}, refused(503, 4*time.Second), 8 * time.Second,
			4 * time.Second},
		"a refusal of what the agent has waits as 401 does": {[]time.Duration{0}, noToken{}, 5 * time.Minute, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			longest, shortest := newBackoff(most, firstWait),
				newBackoff(func(time.Duration) time.Duration { return 0 }, firstWait)
			var most, least time.Duration
			for _, opened := range tc.opened {
				most, least = longest.next(opened, tc.err), shortest.next(opened, tc.err)
			}
			if most != tc.most-1 || least != tc.least {
				t.Errorf("waits %s to %s, want %s to %s", least, most, tc.least, tc.most)
			}
		})
	}
}

type noToken struct{}

func (noToken) Error() string          { return "no token" }
func (noToken) Refused() time.Duration { return 0 }

// fakeHub is a hub with scripted outcomes. It records the time of each attempt.
type fakeHub struct {
	servers  []string
	outcomes []outcome
	dialled  []string
	targeted []time.Duration
	last     []error
	start    time.Time
	tokens   int
	changed  chan struct{}
	finished context.CancelFunc
}

// outcome is the outcome of a dial: an error, or a tunnel that stays open for a duration.
type outcome struct {
	err  error
	open time.Duration
}

func (s *fakeHub) Target(_ context.Context, last error) (*Target, error) {
	s.targeted = append(s.targeted, time.Since(s.start))
	s.last = append(s.last, last)
	return &Target{
		Servers: s.servers,
		Token:   func() (string, error) { s.tokens++; return "token-" + string(rune('0'+s.tokens)), nil },
		Dial: func(_ context.Context, url string, h http.Header) (Serve, error) {
			s.dialled = append(s.dialled, url+" "+h.Get("Authorization"))
			if len(s.outcomes) == 0 {
				s.finished()
				return nil, context.Canceled
			}
			o := s.outcomes[0]
			s.outcomes = s.outcomes[1:]
			return o.Serve, o.err
		},
	}, nil
}

func (s *fakeHub) Changed(ctx context.Context) {
	select {
	case <-s.changed:
	case <-ctx.Done():
	}
}

func (o outcome) Serve(ctx context.Context, _ http.Handler) error {
	ctx, cancel := context.WithTimeout(ctx, o.open)
	defer cancel()
	<-ctx.Done()
	return tunnel.ErrPeerClosed
}

// run runs a link against the fake hub, with the longest waits that jitter allows.
func (s *fakeHub) run(t *testing.T) *Link {
	t.Helper()
	var ctx context.Context
	ctx, s.finished = context.WithCancel(t.Context())
	defer s.finished()
	s.start = time.Now()
	l := New(Options{Target: s.Target, Changed: s.Changed, Log: logr.Discard(),
		Jitter: func(n time.Duration) time.Duration { return n }})
	l.Run(ctx)
	return l
}

func TestLink(t *testing.T) {
	t.Parallel()
	t.Run("it tries servers one after the other, each with its own token", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeHub{servers: []string{"https://a", "https://b/hub"},
				outcomes: []outcome{{err: errors.New("down")}, {err: errors.New("down")}}}
			s.run(t)
			want := []string{"wss://a/v1/connect Bearer token-1", "wss://b/hub/v1/connect Bearer token-2",
				"wss://a/v1/connect Bearer token-3"}
			if !slices.Equal(s.dialled[:3], want) {
				t.Errorf("got %q", s.dialled)
			}
		})
	})
	t.Run("it never gives up, and starts over after a healthy minute", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			down := outcome{err: errors.New("down")}
			s := &fakeHub{servers: []string{"https://a"},
				outcomes: []outcome{down, down, {open: time.Minute}, {open: time.Second}, down}}
			s.run(t)
			want := []time.Duration{0, 500 * time.Millisecond, time.Second, 61500 * time.Millisecond, 63 * time.Second,
				64 * time.Second}
			if !slices.Equal(s.targeted, want) {
				t.Errorf("attempts at %v, want %v", s.targeted, want)
			}
		})
	})
	t.Run("a refusal ends the round and waits for minutes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeHub{servers: []string{"https://a", "https://b"}, outcomes: []outcome{{err: refused(410, 0)}}}
			s.run(t)
			if len(s.dialled) != 3 || s.targeted[1] != 5*time.Minute || !IsRejection(s.last[1]) {
				t.Errorf("dialled %q at %v after %v", s.dialled, s.targeted, s.last)
			}
		})
	})
	t.Run("a new join token ends the wait after a refusal", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeHub{servers: []string{"https://a"}, outcomes: []outcome{{err: refused(410, 0)}},
				changed: make(chan struct{})}
			time.AfterFunc(10*time.Second, func() { close(s.changed) })
			s.run(t)
			if s.targeted[1] != 10*time.Second {
				t.Errorf("attempts at %v", s.targeted)
			}
		})
	})
	t.Run("a server without TLS is never dialled", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeHub{servers: []string{"http://plain", "https://a"}}
			s.run(t)
			if len(s.dialled) != 1 || s.tokens != 1 {
				t.Errorf("dialled %q with %d tokens", s.dialled, s.tokens)
			}
		})
	})
	t.Run("it counts as alive while it waits and while it serves", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			s := &fakeHub{servers: []string{"https://a"}, outcomes: []outcome{{err: refused(410, time.Hour)}, {open: time.Hour}}}
			var ctx context.Context
			ctx, s.finished = context.WithCancel(t.Context())
			l := New(Options{Target: s.Target, Changed: s.Changed, Log: logr.Discard(),
				Jitter: func(time.Duration) time.Duration { return 0 }})
			done := make(chan struct{})
			go func() { defer close(done); l.Run(ctx) }()
			time.Sleep(59 * time.Minute)
			if !l.Alive() || l.Connected() {
				t.Errorf("waiting: alive %t, connected %t", l.Alive(), l.Connected())
			}
			time.Sleep(30 * time.Minute)
			if !l.Alive() || !l.Connected() {
				t.Errorf("serving: alive %t, connected %t", l.Alive(), l.Connected())
			}
			<-done
		})
	})
	t.Run("it counts as stuck when nothing happens for five minutes", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			l := New(Options{Log: logr.Discard()})
			time.Sleep(5*time.Minute - time.Second)
			before := l.Alive()
			time.Sleep(time.Second)
			if !before || l.Alive() {
				t.Errorf("alive before %t, after %t", before, l.Alive())
			}
		})
	})
}
