// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// answerLimit is how long a response in a session may take.
const answerLimit = 10 * time.Second

// Session is an exec session of "cat" in a pod, which echoes every line.
type Session struct {
	name  string
	in    *io.PipeWriter
	lines chan string
	ended chan error // how the session ended, once
}

// OpenSession starts a session on new connections, and returns when the first line has been echoed. The session ends
// when ctx ends at the latest. The path refers to a pod in the member. If webSocket is true, WebSocket is used, and
// SPDY otherwise.
func OpenSession(ctx context.Context, way *Way, cluster types.NamespacedName, pod string, webSocket bool) (*Session, error) {
	executor, err := newExecutor(way.Config(cluster), way.hub.URL+memberPath(cluster)+pod+"/exec?command=cat&stdin=true&stdout=true", webSocket)
	if err != nil {
		return nil, fmt.Errorf("open session: %w", err)
	}
	in, say := io.Pipe()
	hear, out := io.Pipe()
	s := &Session{name: fmt.Sprintf("session in %s, WebSocket %t", cluster, webSocket), in: say, lines: make(chan string), ended: make(chan error, 1)}
	go func() {
		err := executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: in, Stdout: out})
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.Close()
		s.ended <- err
	}()
	go func() {
		defer close(s.lines)
		for scanner := bufio.NewScanner(hear); scanner.Scan(); {
			select {
			case s.lines <- scanner.Text():
			case <-ctx.Done():
			}
		}
	}()
	return s, s.Say(ctx, "hello")
}

func newExecutor(config *rest.Config, target string, webSocket bool) (remotecommand.Executor, error) {
	if webSocket {
		return remotecommand.NewWebSocketExecutor(config, http.MethodGet, target)
	}
	parsed, err := url.Parse(target)
	if err != nil {
		return nil, err
	}
	return remotecommand.NewSPDYExecutor(config, http.MethodPost, parsed)
}

// Say sends a line, and waits until it is echoed.
func (s *Session) Say(ctx context.Context, line string) error {
	limit := time.NewTimer(answerLimit)
	defer limit.Stop()
	said := make(chan error, 1)
	go func() {
		_, err := io.WriteString(s.in, line+"\n")
		said <- err
	}()
	select {
	case answer, open := <-s.lines:
		if !open {
			return fmt.Errorf("%s ended: %w", s.name, <-s.ended)
		}
		if answer != line {
			return fmt.Errorf("%s: said %q, heard %q", s.name, line, answer)
		}
		return <-said
	case <-limit.C:
		return fmt.Errorf("%s: %q does not come back in %s", s.name, line, answerLimit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Talk sends a line ten times per second until ctx ends.
func (s *Session) Talk(ctx context.Context) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if err := s.Say(context.WithoutCancel(ctx), strings.Repeat("word ", n%50)+"end"); err != nil {
			return err
		}
	}
}

// End closes the input, and waits until the command has exited on its own.
func (s *Session) End(ctx context.Context) error {
	_ = s.in.Close()
	select {
	case err := <-s.ended:
		if err != nil {
			return fmt.Errorf("%s: end: %w", s.name, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%s: end: %w", s.name, ctx.Err())
	}
}
