// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package request_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/internal/request"
)

func TestKindOf(t *testing.T) {
	t.Parallel()
	upgrade := http.Header{"Connection": {"keep-alive, Upgrade"}, "Upgrade": {"SPDY/3.1"}}
	for name, tc := range map[string]struct {
		path   string
		header http.Header
		want   request.Kind
	}{
		"a GET is short":     {"/api/v1/pods", nil, request.Short},
		"a watch is a watch": {"/api/v1/pods?watch=true", nil, request.Watch},
		"a shell is a session": {"/api/v1/namespaces/a/pods/b/exec?command=sh", upgrade,
			request.Session},
		"a watch over a WebSocket is a session":        {"/api/v1/pods?watch=true", upgrade, request.Session},
		"a log that is followed is a session":          {"/api/v1/namespaces/a/pods/b/log?follow=true", nil, request.Session},
		"a log that is not followed is short":          {"/api/v1/namespaces/a/pods/b/log?follow=False", nil, request.Short},
		"follow has no meaning for other requests":     {"/api/v1/pods?follow=true", nil, request.Short},
		"Upgrade without Connection is not an upgrade": {"/api/v1/pods", http.Header{"Upgrade": {"h2c"}}, request.Short},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, tc.path, nil)
			r.Header = tc.header
			if got := request.KindOf(r); got != tc.want {
				t.Errorf("kind %d, want %d", got, tc.want)
			}
		})
	}
}

// begin starts a request that ends when release is closed or its context ends. The channel receives which of them ended
// it.
func begin(t *testing.T, g *request.Group, path string, release <-chan struct{}) <-chan string {
	t.Helper()
	ended := make(chan string, 1)
	handler := g.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
			ended <- "by itself"
		case <-r.Context().Done():
			ended <- "cut"
		}
	}))
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil)
	go handler.ServeHTTP(httptest.NewRecorder(), r)
	synctest.Wait()
	return ended
}

// follow starts an endless watch. The channel receives how it ended.
func follow(t *testing.T, g *request.Group) <-chan error {
	t.Helper()
	body, source := io.Pipe()
	ended := make(chan error, 1)
	go g.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
			Body: body}
		request.EndResponse(answer, r)
		_, err := io.Copy(io.Discard, answer.Body)
		_ = answer.Body.Close()
		ended <- err
	})).ServeHTTP(httptest.NewRecorder(),
		httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/a?watch=true", nil))
	_, _ = io.WriteString(source, "{}\n") // fails if the watch has ended
	synctest.Wait()
	return ended
}

func TestGroup(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(t *testing.T, g *request.Group){
		"Wait returns at once for an empty group": func(t *testing.T, g *request.Group) {
			if err := g.Wait(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"requests in progress are counted by kind": func(t *testing.T, g *request.Group) {
			release := make(chan struct{})
			for _, path := range []string{"/a", "/a", "/a?watch=1", "/log?follow=1"} {
				begin(t, g, path, release)
			}
			if got := g.Counts(); got != (request.Counts{Requests: 2, Watches: 1, Sessions: 1}) {
				t.Errorf("got %+v, want two requests, a watch and a session", got)
			}
			close(release)
			if err := g.Wait(t.Context()); err != nil || g.Counts() != (request.Counts{}) {
				t.Errorf("Wait returned %v with %+v, want no error and no requests in progress", err, g.Counts())
			}
		},
		"Wait waits for requests in progress": func(t *testing.T, g *request.Group) {
			release := make(chan struct{})
			ended := begin(t, g, "/a", release)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := g.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Wait returned %v, want it to wait until ctx ended", err)
			}
			time.AfterFunc(time.Minute, func() { close(release) })
			if err := g.Wait(t.Context()); err != nil || <-ended != "by itself" {
				t.Error(err)
			}
		},
		"Cut ends requests that do not end by themselves": func(t *testing.T, g *request.Group) {
			ended := begin(t, g, "/a/exec", nil)
			g.Cut()
			if err := g.Wait(t.Context()); err != nil || <-ended != "cut" {
				t.Error(err)
			}
			if late := begin(t, g, "/late", nil); <-late != "cut" {
				t.Error("a request that began after Cut goes on, want it ended")
			}
		},
		"a watch ends when watches are renewed, and another may begin": func(t *testing.T, g *request.Group) {
			first := follow(t, g)
			g.RenewWatches()
			if err := <-first; err != nil {
				t.Errorf("the watch ended with %v, want no error", err)
			}
			second := follow(t, g)
			if synctest.Wait(); len(second) > 0 {
				t.Error("the second watch ended by itself, want it to go on")
			}
			g.EndWatches()
			if err := <-second; err != nil {
				t.Errorf("the second watch ended with %v, want no error", err)
			}
			if err := <-follow(t, g); err != nil {
				t.Errorf("a watch that began after EndWatches ended with %v, want no error", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { run(t, request.NewGroup()) })
		})
	}
}
