// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package login

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// These variables tell a process of this test's binary which session to renew and where to write the token, as
// kubectl's plugins do.
const sessionsOfProcess, issuerOfProcess, tokenOfProcess = "TEST_SESSIONS", "TEST_ISSUER", "TEST_TOKEN_FILE"

// TestOneOfManyProcesses is one of the processes of TestManyProcessesRefreshOnce.
func TestOneOfManyProcesses(t *testing.T) {
	s := Store{Dir: os.Getenv(sessionsOfProcess), Now: time.Now}
	if s.Dir == "" {
		t.Skip("TestManyProcessesRefreshOnce runs it")
	}
	session, err := s.Fresh(t.Context(), os.Getenv(issuerOfProcess), func(ctx context.Context, before *Session) (*Session, error) {
		at, err := Discover(ctx, before.Issuer, before.CA)
		if err != nil {
			return nil, err
		}
		return at.Refresh(ctx, before)
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(os.Getenv(tokenOfProcess), []byte(session.Token), 0o600); err != nil {
		t.Fatal(err)
	}
}

func newStore(t *testing.T) Store {
	t.Helper()
	return Store{Dir: filepath.Join(t.TempDir(), "cache"), Now: time.Now}
}

func (s Store) put(t *testing.T, session *Session) {
	t.Helper()
	if err := s.Change(t.Context(), session.Issuer, func(*Session) (*Session, error) { return session, nil }); err != nil {
		t.Fatal(err)
	}
}

func TestSessionsAreListedWhateverThePathOfTheirFolderIs(t *testing.T) {
	for _, name := range []string{"[home", "a[0-9]b", "who?", "st*r", `back\slash`, "{a,b}", " ", "ümlaut"} {
		s := Store{Dir: filepath.Join(t.TempDir(), name, "cache"), Now: time.Now}
		if sessions, err := s.List(); err != nil || len(sessions) != 0 {
			t.Errorf("below %q: %v, %v before a user signed in, want no session and no error", name, sessions, err)
		}
		s.put(t, &Session{Issuer: "https://hub.example.com", Token: "t"})
		if sessions, err := s.List(); err != nil || len(sessions) != 1 {
			t.Errorf("below %q: %d sessions, %v, want the one that was stored", name, len(sessions), err)
		}
	}
}

// TestManyProcessesRefreshOnce runs several processes, because kubectl calls its plugin several times at once. A
// refresh token that is used twice ends the session.
func TestManyProcessesRefreshOnce(t *testing.T) {
	h, s := newHub(t), newStore(t)
	session, _, err := h.signIn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	session.Expires = time.Now()
	s.put(t, session)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const processes = 16
	dir := t.TempDir()
	tokens := make([]string, processes)
	var all sync.WaitGroup
	for i := range processes {
		all.Go(func() {
			file := filepath.Join(dir, strconv.Itoa(i))
			command := exec.CommandContext(t.Context(), self, "-test.run=^TestOneOfManyProcesses$")
			command.Env = append(os.Environ(), sessionsOfProcess+"="+s.Dir, issuerOfProcess+"="+h.URL, tokenOfProcess+"="+file)
			if out, err := command.CombinedOutput(); err != nil {
				t.Errorf("process %d: %v: %s", i, err, out)
			}
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Error(err)
			}
			tokens[i] = string(raw)
		})
	}
	all.Wait()
	for _, token := range tokens {
		if token != tokens[0] || token == session.Token {
			t.Errorf("processes got different tokens, or the expired one")
			break
		}
	}
	if h.refreshes != 1 {
		t.Errorf("the session was refreshed %d times, expected once", h.refreshes)
	}
}

func TestAWaitForAnotherCommandIsAnnounced(t *testing.T) {
	s := newStore(t)
	locked, announced := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		err := s.Change(t.Context(), "https://hub", func(*Session) (*Session, error) {
			close(locked)
			<-announced
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	})
	<-locked
	s.Waiting = func(issuer string) {
		if issuer != "https://hub" {
			t.Errorf("it waits for %s, want https://hub", issuer)
		}
		close(announced)
	}
	err := s.Change(t.Context(), "https://hub", func(*Session) (*Session, error) { return nil, nil })
	if err != nil {
		t.Error(err)
	}
	first.Wait()
}

func TestASessionIsForItsOwnerOnly(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	s := newStore(t)
	if err := os.Mkdir(s.Dir, 0o755); err != nil { // written by an earlier version
		t.Fatal(err)
	}
	s.put(t, &Session{Issuer: "https://hub", Token: "secret"})
	err := filepath.WalkDir(s.Dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestSessionsThatOtherUsersCanAccessAreNotRead(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	const hub = "https://hub"
	refused := func(err error) bool {
		return err != nil && !errors.Is(err, ErrSignedOut) && strings.Contains(err.Error(), "of this computer")
	}
	change := func(s Store) error {
		return s.Change(t.Context(), hub, func(before *Session) (*Session, error) { return before, nil })
	}
	for mode, repaired := range map[fs.FileMode]bool{0o755: true, 0o701: true, 0o740: true, 0o770: false, 0o702: false} {
		s := newStore(t)
		s.put(t, &Session{Issuer: hub, Token: "secret"})
		if err := os.Chmod(s.Dir, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Load(hub); !refused(err) {
			t.Errorf("mode %v: a session was read (%v), want it refused", mode, err)
		}
		if all, err := s.List(); !refused(err) {
			t.Errorf("mode %v: %d sessions were listed (%v), want them refused", mode, len(all), err)
		}
		if err := change(s); refused(err) == repaired {
			t.Errorf("mode %v: a change of the session has the error %v, want it refused: %v", mode, err, !repaired)
		}
		if _, err := s.Load(hub); refused(err) == repaired {
			t.Errorf("mode %v: after the change, the error is %v, want it refused: %v", mode, err, !repaired)
		}
	}
	s := newStore(t)
	s.put(t, &Session{Issuer: hub, Token: "secret"})
	if os.Geteuid() != 0 {
		s.Dir = "/" // belongs to root
	} else if err := os.Chown(s.Dir, 1, -1); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{"Load": errorOf(s.Load(hub)), "List": errorOf(s.List()), "Change": change(s)} {
		if !refused(err) || !strings.Contains(err.Error(), "belongs to another user") {
			t.Errorf("%s: a directory of another user has the error %v, want it refused", what, err)
		}
	}
}

func errorOf[T any](_ T, err error) error { return err }

func TestStoreKeepsSessionsUntilTheyAreRemoved(t *testing.T) {
	s := newStore(t)
	if _, err := s.Load("https://hub"); !errors.Is(err, ErrSignedOut) {
		t.Errorf("without a session the error is %v", err)
	}
	s.put(t, &Session{Issuer: "https://hub", Token: "a", Expires: time.Now().Add(time.Hour)})
	s.put(t, &Session{Issuer: "https://other", Token: "b", Expires: time.Now().Add(margin / 2)})
	if all, err := s.List(); err != nil || len(all) != 2 {
		t.Errorf("there are %d sessions (%v), expected 2", len(all), err)
	}
	never := func(context.Context, *Session) (*Session, error) { return nil, errors.New("asked") }
	if got, err := s.Fresh(t.Context(), "https://hub", never); err != nil || got.Token != "a" {
		t.Errorf("a token that is valid is %v (%v)", got, err)
	}
	if _, err := s.Fresh(t.Context(), "https://other", never); err == nil || err.Error() != "asked" {
		t.Errorf("a token that is about to expire is given out: %v", err)
	}
	if got, err := s.Load("https://other"); err != nil || got.Token != "b" {
		t.Errorf("a renewal that failed left %v (%v)", got, err)
	}
	if err := os.WriteFile(s.file("https://hub"), []byte(`{"issuer":"https://hub","tok`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Load("https://hub"); !errors.Is(err, ErrSignedOut) {
		t.Errorf("a damaged file is %v, expected to be as good as none", err)
	}
	if err := s.Change(t.Context(), "https://other", func(*Session) (*Session, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); err != nil || len(all) != 0 {
		t.Errorf("%d sessions are left (%v)", len(all), err)
	}
}

func TestARefreshIsRefusedOrOfTheSameUser(t *testing.T) {
	h := newHub(t)
	session, _, err := h.signIn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at, err := Discover(t.Context(), h.URL, h.ca())
	if err != nil {
		t.Fatal(err)
	}
	h.busy = 1
	if session, err = at.Refresh(t.Context(), session); err != nil {
		t.Errorf("a hub that is busy for a second is %v", err)
	}
	h.claims = map[string]any{"sub": "local:mallory"}
	if _, err := at.Refresh(t.Context(), session); err == nil || !strings.Contains(err.Error(), `returned a token of "local:mallory"`) {
		t.Errorf("a token of another user is %v", err)
	}
	if _, err := at.Refresh(t.Context(), session); !errors.Is(err, ErrRefused) {
		t.Errorf("a refresh token that was used is %v", err)
	}
	h.Close()
	if _, err := at.Refresh(t.Context(), session); err == nil || errors.Is(err, ErrRefused) {
		t.Errorf("a hub that is away is %v: the session goes on", err)
	}
}
