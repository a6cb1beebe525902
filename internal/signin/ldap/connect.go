// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

// Limits on data from a server.
const (
	// Connecting to one server may take at most 1/dialShare of the timeout. This includes TLS and the service account's
	// bind. The rest of the time is left for the other servers.
	dialShare = 3
	// maxPacket is the maximum size of one message. The entry of a user in 10,000 groups is about 1 MB in size.
	maxPacket = 4 << 20
	// maxNesting is the maximum nesting depth of a message. LDAP needs 8 levels.
	maxNesting = 32
	// maxTraffic is the maximum number of bytes that are read from a connection.
	maxTraffic = 32 << 20
	// maxConnections is the maximum number of connections to a provider. Additional requests wait.
	maxConnections = 8
)

// setBounds sets the limits of the BER reader. The limits apply to the whole process, but only this package uses the
// reader.
var setBounds = sync.OnceFunc(func() {
	ber.MaxPacketLengthBytes, ber.MaxNestingDepth = maxPacket, maxNesting
})

// session is a connection that is bound as the service account and serves one request. It is not shared, because a
// login temporarily binds as the user.
type session struct {
	conn             *goldap.Conn
	server           string
	ctx              context.Context
	account, secret  string
	release, stopped func()
}

// connect returns a session with the first server that responds. It tries the most recently used server first.
func (c *Connector) connect(ctx context.Context) (*session, error) {
	secret, err := c.BindPassword(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the password of the service account: %w", err)
	}
	if secret == "" {
		return nil, errors.New("the password of the service account is empty")
	}
	if err := c.seats.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("wait for one of %d connections: %w", maxConnections, err)
	}
	release := sync.OnceFunc(func() { c.seats.Release(1) })
	var failures []error
	first := int(c.last.Load())
	for i := range c.servers {
		at := (first + i) % len(c.servers)
		s, err := c.open(ctx, c.servers[at], secret)
		if err == nil {
			s.release = release
			c.last.Store(int32(at))
			return s, nil
		}
		failures = append(failures, err)
		// All servers would reject the service account in the same way, and more attempts could lock the account.
		if ctx.Err() != nil || !unavailable(err) {
			break
		}
	}
	release()
	return nil, joined(failures)
}

// open returns a session with one server. ctx limits the duration of the session. Connecting may take only part of that
// time.
func (c *Connector) open(ctx context.Context, to server, secret string) (_ *session, err error) {
	early, cancel := context.WithTimeout(ctx, c.dial)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(early, "tcp", to.address)
	if err != nil {
		return nil, &failure{server: to.url, what: "connect", err: err}
	}
	stop := context.AfterFunc(early, func() { raw.Close() })
	conn := &boundedConn{Conn: raw, left: maxTraffic}
	s := &session{server: to.url, ctx: ctx, account: c.BindDN, secret: secret}
	if s.conn, err = handshake(early, conn, to,
		&tls.Config{MinVersion: tls.VersionTLS12, ServerName: to.host, RootCAs: c.Roots}); err == nil {
		err = s.bindAccount()
	}
	if !stop() { // the deadline has passed and the connection is closed
		err = &failure{server: to.url, what: "connect", err: context.DeadlineExceeded}
	}
	if err != nil {
		raw.Close()
		if s.conn != nil {
			s.conn.Close()
		}
		return nil, err
	}
	unbound := context.AfterFunc(ctx, func() { raw.Close() })
	s.stopped = func() { unbound() }
	return s, nil
}

// handshake starts TLS. Only the StartTLS request is sent unencrypted.
func handshake(ctx context.Context, conn net.Conn, to server, config *tls.Config) (*goldap.Conn, error) {
	deadline, _ := ctx.Deadline()
	what := "begin TLS"
	if to.startTLS {
		what = "begin TLS with StartTLS"
		if err := startTLS(conn); err != nil {
			return nil, &failure{server: to.url, what: what, err: err}
		}
	}
	secure := tls.Client(conn, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, &failure{server: to.url, what: what, err: err}
	}
	return started(&counted{Conn: secure}, deadline), nil
}

func started(conn net.Conn, deadline time.Time) *goldap.Conn {
	c := goldap.NewConn(conn, true)
	c.SetTimeout(max(time.Until(deadline), 0) + time.Second)
	c.Start()
	return c
}

// close ends the session. It does not wait for the server, because ctx limits the network connection.
func (s *session) close() {
	s.stopped()
	s.conn.Close()
	s.release()
}

func (s *session) bindAccount() error {
	s.limit()
	_, err := s.conn.SimpleBind(goldap.NewSimpleBindRequest(s.account, s.secret, nil))
	return s.failed("sign in as the service account", err, s.secret)
}

// limit sets the timeout of the next operation to one second more than the remaining time, so that ctx is done first.
func (s *session) limit() {
	if deadline, ok := s.ctx.Deadline(); ok {
		s.conn.SetTimeout(max(time.Until(deadline), 0) + time.Second)
	}
}

// boundedConn is a connection that limits the total number of bytes read.
type boundedConn struct {
	net.Conn
	left int
}

func (c *boundedConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		return 0, fmt.Errorf("the server sent more than %d MiB", maxTraffic>>20)
	}
	n, err := c.Conn.Read(p[:min(len(p), c.left)])
	c.left -= n
	return n, err
}
