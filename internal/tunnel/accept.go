// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/gorilla/websocket"
)

// Accept responds to an agent's request for a tunnel and returns the session. If it refuses the request, it responds
// with the reason and also returns the reason as an error. The handler that calls Accept can return immediately, and
// the session continues.
//
// The caller must already have authenticated the request with a credential that browsers do not send automatically. A
// cookie is therefore not sufficient. The server that received the request must not speak HTTP/2 and should have
// ReadHeaderTimeout set.
func Accept(w http.ResponseWriter, r *http.Request, cfg Config) (*Session, error) {
	if status, err := refusal(r); err != nil {
		return nil, refuse(w, status, err)
	}
	cfg = cfg.withDefaults()
	upgrader := websocket.Upgrader{
		HandshakeTimeout: cfg.HandshakeTimeout,
		ReadBufferSize:   frameHeadBuffer,
		WriteBufferSize:  writeBufferSize,
		WriteBufferPool:  &cfg.Memory.buffers,
		Subprotocols:     []string{Subprotocol},
		CheckOrigin:      func(*http.Request) bool { return true }, // refusal has already checked the origin
		Error: func(w http.ResponseWriter, _ *http.Request, status int,
			reason error) {
			_ = refuse(w, status, reason)
		},
	}
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, fmt.Errorf("accept tunnel: %w", err)
	}
	KeepUnsentLow(ws.NetConn())
	session, err := NewSession(r.Context(), &wsConn{ws: ws}, cfg)
	if err != nil {
		return nil, fmt.Errorf("accept tunnel from %s: %w", ws.RemoteAddr(), err)
	}
	return session, nil
}

// refusal returns the reason for refusing a request for a tunnel, or nil if the request is acceptable.
func refusal(r *http.Request) (status int, err error) {
	switch {
	case len(r.Header.Values("Origin")) > 0:
		// Browsers always send this header, and agents never do. In CVE-2019-13209, an attacker could trick a browser into
		// opening a tunnel.
		return http.StatusForbidden,
			errors.New("a tunnel is for agents, not for browsers: the Origin header is not allowed")
	case !websocket.IsWebSocketUpgrade(r):
		return http.StatusUpgradeRequired, fmt.Errorf(
			"this address is for agents: it needs a WebSocket upgrade to %s; a proxy on the way may have removed it",
			Subprotocol)
	case !slices.Contains(websocket.Subprotocols(r), Subprotocol):
		return http.StatusBadRequest,
			fmt.Errorf("this hub speaks %s and the agent offered %q: use an agent of a matching version",
				Subprotocol, strings.Join(websocket.Subprotocols(r), ", "))
	default:
		return 0, nil
	}
}

// refuse responds with the reason for a refusal and returns the reason.
func refuse(w http.ResponseWriter, status int, reason error) error {
	if status == http.StatusUpgradeRequired {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
	}
	w.Header().Set("Sec-WebSocket-Version", "13")
	http.Error(w, reason.Error(), status)
	return fmt.Errorf("accept tunnel: %w", reason)
}
