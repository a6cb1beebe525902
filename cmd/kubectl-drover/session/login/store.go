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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

const (
	// margin is how long before its expiry a token is no longer used. It allows for the duration of requests and for
	// clock skew.
	margin = 30 * time.Second
	// lockPause is how often to check whether another process has released a lock.
	lockPause = 50 * time.Millisecond
	// lockNotice is how long a command waits for a lock before it informs the user. Refreshing a token normally takes less
	// time.
	lockNotice = 2 * time.Second
	// maxSession is the maximum size of a session file, in bytes.
	maxSession = 1 << 20
)

// ErrSignedOut is returned when the user has no session for a hub.
var ErrSignedOut = errors.New("you are not signed in")

// Session holds the tokens of a user who has signed in to a hub.
type Session struct {
	Issuer string `json:"issuer"`
	// CA is the hub's PEM-encoded CA. If it is empty, the computer's own CAs are trusted.
	CA []byte `json:"ca,omitempty"`
	// Token identifies the user. It is valid until Expires according to this computer's clock.
	Token   string    `json:"token"`
	Expires time.Time `json:"expires"`
	// Refresh is the refresh token, or empty if the hub issued none.
	Refresh string `json:"refresh,omitempty"`
	// Direct holds the tokens for Clusters' own addresses. The keys have the form <namespace>/<name>.
	Direct map[string]DirectToken `json:"direct,omitempty"`
	// Notice is a message from the hub about the login. It is shown once and is not stored.
	Notice string `json:"-"`
	// UserAgent is the User-Agent header of the plugin. It is not stored.
	UserAgent string `json:"-"`
	// Client sends authenticated requests for a user who has not signed in. User is the user entry of the kubeconfig
	// that Client uses. If Client is set, Issuer is only the address of the hub. Client and User are not stored.
	Client *http.Client `json:"-"`
	User   string       `json:"-"`
}

// DirectToken is a token for a Cluster's own address. It is needed while the hub is down.
type DirectToken struct {
	Token string    `json:"token"`
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`
	// Tried is the time of the last failed request for a new token.
	Tried time.Time `json:"tried,omitzero"`
}

// Last returns the time after which the token should no longer be used.
func (t DirectToken) Last() time.Time { return t.Until.Add(-margin) }

// Usable reports whether the token can still be used.
func (t DirectToken) Usable(now time.Time) bool { return t.Token != "" && now.Before(t.Last()) }

// Half returns the time at which half of the token's lifetime has passed.
func (t DirectToken) Half() time.Time { return t.From.Add(t.Until.Sub(t.From) / 2) }

// maxDirect is the maximum number of tokens for Clusters' own addresses in a session. Each of these tokens is as long
// as the token of the session itself.
const maxDirect = 64

// KeepDirect stores a token for a Cluster's own address in the session for an issuer.
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

// Claims holds the claims that identify a token's user and session.
type Claims struct {
	Subject string   `json:"sub"`
	Groups  []string `json:"groups"`
	// Session is the ID of the session on the hub.
	Session string `json:"sid"`
}

// Claims returns the claims in the token. The token was verified when it was received.
func (s *Session) Claims() Claims {
	var c Claims
	if parts := strings.Split(s.Token, "."); len(parts) == 3 {
		payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
		_ = json.Unmarshal(payload, &c)
	}
	return c
}

// Until returns the time after which the token should no longer be used.
func (s *Session) Until() time.Time { return s.Expires.Add(-margin) }

func (s *Session) usable(now time.Time) bool { return now.Before(s.Until()) }

// Store stores sessions in a directory, in one file per issuer. Several processes may use it at the same time.
type Store struct {
	Dir string
	Now func() time.Time
	// Waiting is called if a change has to wait for another process for longer than lockNotice. It may be nil.
	Waiting func(issuer string)
}

func (s Store) file(issuer string) string {
	sum := sha256.Sum256([]byte(issuer))
	return filepath.Join(s.Dir, hex.EncodeToString(sum[:16])+".json")
}

// Load returns the session for an issuer, or an error that matches ErrSignedOut.
func (s Store) Load(issuer string) (*Session, error) {
	signedOut := fmt.Errorf("%w at %s", ErrSignedOut, issuer)
	dir, err := s.open(closed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, signedOut
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	session, err := read(dir, filepath.Base(s.file(issuer)))
	if errors.Is(err, fs.ErrNotExist) || err == nil && session.Issuer != issuer {
		return nil, signedOut
	}
	return session, err
}

// Permissions on the directory with the sessions that other users must not have.
const (
	closed    fs.FileMode = 0o077
	unwritten fs.FileMode = 0o022
)

// open opens the directory with the sessions. It returns an error if the directory belongs to another user of this
// computer, or if other users have any of the forbidden permissions. Such users could read tokens, or add a session
// with their own tokens and CA.
func (s Store) open(forbidden fs.FileMode) (*os.Root, error) {
	dir, err := os.OpenRoot(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory of the sessions: %w", err)
	}
	info, err := dir.Stat(".")
	if err == nil {
		err = onlyOwner(info, s.Dir, forbidden)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return dir, nil
}

// read reads a session from a file. If the file is damaged, it returns an empty session, so that the user has to sign
// in again.
func read(dir *os.Root, file string) (*Session, error) {
	info, err := dir.Stat(file)
	if err != nil {
		return nil, err
	}
	session := &Session{}
	if info.Size() > maxSession {
		return session, nil
	}
	raw, err := dir.ReadFile(file)
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
	dir, err := s.open(closed)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	defer func() { _ = dir.Close() }()
	files, err := fs.ReadDir(dir.FS(), ".") // filepath.Glob would interpret the directory's path as a pattern
	if err != nil {
		return nil, fmt.Errorf("list sessions: %w", err)
	}
	var sessions []*Session
	for _, file := range files {
		if filepath.Ext(file.Name()) != ".json" {
			continue
		}
		switch session, err := read(dir, file.Name()); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, err
		case session.Issuer != "":
			sessions = append(sessions, session)
		}
	}
	return sessions, nil
}

// Fresh returns the session for an issuer, with a token that is not about to expire. If the session has to be renewed,
// one process calls renew and other processes wait for the result. renew receives the old session, or nil if there is
// none.
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

// Change replaces the session for an issuer with the result of change. change receives nil if there is no session. No
// other process can change the session at the same time.
func (s Store) Change(ctx context.Context, issuer string, change func(*Session) (*Session, error)) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return fmt.Errorf("make the directory for sessions: %w", err)
	}
	if err := s.close(); err != nil {
		return fmt.Errorf("protect the sessions: %w", err)
	}
	lock := flock.New(s.file(issuer)+".lock", flock.SetPermissions(0o600))
	notice := time.AfterFunc(lockNotice, func() {
		if s.Waiting != nil {
			s.Waiting(issuer)
		}
	})
	_, err := lock.TryLockContext(ctx, lockPause)
	notice.Stop()
	if err != nil {
		return fmt.Errorf("wait for another command that signs in to %s: %w", issuer, err)
	}
	defer func() { _ = lock.Unlock() }() // the operating system also releases the lock when the process exits
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

// close makes an existing directory accessible only to its owner. It returns an error if other users had write access
// to the directory, because they might have added sessions.
func (s Store) close() error {
	dir, err := s.open(unwritten)
	if err != nil {
		return err
	}
	return errors.Join(dir.Chmod(".", 0o700), dir.Close())
}

// write atomically replaces the file that stores a session. Only the file's owner may read the file.
func (s Store) write(session *Session) error {
	raw, err := json.Marshal(session)
	if err != nil {
		return err
	}
	temporary, err := os.CreateTemp(s.Dir, "session-*.tmp") // created with mode 0600
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
