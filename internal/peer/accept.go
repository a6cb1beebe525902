// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/net/netutil"

	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/tunnel"
)

// These constants define how long the members of an unreachable replica still count as connected. The period ends
// within ten seconds after the replica was last heard from. It gives the agents that were connected to that replica
// time to connect to another one.
const (
	grace      = 9500 * time.Millisecond // counted from when the replica was last heard from
	leastGrace = time.Second
)

// peer is a replica that has dialed this one.
type peer struct {
	mirror *members.Mirror
	free   chan struct{} // contains one value while no link uses mirror

	// Network.mu guards the following fields.
	current  *link
	complete bool // whether the peer has ever reported all of its members
}

type link struct {
	session    *tunnel.Session
	start      time.Time
	heard      atomic.Int64  // when data last arrived, in nanoseconds after start; clock changes do not affect it
	superseded chan struct{} // closed when there is a newer link
	down       bool          // guarded by Network.mu
}

// newLink returns a link with the session that open returns. The link records when data last arrived, because the error
// of a session does not reveal how long the peer was silent.
func (n *Network) newLink(open func(tunnel.Config) (*tunnel.Session, error)) (*link, error) {
	l := &link{start: time.Now(), superseded: make(chan struct{})}
	cfg := n.config()
	cfg.Observer.BytesRead = func(int) { l.heard.Store(int64(time.Since(l.start))) }
	var err error
	l.session, err = open(cfg)
	return l, err
}

// grace returns how long the peer's members still count as connected after the link has ended. It is reduced by the
// time during which the link was silent.
func (l *link) grace() time.Duration {
	return max(leastGrace, grace-(time.Since(l.start)-time.Duration(l.heard.Load())))
}

// accept upgrades a request from another replica to a link, and returns when the link has ended.
func (n *Network) accept(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get(headerReplica)
	switch {
	case id == "" || len(id) > maxID || strings.ContainsFunc(id, func(c rune) bool { return c < '!' || c > '~' }):
		http.Error(w, headerReplica+" must be the id of a replica", http.StatusBadRequest)
		return
	case id == n.id:
		http.Error(w, "a replica cannot link with itself", http.StatusConflict)
		return
	}
	n.mu.Lock()
	if n.ctx.Err() != nil {
		n.mu.Unlock()
		http.Error(w, "stopping", http.StatusServiceUnavailable)
		return
	}
	n.running.Add(1)
	n.mu.Unlock()
	defer n.running.Done()
	l, err := n.newLink(func(cfg tunnel.Config) (*tunnel.Session, error) { return tunnel.Accept(w, r, cfg) })
	if err != nil {
		n.options.Log.V(1).Info("linking with replica failed", "replica", id, "cause", err.Error())
		return
	}
	n.hold(id, l)
}

// hold mirrors a peer's members until the peer's link has ended and the grace period has passed.
func (n *Network) hold(id string, l *link) {
	defer l.session.Close()
	p := n.enter(id, l)
	select {
	case <-p.free:
		defer func() { p.free <- struct{}{} }()
	case <-n.ctx.Done():
		return
	}
	n.options.Log.Info("linked with replica", "replica", id, "from", l.session.RemoteAddr().String())
	p.mirror.Begin(func(to members.Peer) http.RoundTripper {
		return hop{session: l.session, to: to, forwarded: n.options.Forwarded}
	})
	err := n.follow(l.session, p)
	l.session.Close()
	p.mirror.Detach()
	n.mu.Lock()
	l.down = true
	n.mu.Unlock()
	if n.ctx.Err() != nil {
		return
	}
	n.options.Log.Info("link with replica ended", "replica", id, "cause", err.Error())
	select {
	case <-l.superseded:
	case <-n.ctx.Done():
	case <-time.After(l.grace()):
		if n.leave(id, p, l) {
			p.mirror.Close()
		}
	}
}

// enter makes a link the current link of its peer, and closes the previous link. A previous link exists only if the
// peer has abandoned it or has two routes to this replica.
func (n *Network) enter(id string, l *link) *peer {
	n.mu.Lock()
	p := n.peers[id]
	if p == nil {
		p = &peer{mirror: n.options.Members.Mirror(id), free: make(chan struct{}, 1)}
		p.free <- struct{}{}
		n.peers[id] = p
	}
	former := p.current
	p.current = l
	n.mu.Unlock()
	if former != nil {
		close(former.superseded)
		former.session.Close()
	}
	return p
}

// leave drops a peer if l is still its current link, and reports whether the peer was dropped.
func (n *Network) leave(id string, p *peer, l *link) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.current != l {
		return false
	}
	delete(n.peers, id)
	return true
}

// follow reads a peer's reports about its members until the link ends. It returns the reason why the link ended.
func (n *Network) follow(session *tunnel.Session, p *peer) error {
	stop := context.AfterFunc(n.ctx, func() { _ = session.Close() })
	defer stop()
	req, err := http.NewRequestWithContext(n.ctx, http.MethodGet, "http://replica"+pathMembers+"?"+queryHosts+"=true", nil)
	if err != nil {
		return err
	}
	req.Header.Set(headerReplica, n.id)
	resp, err := session.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("request members: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("request members: the replica answered %d; it may have another version", resp.StatusCode)
	}
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(make([]byte, 0, 4<<10), maxLine)
	for lines.Scan() {
		m, err := parse(lines.Bytes())
		if err != nil {
			return fmt.Errorf("read members: %w", err)
		}
		n.take(p, m)
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read members: %w", err)
	}
	return errors.New("read members: the replica has ended its report, because it is stopping")
}

func (n *Network) take(p *peer, m message) {
	switch {
	case m.Member != nil:
		p.mirror.Update(*m.Member)
	case m.Complete:
		p.mirror.Complete()
		n.mu.Lock()
		p.complete = true
		n.mu.Unlock()
	}
}

// quietLog returns a logger for net/http that logs at debug level.
func quietLog(logger logr.Logger) *log.Logger {
	return slog.NewLogLogger(logr.ToSlogHandler(logger.V(1)), slog.LevelInfo)
}

// connectionsPerSource is the maximum number of connections from one address. It exceeds the needs of all replicas
// behind one address. The limit prevents a client that can reach the port from using all connections.
const connectionsPerSource = 32

// bound returns a listener that limits the number of its open connections, both in total and from one address.
func bound(listener net.Listener) net.Listener {
	gate := limit.NewGate(limit.Bounds{User: connectionsPerSource}, limit.Observer{})
	return netutil.LimitListener(boundedListener{listener, gate}, maxConnections)
}

// boundedListener closes new connections from an address that already has too many.
type boundedListener struct {
	net.Listener
	gate *limit.Gate
}

// Accept implements net.Listener.
func (f boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err // net/http examines the listener's errors
		}
		source := limit.Requester{User: limit.Source(conn.RemoteAddr().String())}
		seat, err := f.gate.Enter(context.Background(), source) // never waits
		if err == nil {
			return &boundedConn{conn, seat}, nil
		}
		_ = conn.Close()
	}
}

// boundedConn is a connection that releases its seat when it is closed.
type boundedConn struct {
	net.Conn
	seat *limit.Seat
}

// Close implements net.Conn.
func (s *boundedConn) Close() error {
	s.seat.Release()
	return s.Conn.Close()
}
