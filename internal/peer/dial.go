// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Pauses between attempts to dial a replica.
const (
	firstWait   = 100 * time.Millisecond
	longestWait = 2 * time.Second
	healthy     = 10 * time.Second
	// selfWait is how long to wait before dialing again an address that turned out to be this replica's own. Another
	// replica may get the address later.
	selfWait = time.Minute
)

// dial holds a replica's address and the state of the link to it. It is guarded by Network.mu.
type dial struct {
	address string
	wanted  bool   // whether the address is in the Finder's latest result
	self    bool   // whether the address belongs to this replica
	up      bool   // whether there is a link to the address
	peer    string // ID of the replica at the address; empty until the replica has requested the members
}

// found applies the latest list of replica addresses. A link to an address that is no longer in the list continues,
// because a replica that is stopping still has tunnels.
func (n *Network) found(addresses []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.discovered = true
	for _, d := range n.dials {
		d.wanted = false
	}
	for _, address := range addresses {
		if d := n.dials[address]; d != nil {
			d.wanted = true
			continue
		}
		if n.ctx.Err() != nil {
			return
		}
		d := &dial{address: address, wanted: true}
		n.dials[address] = d
		n.running.Go(func() { n.keep(d) })
	}
}

// keep maintains a link to an address as long as the address is wanted. It reconnects whenever the link ends.
func (n *Network) keep(d *dial) {
	failures := 0
	for n.wanted(d) {
		start := time.Now()
		up, err := n.offer(d)
		if n.ctx.Err() != nil {
			return
		}
		if up && time.Since(start) >= healthy {
			failures = 0
		}
		pause := wait.Jitter(min(longestWait, firstWait<<min(failures, 10))/2, 1)
		if isSelf(err) {
			pause = selfWait
		}
		log := n.options.Log
		if failures > 0 {
			log = log.V(1) // the first failure was logged as an error
		}
		if failures++; !isSelf(err) {
			log.Error(err, "no link to replica", "address", d.address, "linked", up)
		}
		await.Time(n.ctx, pause)
	}
}

// wanted reports whether an address should still be dialed. If not, wanted removes the address.
func (n *Network) wanted(d *dial) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ctx.Err() != nil {
		return false
	}
	if !d.wanted {
		delete(n.dials, d.address)
	}
	return d.wanted
}

// offer dials a replica and serves this replica's members to it until the link ends. It reports whether the link was
// established, and returns the reason why it ended.
func (n *Network) offer(d *dial) (up bool, err error) {
	config, err := n.options.TLS()
	if err != nil {
		return false, err
	}
	noProxy := func(*http.Request) (*url.URL, error) { return nil, nil }
	dialer := &tunnel.Dialer{Config: n.config(), TLS: config, Proxy: noProxy}
	conn, err := dialer.Dial(n.ctx, "wss://"+d.address+PathLink, http.Header{headerReplica: {n.id}})
	n.mu.Lock()
	d.self, d.up = isSelf(err), err == nil
	n.mu.Unlock()
	if err != nil {
		return false, err
	}
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		d.up = false
	}()
	return true, conn.Serve(n.ctx, n.offered(d))
}

func isSelf(err error) bool {
	var refused *tunnel.HandshakeError
	return errors.As(err, &refused) && refused.StatusCode == http.StatusConflict
}

// offered returns the handler for requests from the replica at the other end of a link.
func (n *Network) offered(d *dial) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == pathMembers && r.Method == http.MethodGet:
			n.mu.Lock()
			d.peer = r.Header.Get(headerReplica)
			n.mu.Unlock()
			n.report(w, r)
		case strings.HasPrefix(r.URL.Path, pathMembers+"/"):
			n.forward(w, r)
		default:
			http.Error(w, "this replica does not know the path: the replicas may differ in version", http.StatusNotFound)
		}
	})
}
