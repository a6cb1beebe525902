// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package link keeps one tunnel to the hub open, and moves to another one without a gap when asked.
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

// aliveFor is how long the link may be without progress, beyond its planned wait, before the process counts as stuck.
const aliveFor = 5 * time.Minute

// Serve answers the hub's requests of an open tunnel until the tunnel ends or ctx does, and says why it ended.
type Serve func(ctx context.Context, h http.Handler) error

// Target is where to connect and with which identity.
type Target struct {
	// Servers are the hub's base URLs, to be tried in this order.
	Servers []string
	// Dial opens a tunnel at a wss URL. A refusal is a *tunnel.HandshakeError.
	Dial func(ctx context.Context, url string, header http.Header) (Serve, error)
	// Token makes a new connect token for one attempt.
	Token func() (string, error)
}

// Options of a Link.
type Options struct {
	// Target returns where to connect and with which identity, and joins first if need be. last is why the attempt before
	// failed, nil at first and after a tunnel that was open. An error that is a Rejection makes the link wait long. It is
	// called from one goroutine at a time, as Changed is.
	Target func(ctx context.Context, last error) (*Target, error)
	// Changed returns when there is a join token that was not tried yet, so that another attempt need not wait, or when
	// ctx ends.
	Changed func(ctx context.Context)
	// Handler answers the hub's requests.
	Handler http.Handler
	Log     logr.Logger
	// Drain is how long the hub may still use tunnels after Run's context has ended.
	Drain time.Duration
	// Patient reports whether it waits after its first failures as long as after many: a node agent goes not before the
	// replicas that lost the hub long before.
	Patient bool
	// Jitter returns a random duration in [0, n). Nil means a fair one.
	Jitter func(n time.Duration) time.Duration
}

// Link keeps one tunnel open.
type Link struct {
	options Options
	backoff backoff

	tunnels sync.WaitGroup // one for each open tunnel
	state   state
}

// state is what the probes read.
type state struct {
	mu       sync.Mutex // guards the rest
	open     int        // tunnels that the agent has not left
	stopping bool
	due      time.Time // when there must be progress while not connected
}

// New makes a Link.
func New(o Options) *Link {
	if o.Jitter == nil {
		o.Jitter = rand.N[time.Duration]
	}
	first := firstWait
	if o.Patient {
		first = longestWait
	}
	l := &Link{options: o, backoff: newBackoff(o.Jitter, first)}
	l.state.due = time.Now().Add(aliveFor)
	return l
}

// Connected reports whether a tunnel is open and the agent keeps it.
func (l *Link) Connected() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.open > 0 && !l.state.stopping
}

// Alive reports whether the link is open or makes progress towards it.
func (l *Link) Alive() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.stopping || l.state.open > 0 || time.Now().Before(l.state.due)
}

// Run keeps the tunnel until ctx ends. Then it leaves the hub, which waits for requests under way to end and closes the
// tunnels, and returns when they are closed or Options.Drain is over. It never gives up.
func (l *Link) Run(ctx context.Context) {
	defer l.tunnels.Wait()
	defer l.stop() // before the wait
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

// hold opens a tunnel and keeps it, and those that replace it, until the last one or ctx ends. It returns how long that
// was open, 0 if there was none, and why it ended.
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

// logFailure says why there is no tunnel, in the hub's words if it has any.
func (l *Link) logFailure(err error, wait time.Duration) {
	var refusal protocol.Refusal
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) &&
		untrusted.JSON([]byte(hs.Body), &refusal, untrusted.Small()) == nil && refusal.Reason != "" {
		l.options.Log.Info("refused by the hub", "reason", refusal.Reason, "message", refusal.Message, "code", hs.StatusCode,
			"error", strings.Replace(err.Error(), ": "+hs.Body, "", 1), "retryIn", wait.String())
		return
	}
	l.options.Log.Error(err, "not connected to the hub", "retryIn", wait.String())
}

// attempt opens a tunnel at the first server that lets it.
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

// dial opens a tunnel at one server with a token of its own, since the hub takes each token once.
func dial(ctx context.Context, target *Target, server string) (Serve, error) {
	if _, err := protocol.ServerURL(server); err != nil { // wherever the address came from
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

// sleep waits. After a refusal it waits no longer than until there is a new join token.
func (l *Link) sleep(ctx context.Context, wait time.Duration, refused bool) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if refused {
		l.options.Changed(ctx)
		return
	}
	<-ctx.Done()
}

// opened counts the tunnels that are kept.
func (l *Link) opened(n int) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.open += n
	l.state.due = time.Now().Add(aliveFor)
}

// stop makes the agent unready permanently.
func (l *Link) stop() {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.stopping = true
}

// progress records that the loop runs, and will run again after wait at the latest.
func (l *Link) progress(wait time.Duration) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.due = time.Now().Add(wait + aliveFor)
}
