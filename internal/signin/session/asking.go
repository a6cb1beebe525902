// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// AskLimit limits how long a refresh waits for a session's provider.
	AskLimit = 6 * time.Second
	// askedFor is how long one request has the exclusive right to query a session's provider. If a replica stops during
	// a query, the right expires after this time, and other replicas can query the provider.
	askedFor = AskLimit + 2*time.Second
)

// ErrAsking means that another replica is querying the session's provider.
var ErrAsking = errors.New("another replica is querying the provider of the session")

// ClaimAsking gives this replica the exclusive right to query a session's provider. Without it, two replicas could send
// the same refresh token, and a provider that rotates refresh tokens would treat the token as stolen. The session must
// have just been read from the API server. If another replica writes the session first, ClaimAsking returns a conflict
// error.
func (s *Store) ClaimAsking(ctx context.Context, session Session) error {
	now := s.now()
	if since := now.Sub(TimeOf(session.Secret, KeyAsking)); since < askedFor && since > -askedFor {
		return ErrAsking
	}
	session.Data[KeyAsking] = stamp(now)
	if err := s.client.Update(ctx, session.Secret); err != nil {
		return fmt.Errorf("write session %s: %w", session.Name, err)
	}
	return nil
}

// EndAsking lets other replicas query the provider after the provider has failed to respond. If the session cannot be
// written, the other replicas have to wait for askedFor.
func (s *Store) EndAsking(ctx context.Context, session Session) {
	delete(session.Data, KeyAsking)
	if err := s.client.Update(ctx, session.Secret); err != nil {
		s.log.Complain(err, "session claimed for longer than its provider was queried")
	}
}
