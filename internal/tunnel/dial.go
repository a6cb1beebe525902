// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// Dialer opens tunnels. The zero value trusts the system's certificates and honors HTTPS_PROXY and NO_PROXY.
type Dialer struct {
	Config Config

	// TLS determines which certificates are trusted. It defaults to the system's certificates. Dial copies the
	// configuration, raises the minimum version to TLS 1.3, and allows only HTTP/1.1, because some proxies do not
	// support WebSockets over HTTP/2.
	TLS *tls.Config

	// Proxy returns the proxy for a request, as in http.Transport. It defaults to http.ProxyFromEnvironment.
	Proxy func(*http.Request) (*url.URL, error)

	// DialSocket opens the connection to the hub or to the proxy. It defaults to an ordinary TCP connection.
	DialSocket func(ctx context.Context, network, address string) (net.Conn, error)
}

// Dial opens a tunnel to a wss URL, or to a ws URL in tests. It sends the given header, which typically contains
// Authorization. If the hub refuses the tunnel, Dial returns a *HandshakeError. If the hub ends the TLS handshake, Dial
// returns ErrTurnedAway. The caller should call Serve soon afterward, because the hub closes the connection after
// Config.HandshakeTimeout.
func (d *Dialer) Dial(ctx context.Context, target string, header http.Header) (*Conn, error) {
	cfg := d.Config.withDefaults()
	proxy := d.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	socket := d.DialSocket
	if socket == nil {
		socket = dialSocket
	}
	dialer := websocket.Dialer{
		NetDialContext:   socket,
		Proxy:            proxy,
		TLSClientConfig:  clientTLS(d.TLS),
		HandshakeTimeout: cfg.HandshakeTimeout,
		ReadBufferSize:   readBufferSize,
		WriteBufferSize:  writeBufferSize,
		WriteBufferPool:  &cfg.Memory.buffers,
		Subprotocols:     []string{Subprotocol},
	}
	ws, response, err := dialer.DialContext(ctx, target, header)
	if err != nil {
		return nil, fmt.Errorf("dial hub: %w", dialFailure(response, err))
	}
	if ws.Subprotocol() != Subprotocol {
		refused := fmt.Errorf("dial hub: the answer is a WebSocket that does not speak %s: check the address",
			Subprotocol)
		return nil, errors.Join(refused, ws.Close())
	}
	return NewConn(&wsConn{ws: ws}, d.Config), nil
}

func dialSocket(ctx context.Context, network, address string) (net.Conn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err // the error already contains the operation and the address
	}
	KeepUnsentLow(conn)
	return conn, nil
}

// clientTLS returns a copy of the caller's TLS configuration with the settings that a tunnel needs.
func clientTLS(given *tls.Config) *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS13}
	if given != nil {
		config = given.Clone()
	}
	config.MinVersion = max(config.MinVersion, tls.VersionTLS13)
	config.NextProtos = []string{"http/1.1"}
	return config
}

// dialFailure returns the hub's refusal if the hub has responded. Otherwise, it returns err.
func dialFailure(response *http.Response, err error) error {
	var alert *net.OpError // package tls has no specific error type for alerts
	if errors.As(err, &alert) && alert.Op == "remote error" {
		return fmt.Errorf("%w: %w", ErrTurnedAway, err)
	}
	if response == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return err
	}
	body, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10)) // the body is already in memory
	return &HandshakeError{
		StatusCode: response.StatusCode,
		RetryAfter: retryAfter(response.Header.Get("Retry-After"), time.Now()),
		Body:       strings.TrimSpace(string(body)),
	}
}

// retryAfter parses the Retry-After header, which contains a number of seconds or a date. An invalid value is treated
// like a missing one.
func retryAfter(value string, now time.Time) time.Duration {
	if seconds, err := strconv.Atoi(value); err == nil {
		return time.Duration(min(max(seconds, 0), 24*60*60)) * time.Second
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(date.Sub(now), 0), 24*time.Hour)
	}
	return 0
}
