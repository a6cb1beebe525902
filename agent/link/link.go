// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package link keeps one tunnel to the hub open, whatever happens.
package link

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/agent/environ"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tunnel"
)

// aliveFor is how long the link may go without progress, beyond what it means to wait, before the process counts as stuck.
const aliveFor = 5 * time.Minute

// Tunnel is an open tunnel.
type Tunnel interface {
	// Serve answers the hub's requests until the tunnel ends or ctx does, and says why it ended.
	Serve(ctx context.Context, h http.Handler) error
}

// Target is where to connect and as whom.
type Target struct {
	// Servers are the hub's base URLs, to be tried in this order.
	Servers []string
	// Dial opens a tunnel at a wss URL. A refusal is a *tunnel.HandshakeError.
	Dial func(ctx context.Context, url string, header http.Header) (Tunnel, error)
	// Token makes a new connect token for one attempt.
	Token func() (string, error)
}

// Identity knows who the agent is. The link calls it from one goroutine at a time.
type Identity interface {
	// Target says where to connect and as whom, and joins first if need be. last is why the attempt before failed, nil at first
	// and after a tunnel that was open. An error that is a Refusal makes the link wait long.
	Target(ctx context.Context, last error) (*Target, error)
	// Changed returns when there is a join token that was not tried yet, so that another attempt need not wait, or when ctx ends.
	Changed(ctx context.Context)
}

// Options of a Link.
type Options struct {
	Identity Identity
	// Handler answers the hub's requests.
	Handler http.Handler
	Log     logr.Logger
	// Jitter returns a random duration in [0, n). Nil means a fair one.
	Jitter func(n time.Duration) time.Duration
}

// Link keeps one tunnel open.
type Link struct {
	identity Identity
	handler  http.Handler
	log      logr.Logger
	backoff  backoff

	state state
}

// state is what the probes ask.
type state struct {
	mu        sync.Mutex // guards the rest
	connected bool
	due       time.Time // when there must be progress while not connected
}

// New makes a Link.
func New(o Options) *Link {
	if o.Jitter == nil {
		o.Jitter = rand.N[time.Duration]
	}
	l := &Link{identity: o.Identity, handler: o.Handler, log: o.Log, backoff: backoff{jitter: o.Jitter}}
	l.state.due = time.Now().Add(aliveFor)
	return l
}

// Connected is whether a tunnel is open.
func (l *Link) Connected() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.connected
}

// Alive is whether the link is open or makes progress towards it.
func (l *Link) Alive() bool {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	return l.state.connected || time.Now().Before(l.state.due)
}

// Run keeps the tunnel until ctx ends; then it ends the tunnel gracefully and returns. It never gives up.
func (l *Link) Run(ctx context.Context) {
	var last error
	for ctx.Err() == nil {
		l.progress(0)
		opened, err := l.attempt(ctx, last)
		if ctx.Err() != nil {
			return
		}
		wait := l.backoff.next(opened, err)
		if last = err; opened > 0 {
			last = nil
			l.log.Info("tunnel ended", "reason", tunnel.Reason(err), "error", err.Error(), "open", opened.Round(time.Millisecond).String(), "retryIn", wait.String())
		} else {
			l.logFailure(err, wait.Round(time.Millisecond))
		}
		l.progress(wait)
		l.sleep(ctx, wait, IsRefusal(last))
	}
}

// logFailure says why there is no tunnel, in the hub's words if it has any.
func (l *Link) logFailure(err error, wait time.Duration) {
	var refusal protocol.Refusal
	if hs := (*tunnel.HandshakeError)(nil); errors.As(err, &hs) && json.Unmarshal([]byte(hs.Body), &refusal) == nil && refusal.Reason != "" {
		l.log.Info("refused by the hub", "reason", refusal.Reason, "message", refusal.Message, "code", hs.StatusCode,
			"error", strings.Replace(err.Error(), ": "+hs.Body, "", 1), "retryIn", wait.String())
		return
	}
	l.log.Info("not connected to the hub", "error", err.Error(), "retryIn", wait.String())
}

// attempt connects to the first server that lets it and serves until the tunnel ends. It returns how long the tunnel was open, 0 if none was.
func (l *Link) attempt(ctx context.Context, last error) (time.Duration, error) {
	target, err := l.identity.Target(ctx, last)
	if err != nil {
		return 0, err
	}
	if len(target.Servers) == 0 {
		return 0, errors.New("no server to connect to: set " + protocol.EnvServer)
	}
	var errs []error
	for _, server := range target.Servers {
		conn, err := dial(ctx, target, server)
		if err == nil {
			return l.serve(ctx, conn, server)
		}
		if IsRefusal(err) {
			return 0, err
		}
		errs = append(errs, err)
	}
	return 0, errors.Join(errs...)
}

func (l *Link) serve(ctx context.Context, conn Tunnel, server string) (time.Duration, error) {
	l.log.Info("connected to the hub", "server", server)
	l.setConnected(true)
	defer l.setConnected(false)
	start := time.Now()
	err := conn.Serve(ctx, l.handler)
	return max(time.Since(start), 1), err
}

// dial opens a tunnel at one server with a token of its own, since the hub takes each token once.
func dial(ctx context.Context, target *Target, server string) (Tunnel, error) {
	if _, err := environ.ServerURL(server); err != nil { // wherever the address came from
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
		l.identity.Changed(ctx)
		return
	}
	<-ctx.Done()
}

func (l *Link) setConnected(connected bool) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.connected = connected
	l.state.due = time.Now().Add(aliveFor)
}

// progress notes that the loop goes round and will again after wait at the latest.
func (l *Link) progress(wait time.Duration) {
	l.state.mu.Lock()
	defer l.state.mu.Unlock()
	l.state.due = time.Now().Add(wait + aliveFor)
}
