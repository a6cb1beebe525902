// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package link keeps a tunnel to the hub open, and moves to a new tunnel without interruption when the hub asks it to.
package link

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/internal/untrusted"
)

// aliveFor is how long the link may make no progress after its planned wait before the process is considered stuck.
const aliveFor = 5 * time.Minute

// Serve serves the hub's requests through an open tunnel until the tunnel ends or ctx is done. The error says why it
// stopped.
type Serve func(ctx context.Context, h http.Handler) error

// Target specifies where to connect and which identity to use.
type Target struct {
	// Servers are the hub's base URLs, in the order in which they are tried.
	Servers []string
	// Dial opens a tunnel to a wss URL. If the hub refuses the tunnel, the error is a *tunnel.HandshakeError.
	Dial func(ctx context.Context, url string, header http.Header) (Serve, error)
	// Token returns a new connect token for one attempt.
	Token func() (string, error)
}

// Options configure a Link.
type Options struct {
	// Target returns the target for the next attempt. It joins first if necessary. last is the error from the previous
	// attempt. It is nil for the first attempt and after a tunnel was open. If Target returns a Rejection, the link
	// waits for a long time. Target and Changed are called from one goroutine at a time.
	Target func(ctx context.Context, last error) (*Target, error)
	// Changed returns when there is a join token that has not been tried yet, so that the next attempt can start
	// immediately. It also returns when ctx is done.
	Changed func(ctx context.Context)
	// Told is called with the reason whenever an attempt to open a tunnel has failed, and with "" whenever a tunnel is
	// open. It must not block. It may be nil.
	Told func(why string)
	// Handler serves the hub's requests.
	Handler http.Handler
	Log     logr.Logger
	// Drain is how long the hub may still use tunnels once the context of Run is done.
	Drain time.Duration
	// Patient makes the link wait as long after its first failures as it would after many failures. A node agent
	// therefore does not connect before replicas that have been trying for a long time.
	Patient bool
	// Jitter returns a random duration in [0, n). It defaults to a uniform distribution.
	Jitter func(n time.Duration) time.Duration
}

// Link keeps one tunnel open.
type Link struct {
	options Options
	backoff backoff

	tunnels sync.WaitGroup // counts the open tunnels
	state   state
}

// state holds the state that probes read.
type state struct {
	mu       sync.Mutex // guards the fields below
	open     int        // tunnels that the agent has not left
	stopping bool
	due      time.Time // deadline for the next sign of progress while the link is not connected
}

// New returns a Link.
func New(o Options) *Link {
	if o.Jitter == nil {
		o.Jitter = rand.N[time.Duration]
	}
	if o.Told == nil {
		o.Told = func(string) {}
	}
	first := firstWait
	if o.Patient {
		first = longestWait
	}
	l := &Link{options: o, backoff: newBackoff(o.Jitter, first)}
	l.state.due = time.Now().Add(aliveFor)
	return l
}

// Connected reports whether there is an open tunnel that the agent has not left.
func (l *Link) Connected() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.open > 0 && !l.state.stopping
}

// Alive reports whether the link has a tunnel or is making progress toward opening one.
func (l *Link) Alive() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.stopping || l.state.open > 0 || time.Now().Before(l.state.due)
}

// Run keeps a tunnel open until ctx is done. It never gives up. When ctx is done, the agent leaves its tunnels. The hub
// then waits for requests in progress and closes the tunnels. Run returns when the tunnels are closed or Options.Drain
// has passed.
func (l *Link) Run(ctx context.Context) {
	defer l.tunnels.Wait()
	defer l.stop() // runs before the wait
	var last error
	for ctx.Err() == nil {
		l.progress(0)
		opened, err := l.hold(ctx, last)
		if ctx.Err() != nil {
			return
		}
		wait := l.backoff.next(opened, err)
		if last = err; opened > 0 {
			last = nil
			l.options.Log.Info("tunnel ended", "reason", tunnel.Reason(err), "error", err.Error(), "open",
				opened.Round(time.Millisecond).String(), "retryIn", wait.String())
		} else {
			l.logFailure(err, wait.Round(time.Millisecond))
		}
		l.progress(wait)
		l.sleep(ctx, wait, IsRejection(last))
	}
}

// hold opens a tunnel, and keeps the tunnel and its replacements open until the last of them ends or ctx is done. It
// returns how long the last tunnel was open, or 0 if there was no tunnel, and why it ended.
func (l *Link) hold(ctx context.Context, last error) (time.Duration, error) {
	b, err := l.attempt(ctx, last)
	if err != nil {
		return 0, err
	}
	if b = l.keep(ctx, b); ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return b.open(), b.err
}

// logFailure logs why there is no tunnel. The log entry includes the hub's reason, if any.
func (l *Link) logFailure(err error, wait time.Duration) {
	var refusal protocol.Refusal
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) &&
		untrusted.JSON([]byte(hs.Body), &refusal, untrusted.Small()) == nil && refusal.Reason != "" {
		short := strings.Replace(err.Error(), ": "+hs.Body, "", 1)
		l.options.Log.Info("refused by the hub", "reason", refusal.Reason, "message", refusal.Message, "code", hs.StatusCode,
			"error", short, "retryIn", wait.String())
		l.options.Told(fmt.Sprintf("refused by the hub: %s: %s: %s", refusal.Reason, refusal.Message, short))
		return
	}
	l.options.Log.Error(err, "not connected to the hub", "retryIn", wait.String())
	l.options.Told("not connected to the hub: " + err.Error())
}

// attempt opens a tunnel to the first server that accepts it.
func (l *Link) attempt(ctx context.Context, last error) (*branch, error) {
	target, err := l.options.Target(ctx, last)
	if err != nil {
		return nil, err
	}
	if len(target.Servers) == 0 {
		return nil, errors.New("no server to connect to: set " + protocol.EnvServer)
	}
	var errs []error
	for _, server := range target.Servers {
		conn, err := dial(ctx, target, server)
		if err == nil {
			return l.serve(ctx, conn, server), nil
		}
		if IsRejection(err) {
			return nil, err
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// serve serves a tunnel in the background until it ends.
func (l *Link) serve(ctx context.Context, tunnel Serve, server string) *branch {
	l.options.Log.Info("connected to the hub", "server", server)
	l.options.Told("")
	b := newBranch(l.options.Handler, server)
	l.opened(1)
	closed := sync.OnceFunc(func() { l.opened(-1) })
	forget := context.AfterFunc(b.left, closed)
	stop := context.AfterFunc(ctx, b.leave)
	l.tunnels.Go(func() {
		b.serve(ctx, tunnel, l.options.Drain)
		stop()
		forget()
		closed()
	})
	return b
}

// dial opens a tunnel to one server. It uses a new token, because the hub accepts each token only once.
func dial(ctx context.Context, target *Target, server string) (Serve, error) {
	if _, err := protocol.ServerURL(server); err != nil { // checked regardless of the source of the address
		return nil, fmt.Errorf("connect: %w", err)
	}
	token, err := target.Token()
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}
	header := http.Header{"Authorization": {"Bearer " + token}}
	conn, err := target.Dial(ctx, "wss"+strings.TrimPrefix(server, "https")+protocol.PathConnect, header)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", server, err)
	}
	return conn, nil
}

// sleep waits for the given time. After a refusal, a new join token ends the wait early.
func (l *Link) sleep(ctx context.Context, wait time.Duration, refused bool) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if refused {
		l.options.Changed(ctx)
		return
	}
	<-ctx.Done()
}

// opened adds n to the number of open tunnels that the agent has not left.
func (l *Link) opened(n int) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.open += n
	l.state.due = time.Now().Add(aliveFor)
}

// stop marks the link as stopping, so that the agent is no longer ready.
func (l *Link) stop() {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.stopping = true
}

// progress records that the loop is running and that its next iteration starts within the given time.
func (l *Link) progress(wait time.Duration) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.due = time.Now().Add(wait + aliveFor)
}
