// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package signin

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/drover-dev/drover/internal/limit"
)

// keyAsking has the time since when the provider of a session is asked.
const keyAsking = "asking"

const (
	// askedFor is how long a provider may be asked about a session by one request alone: a replica that stops meanwhile must not end the session.
	askedFor = againLimit + 2*time.Second
	// askingPause is how long a request waits before it looks again whether another replica has asked.
	askingPause = 100 * time.Millisecond
)

// errAsking means that another replica asks the provider of a session at the moment.
var errAsking = errors.New("another replica asks the provider of the session")

// refreshGate lets one request at a time refresh a session of a provider. Others wait, and get what the first one got.
func refreshGate() *limit.Gate {
	return limit.NewGate(limit.Bounds{User: 1, Queue: 1024, QueueUser: 32, Wait: againLimit}, limit.Observer{})
}

// claim has this replica alone ask the provider of a session: a provider that gives another refresh token at each use takes one that comes twice for stolen. The
// session was read from the API server just now; if another replica writes it first, the error is a conflict.
func (s *Server) claim(ctx context.Context, session *corev1.Secret) error {
	now := s.now()
	if since := now.Sub(timeOf(session, keyAsking)); since < askedFor && since > -askedFor {
		return errAsking
	}
	session.Data[keyAsking] = []byte(now.UTC().Format(time.RFC3339))
	if err := s.client.Update(ctx, session); err != nil {
		return fmt.Errorf("write session %s: %w", session.Name, err)
	}
	return nil
}

// unclaim lets others ask the provider, which did not answer. If it fails, they wait for askedFor.
func (s *Server) unclaim(ctx context.Context, session *corev1.Secret) {
	delete(session.Data, keyAsking)
	if err := s.client.Update(ctx, session); err != nil {
		s.complain(err, "session kept for longer than its provider was asked")
	}
}
