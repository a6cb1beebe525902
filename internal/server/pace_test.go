// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

func TestSoundsLikeAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		protocols []string
		want      bool
	}{
		"an agent offers only HTTP/1.1":            {[]string{"http/1.1"}, true},
		"kubectl offers HTTP/2 first":              {[]string{"h2", "http/1.1"}, false},
		"a probe of the kubelet offers nothing":    {nil, false},
		"other protocols do not count as an agent": {[]string{"acme-tls/1"}, false},
		"neither do HTTP/1.1 and HTTP/2 together":  {[]string{"http/1.1", "h2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := soundsLikeAgent(tt.protocols); got != tt.want {
				t.Errorf("%q: got %t, want %t", tt.protocols, got, tt.want)
			}
		})
	}
}

// handshake does a handshake over a pipe, in which the client offers the given protocols, and returns the server's
// error.
func handshake(t *testing.T, p *handshakePace, cert *tls.Certificate, protocols ...string) error {
	t.Helper()
	near, far := net.Pipe()
	server := tls.Server(near, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13,
		GetConfigForClient: p.configFor})
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}) // only the server matters here
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience*10*time.Second)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		if client.HandshakeContext(ctx) == nil {
			_, _ = client.Read(make([]byte, 1)) // read the server's messages after its handshake
		}
	}()
	err := server.HandshakeContext(ctx)
	_ = near.Close()
	<-done
	return err
}

func TestPace(t *testing.T) {
	authority, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := trust.IssueServing(authority, []string{"localhost"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	one := func() *addressQueue {
		return &addressQueue{gate: limit.NewGate(limit.Bounds{All: 1}, limit.Observer{}), hold: time.Hour}
	}
	never := &handshakePace{agents: one(), others: one(), refused: func() { refused++ }}
	for _, step := range []struct {
		name      string
		protocols []string
		in        bool
	}{
		{"an agent within the rate is admitted", []string{"http/1.1"}, true},
		{"an agent above the rate is refused", []string{"http/1.1"}, false},
		{"a user is still admitted", []string{"h2", "http/1.1"}, true},
		{"a user above the rate of users is refused", []string{"h2", "http/1.1"}, false},
	} {
		t.Run(step.name, func(t *testing.T) {
			before := refused
			if err := handshake(t, never, cert, step.protocols...); (err == nil) != step.in || refused-before == 1 == step.in {
				t.Errorf("error %v, %d sent away, want it admitted: %t", err, refused-before, step.in)
			}
		})
	}
}

func TestQueueDelaysOtherAddressesByTurns(t *testing.T) {
	const rate, burst = 100, 10
	// flood opens connections endlessly from each of the given number of addresses.
	flood := func(ctx context.Context, l *addressQueue, addresses int) (*sync.WaitGroup, *atomic.Int64) {
		all, in := &sync.WaitGroup{}, &atomic.Int64{}
		for n := range 500 {
			all.Go(func() {
				for ctx.Err() == nil {
					if l.enter(ctx, fmt.Sprint("bad", n%addresses)) == nil {
						in.Add(1)
					} else {
						<-time.After(50 * time.Millisecond)
					}
				}
			})
		}
		synctest.Wait()
		return all, in
	}
	for name, tt := range map[string]struct {
		addresses int
		want      time.Duration
	}{
		"a flood from one address delays another address by one turn":                 {1, 2 * time.Second * burst / rate},
		"a flood from a hundred addresses delays another address by one turn of each": {100, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLane(rate, burst, othersPatience)
				ctx, stop := context.WithCancel(t.Context())
				all, in := flood(ctx, l, tt.addresses)
				begun := time.Now()
				for range 3 {
					if err := l.enter(ctx, "good"); err != nil {
						t.Error(err)
					}
				}
				if took := time.Since(begun); took > 3*tt.want {
					t.Errorf("three connections took %s, want at most %s", took, 3*tt.want)
				}
				if most := int64(time.Since(begun).Seconds()*rate) + 2*burst; in.Load() > most {
					t.Errorf("%d connections were admitted within %s, want at most %d", in.Load(), time.Since(begun), most)
				}
				stop()
				all.Wait()
				time.Sleep(time.Second) // until the last seats are returned
			})
		})
	}
}

func TestFleetThatReturnsAfterAnOutageIsAdmittedWithoutRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fleet, cores = 10_000, 2
		l := newLane(agentsPerCore*cores, paceBurst, agentsPatience)
		var refused atomic.Int64
		var all sync.WaitGroup
		begun := time.Now()
		random := rand.New(rand.NewPCG(1, 2))
		for n := range fleet {
			// When the port becomes available, each agent is at some moment of a random wait. The rest of the wait is therefore
			// the smaller of two random times.
			wait := time.Duration(min(random.Float64(), random.Float64()) * float64(protocol.LongestWait))
			all.Go(func() {
				time.Sleep(wait)
				if l.enter(t.Context(), fmt.Sprint("agent", n)) != nil {
					refused.Add(1)
				}
			})
		}
		all.Wait()
		if took := time.Since(begun); refused.Load() > 0 || took > protocol.LongestWait+agentsPatience {
			t.Errorf("%d of %d were refused, and the last was admitted after %s, want none and %s", refused.Load(), fleet, took,
				protocol.LongestWait+agentsPatience)
		}
		time.Sleep(time.Second) // until the last seats are returned
	})
}
