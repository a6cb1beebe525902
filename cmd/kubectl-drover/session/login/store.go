// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

const (
	// margin is the time before the end of a token in which it is no longer used: requests take time, and clocks differ.
	margin = 30 * time.Second
	// lockPause is how often another process is asked whether it is done.
	lockPause = 50 * time.Millisecond
	// maxSession bounds a session's file, in bytes.
	maxSession = 1 << 20
)

// ErrSignedOut means that the user has no session at a hub.
var ErrSignedOut = errors.New("you are not signed in")

// Session holds the tokens of a user who has signed in at a hub.
type Session struct {
	Issuer string `json:"issuer"`
	// CA of the hub in PEM, or empty to trust the computer's own CAs.
	CA []byte `json:"ca,omitempty"`
	// Token says who the user is, until Expires by the clock of this computer.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// Refresh gets another token. Empty if the hub gave none.
	Refresh string `json:"refresh,omitempty"`
	// Direct has tokens for Clusters' own addresses, by <namespace>/<name>.
	Direct map[string]DirectToken `json:"direct,omitempty"`
	// Notice is the hub's message about the login. It is shown once, and not kept.
	Notice string `json:"-"`
	// UserAgent is how the plugin names itself to the hub. It is not kept.
	UserAgent string `json:"-"`
}

// DirectToken is a token for a Cluster's own address. It must last while there is no hub.
type DirectToken struct {
	Token string    `json:"token"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Tried is when the hub was asked for another one in vain.
	Tried time.Time `json:"tried,omitzero"`
}

// Last is when the token should not be used any more.
func (t DirectToken) Last() time.Time { return t.Until.Add(-margin) }

// Usable reports whether the token is valid for a while.
func (t DirectToken) Usable(now time.Time) bool { return t.Token != "" && now.Before(t.Last()) }

// Half is when half of the token's life is over.
func (t DirectToken) Half() time.Time { return t.From.Add(t.Until.Sub(t.From) / 2) }

// maxDirect bounds the tokens that a session keeps: each is as long as the one of the session.
const maxDirect = 64

// KeepDirect keeps a token for a Cluster's own address in the session at an issuer.
func (s Store) KeepDirect(ctx context.Context, issuer, cluster string, token DirectToken) error {
	return s.Change(ctx, issuer, func(before *Session) (*Session, error) {
		if before == nil {
			return nil, fmt.Errorf("%w at %s", ErrSignedOut, issuer)
		}
		after := *before
		after.Direct = map[string]DirectToken{cluster: token}
		for name, other := range before.Direct {
			if name != cluster && other.Usable(s.Now()) && len(after.Direct) < maxDirect {
				after.Direct[name] = other
			}
		}
		return &after, nil
	})
}

// Claims of a token say who its user is.
type Claims struct {
	Subject string   `json:"sub"`
	Groups  []string `json:"groups"`
}

// Claims returns the claims of the token, which was verified when it came.
func (s *Session) Claims() Claims {
	var c Claims
	if parts := strings.Split(s.Token, "."); len(parts) == 3 {
		payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(payload, &c)
	}
	return c
}

// Until is when the token should not be used any more.
func (s *Session) Until() time.Time { return s.Expires.Add(-margin) }

func (s *Session) usable(now time.Time) bool { return now.Before(s.Until()) }

// Store keeps sessions in a directory, a file for each issuer. Several processes may use it at once.
type Store struct {
	Dir string
	Now func() time.Time
}

func (s Store) file(issuer string) string {
	sum := sha256.Sum256([]byte(issuer))
	return filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json")
}

// Load returns the session at an issuer, or an error that matches ErrSignedOut.
func (s Store) Load(issuer string) (*Session, error) {
	session, err := read(s.file(issuer))
	if errors.Is(err, fs.ErrNotExist) || err == nil && session.Issuer != issuer {
		return nil, fmt.Errorf("%w at %s", ErrSignedOut, issuer)
	}
	return session, err
}

// read returns the session of a file. A damaged file gives an empty session, so that the user signs in again.
func read(file string) (*Session, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	session := &Session{}
	if info.Size() > maxSession {
		return session, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	if json.Unmarshal(raw, session) != nil {
		return &Session{}, nil
	}
	return session, nil
}

// List returns all sessions.
func (s Store) List() ([]*Session, error) {
	files, err := os.ReadDir(s.Dir) // filepath.Glob would read characters of the folder's own path as a pattern
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	var sessions []*Session
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".json" {
			continue
		}
		switch session, err := read(filepath.Join(s.Dir, file.Name())); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case session.Issuer != "":
			sessions = append(sessions, session)
		}
	}
	return sessions, nil
}

// Fresh returns the session at an issuer with a token that is valid for a while. If there is none, one process calls
// renew with the old session, or nil, and the others wait for it.
func (s Store) Fresh(ctx context.Context, issuer string, renew func(context.Context, *Session) (*Session, error)) (*Session, error) {
	if session, err := s.Load(issuer); err == nil && session.usable(s.Now()) {
		return session, nil
	}
	var fresh *Session
	err := s.Change(ctx, issuer, func(before *Session) (*Session, error) {
		fresh = before
		if before != nil && before.usable(s.Now()) {
			return before, nil
		}
		var err error
		fresh, err = renew(ctx, before)
		return fresh, err
	})
	if err != nil {
		return nil, err
	}
	return fresh, nil
}

// Change replaces the session at an issuer by the result of change. No other process changes it meanwhile. A session
// that does not exist is nil.
func (s Store) Change(ctx context.Context, issuer string, change func(*Session) (*Session, error)) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for sessions: %w", err)
	}
	if err := s.close(); err != nil {
		return fmt.Errorf("keep sessions from other users of this computer: %w", err)
	}
	lock := flock.New(s.file(issuer)+".lock", flock.SetPermissions(0o600))
	if _, err := lock.TryLockContext(ctx, lockPause); err != nil {
		return fmt.Errorf("wait for another command that signs in at %s: %w", issuer, err)
	}
	defer func() { _ = lock.Unlock() }() // the end of the process does it too
	before, err := s.Load(issuer)
	if err != nil && !errors.Is(err, ErrSignedOut) {
		return err
	}
	after, err := change(before)
	switch {
	case err != nil:
		return err
	case after == before:
		return nil
	case after == nil:
		return os.Remove(s.file(issuer))
	}
	return s.write(after)
}

// close makes an existing directory accessible to its owner only.
func (s Store) close() error {
	dir, err := os.OpenRoot(s.Dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(".", 0o700), dir.Close())
}

// write replaces the file of a session as a whole. Only its owner may read it.
func (s Store) write(session *Session) error {
	raw, err := json.Marshal(session)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(s.Dir, "session-*.tmp") // of mode 0600
	if err != nil {
		return fmt.Errorf("write the session: %w", err)
	}
	_, err = temporary.Write(raw)
	if err = errors.Join(err, temporary.Close()); err == nil {
		err = os.Rename(temporary.Name(), s.file(session.Issuer))
	}
	if err != nil {
		_ = os.Remove(temporary.Name())
		return fmt.Errorf("write the session: %w", err)
	}
	return nil
}
