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
	// AskLimit bounds how long a refresh waits for the provider of a session.
	AskLimit = 6 * time.Second
	// askedFor is how long one request alone may ask the provider of a session. It ends although the request has not
	// ended it: a replica that stops meanwhile must not end the session.
	askedFor = AskLimit + 2*time.Second
)

// ErrAsking means that another replica asks the provider of a session at the moment.
var ErrAsking = errors.New("another replica asks the provider of the session")

// ClaimAsking lets this replica alone ask the provider of a session: a provider that rotates its own refresh tokens
// takes one that comes twice for stolen. The session must have been read from the API server just now. If another
// replica writes it first, the error is a conflict.
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

// EndAsking lets other replicas ask the provider, which did not answer. If the write fails, they wait for askedFor.
func (s *Store) EndAsking(ctx context.Context, session Session) {
	delete(session.Data, KeyAsking)
	if err := s.client.Update(ctx, session.Secret); err != nil {
		s.log.Complain(err, "session kept for longer than its provider was asked")
	}
}
