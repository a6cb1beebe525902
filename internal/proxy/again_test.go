// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
)

// standing describes the hub's and the member's decisions about alice, who has an open request.
type standing struct {
	user   atomic.Pointer[authenticationv1.UserInfo]
	token  atomic.Pointer[error] // why the token is not accepted
	reach  atomic.Pointer[error] // why she may not reach the member
	inside atomic.Bool           // whether the member allows her request
	asBob  atomic.Bool           // whether the member allows her to impersonate
	looks  atomic.Int32
	denied atomic.Int32 // how often she was refused access to the member
}

func newStanding(t *testing.T) (*standing, *hubSide) {
	s := &standing{}
	s.user.Store(&aliceInfo)
	s.inside.Store(true)
	s.asBob.Store(true)
	h := newHubSide(t, func(o *Options) {
		o.Limits.Look = 2 * time.Millisecond
		o.Authenticate = func(*http.Request) (identity.Identity, error) {
			s.looks.Add(1)
			if err := s.token.Load(); err != nil {
				return identity.Identity{}, *err
			}
			return identity.New(*s.user.Load())
		}
		o.Authorize = func(context.Context, identity.Identity, types.NamespacedName) error {
			if err := s.reach.Load(); err != nil {
				s.denied.Add(1)
				return *err
			}
			return nil
		}
	})
	member := &reviews{allow: func(a authorizationv1.ResourceAttributes) bool {
		return (a.Verb != "watch" || s.inside.Load()) && (a.Verb != "impersonate" || s.asBob.Load())
	}}
	h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == pathAccessReview:
			member.ServeHTTP(w, r)
		case r.Header.Get("Upgrade") != "":
			echo(t, "SPDY/3.1")(w, r)
		default:
			_, _ = io.WriteString(w, "begun")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}
	})
	return s, h
}

// open starts a long request, and returns a reader of its response.
func (h *hubSide) open(t *testing.T, path, bearer string) io.Reader {
	t.Helper()
	conn, err := net.Dial("tcp", h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	line := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: hub.example\r\nAuthorization: Bearer %s\r\n\r\n", path, bearer)
	if strings.Contains(path, "/exec") {
		line = upgradeRequest(path, "SPDY/3.1")
	}
	_, _ = io.WriteString(conn, line)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	if err != nil || response.StatusCode >= http.StatusBadRequest {
		t.Fatalf("got %+v, %v, want the start of a session or stream", response, err)
	}
	heard := io.Reader(response.Body)
	if response.StatusCode == http.StatusSwitchingProtocols {
		heard = reader
	}
	if _, err := io.ReadFull(heard, make([]byte, len("begun"))); err != nil {
		t.Fatal(err)
	}
	return heard
}

// CVE-2023-40025, CVE-2024-41666: a shell continues after the end of its session or of its user's right.
func TestLongRequestsAreAuthorizedRepeatedly(t *testing.T) {
	const watch, exec = podsPath + "?watch=true", "/k8s/clusters/team-a/prod/api/v1/namespaces/x/pods/y/exec?command=sh"
	no := func(err error) *error { return &err }
	unknown, forbidden := no(refusal.Unauthorized("unknown")), no(refusal.Forbidden("no right"))
	revoked := no(refusal.Unauthorized("the session was ended").Because(identity.ErrEnded))
	expired := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1000000000}`)) + ".sig"
	for name, test := range map[string]struct {
		path, bearer string
		change       func(*standing)
		goesOn       bool
	}{
		"CVE-2023-22650: a watch ends when its token is no longer accepted": {
			watch, "t", func(s *standing) { s.token.Store(unknown) }, false,
		},
		"CVE-2023-22650: a shell ends when its token is no longer accepted": {
			exec, "t", func(s *standing) { s.token.Store(unknown) }, false,
		},
		"a request to the hub itself ends when its token is no longer accepted": {
			"/k8s/local/api/v1/pods?watch=true", "t", func(s *standing) { s.token.Store(unknown) }, false,
		},
		"a watch ends when its user may no longer reach the member": {
			watch, "t", func(s *standing) { s.reach.Store(forbidden) }, false,
		},
		"a shell ends when its user may no longer reach the member": {
			exec, "t", func(s *standing) { s.reach.Store(forbidden) }, false,
		},
		"a watch ends when the member takes away the right to it": {
			watch, "t", func(s *standing) { s.inside.Store(false) }, false,
		},
		"a watch as another user ends when the member takes away the right to impersonate": {
			watch, "t\r\nImpersonate-User: bob", func(s *standing) { s.asBob.Store(false) }, false,
		},
		"a watch as a ServiceAccount ends when the member takes away the right to impersonate it": {
			watch, "t\r\nImpersonate-User: system:serviceaccount:web:deployer",
			func(s *standing) { s.asBob.Store(false) }, false,
		},
		"CVE-2023-22648: a watch ends when its user has lost a group": {watch, "t", func(s *standing) {
			s.user.Store(&authenticationv1.UserInfo{Username: "alice", UID: "u-1", Groups: []string{"system:authenticated"}})
		}, false},
		"a watch continues when its user has another group in addition": {watch, "t", func(s *standing) {
			s.user.Store(&authenticationv1.UserInfo{Username: "alice", UID: "u-1",
				Groups: append([]string{"more"}, aliceInfo.Groups...)})
		}, true},
		"a watch continues while the hub's API server does not answer": {watch, "t", func(s *standing) {
			s.token.Store(no(refusal.Unavailable("down")))
			s.reach.Store(no(errors.New("down")))
		}, true},
		"a shell continues when its token has expired": {
			watch, expired, func(s *standing) { s.token.Store(unknown) }, true,
		},
		"a shell ends when the session of its token is revoked": {
			exec, "t", func(s *standing) { s.token.Store(revoked) }, false,
		},
		"a watch ends when the session of its token is revoked after the token has expired": {
			watch, expired, func(s *standing) { s.token.Store(revoked) }, false,
		},
		"a watch whose token has expired ends when its user may no longer reach the member": {
			watch, expired, func(s *standing) { s.token.Store(unknown); s.reach.Store(forbidden) }, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, h := newStanding(t)
			h.hub.answerWith(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.WriteString(w, "begun")
				_ = http.NewResponseController(w).Flush()
				<-r.Context().Done()
			})
			heard := h.open(t, test.path, test.bearer)
			ended := make(chan struct{})
			go func() {
				_, _ = io.Copy(io.Discard, heard)
				close(ended)
			}()
			s.wantLooks(t, ended, 2*memberEvery)
			test.change(s)
			if test.goesOn {
				s.wantLooks(t, ended, 2*memberEvery)
				return
			}
			select {
			case <-ended:
			case <-time.After(time.Minute): // a right to impersonate is cached for 5 s
				t.Error("the request continues, want it ended")
			}
		})
	}
	for name, test := range map[string]struct {
		err    error
		goesOn bool
	}{
		"a watch ends when the hub no longer serves the member":             {refusal.Unavailable("two clusters"), false},
		"a watch ends by itself with the last tunnel, and not earlier":      {&NotConnectedError{}, true},
		"a watch continues while it is not known whether the member exists": {errors.New("down"), true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, h := newStanding(t)
			heard := h.open(t, watch, "t")
			ended := make(chan struct{})
			go func() {
				_, _ = io.Copy(io.Discard, heard)
				close(ended)
			}()
			s.wantLooks(t, ended, 2*memberEvery)
			h.members.fail(test.err)
			if test.goesOn {
				s.wantLooks(t, ended, 2*memberEvery)
				return
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the request continues, want it ended")
			}
		})
	}
	t.Run("a watch in the middle of an event ends after that event", func(t *testing.T) {
		s, h := newStanding(t)
		h.agent.answerWith(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, "begun\n{")
			_ = http.NewResponseController(w).Flush()
			for s.denied.Load() == 0 && r.Context().Err() == nil {
				runtime.Gosched()
			}
			_, _ = io.WriteString(w, "}\n")
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		})
		heard := h.open(t, watch, "t")
		s.reach.Store(forbidden)
		rest, err := io.ReadAll(heard)
		if err != nil || string(rest) != "\n{}\n" {
			t.Errorf("got %q, %v after the first event, want the whole event and a clean end", rest, err)
		}
	})
	t.Run("a request without a response yet gets the reason", func(t *testing.T) {
		s, h := newStanding(t)
		h.agent.answerWith(func(_ http.ResponseWriter, r *http.Request) {
			s.reach.Store(forbidden)
			<-r.Context().Done()
		})
		soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		response, body := h.do(t, h.request(t, http.MethodGet, watch, nil, nil).WithContext(soon))
		wantStatus(t, response, body, http.StatusForbidden, metav1.StatusReasonForbidden, "no right")
	})
}

func TestClock(t *testing.T) {
	t.Run("a clock that has ended cannot be resumed", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var c clock
			struck := 0
			c.start(time.Second, func() { struck++; c.resume() })
			time.Sleep(3500 * time.Millisecond)
			c.end()
			c.resume()
			time.Sleep(time.Minute)
			if struck != 3 {
				t.Errorf("the clock struck %d times in 3.5 s, want 3", struck)
			}
		})
	})
}

// wantLooks waits until a request has been checked the given number of additional times, and verifies that it has not
// ended.
func (s *standing) wantLooks(t *testing.T, ended <-chan struct{}, more int32) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for want := s.looks.Load() + more; s.looks.Load() < want; {
		select {
		case <-ended:
			t.Fatal("the request ended, want it to continue")
		case <-deadline:
			t.Fatal("the request is not checked")
		case <-time.After(time.Millisecond):
		}
	}
}
