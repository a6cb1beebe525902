// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"crypto/tls"
	"net"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-dev/drover/internal/pki"
)

func TestSoundsLikeAgent(t *testing.T) {
	for name, tt := range map[string]struct {
		protocols []string
		want      bool
	}{
		"an agent offers HTTP/1.1 alone":         {[]string{"http/1.1"}, true},
		"kubectl offers HTTP/2 first":            {[]string{"h2", "http/1.1"}, false},
		"a probe of the kubelet offers nothing":  {nil, false},
		"something else is nobody that we pace":  {[]string{"acme-tls/1"}, false},
		"HTTP/1.1 and HTTP/2 is no agent either": {[]string{"http/1.1", "h2"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := soundsLikeAgent(tt.protocols); got != tt.want {
				t.Errorf("%q: got %t", tt.protocols, got)
			}
		})
	}
}

// handshake does one over a pipe, with the protocols that a client offers, and returns the server's error.
func handshake(t *testing.T, p *pace, cert *tls.Certificate, protocols ...string) error {
	t.Helper()
	near, far := net.Pipe()
	server := tls.Server(near, &tls.Config{Certificates: []tls.Certificate{*cert}, MinVersion: tls.VersionTLS13, GetConfigForClient: p.hello})
	client := tls.Client(far, &tls.Config{InsecureSkipVerify: true, NextProtos: protocols}) // only the server is looked at
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		err := client.HandshakeContext(ctx)
		if err == nil {
			_, err = client.Read(make([]byte, 1)) // what the server sends after its handshake
		}
		done <- err
	}()
	err := server.HandshakeContext(ctx)
	_ = near.Close()
	<-done
	return err
}

func TestPace(t *testing.T) {
	authority, err := pki.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.IssueServing(authority, []string{"localhost"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	never := &pace{limiter: rate.NewLimiter(rate.Every(time.Hour), 1), patience: time.Second}
	t.Run("an agent within the rate is let in", func(t *testing.T) {
		if err := handshake(t, never, cert, "http/1.1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("one beyond it is sent away", func(t *testing.T) {
		if err := handshake(t, never, cert, "http/1.1"); err == nil {
			t.Error("let in")
		}
	})
	t.Run("a user is let in all the same", func(t *testing.T) {
		if err := handshake(t, never, cert, "h2", "http/1.1"); err != nil {
			t.Error(err)
		}
	})
	t.Run("an agent that need not wait long waits for its turn", func(t *testing.T) {
		soon := &pace{limiter: rate.NewLimiter(rate.Every(10*time.Millisecond), 1), patience: 10 * time.Second}
		for range 3 {
			if err := handshake(t, soon, cert, "http/1.1"); err != nil {
				t.Error(err)
			}
		}
	})
}
