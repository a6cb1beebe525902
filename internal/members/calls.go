// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

const (
	// callTimeout bounds one call to an agent. The agent has little to do for it, but it may have to wait for its
	// leadership.
	callTimeout = 20 * time.Second
	// CallPause is how long the outcome of a call is kept before the same call to the same agent is made again.
	CallPause = time.Minute
)

// Call is a call to an agent that runs in the background. A change of the member is reported when it ends.
type Call struct {
	// Running reports whether the agent has not answered yet.
	Running bool
	// Err is why the call was not made or did not succeed.
	Err error
	// At is when the outcome became known.
	At time.Time
	// Remaining is what an uninstalling agent could not remove.
	Remaining []string
	// Stale names groups of the member's API that no server serves: what was deleted there stays until they are.
	Stale []string
}

// Done reports whether the call succeeded.
func (c Call) Done() bool { return !c.Running && c.Err == nil }

// Calls asks members' agents for something in the background, and keeps the outcome.
type Calls struct {
	table      *table
	transports *Transports
	notices    *Notices
}

// agentRequest is what a call asks of an agent.
type agentRequest struct {
	method, path string
	query        url.Values // does not tell one call from another
	body         []byte     // JSON
	toLeader     bool       // whether only the leader among the agents may be asked
}

// target returns path and query.
func (a agentRequest) target() string {
	if len(a.query) == 0 {
		return a.path
	}
	return a.path + "?" + a.query.Encode()
}

// StartSettings puts settings to a member in the background, unless that runs or was tried within CallPause. It returns
// the call's state. When it has succeeded, the agent has stored them.
func (c *Calls) StartSettings(name types.NamespacedName, settings protocol.Settings) Call {
	body, err := json.Marshal(settings)
	if err != nil { // strings always marshal
		return Call{Err: err, At: c.table.now()}
	}
	return c.start(name, settings.Digest(), agentRequest{method: http.MethodPut, path: protocol.PathSettings, body: body})
}

// StartDeployment gives a member's agent its Deployment, as JSON, in the background, unless that runs or was tried
// within CallPause. It returns the call's state. When it has succeeded, the agent has stored it; its report has the
// outcome. A *ResponseError with the code 422 means that the agent will never take it.
func (c *Calls) StartDeployment(name types.NamespacedName, digest string, deployment []byte) Call {
	return c.start(name, digest, agentRequest{method: http.MethodPut, path: protocol.PathDeployment, body: deployment})
}

// HostInstructions is what StartHostInstructions gives a host.
type HostInstructions struct {
	// Version of the instructions, empty for none: the host's present instructions are taken away.
	Version string
	// Content is the instructions as JSON.
	Content []byte
	// Checkpoint of the hub, empty for none. A call with another one is the same call.
	Checkpoint string
}

// StartHostInstructions gives a host's agent its instructions, in the background, unless that runs or was tried within
// CallPause. It returns the call's state. When it has succeeded, the agent has stored it; its report has the outcome.
func (c *Calls) StartHostInstructions(name types.NamespacedName, give HostInstructions) Call {
	ask := agentRequest{method: http.MethodDelete, path: protocol.PathHostInstructions, query: url.Values{}}
	if give.Version != "" {
		ask.query.Set(protocol.QueryVersion, give.Version)
		ask.method, ask.body = http.MethodPut, give.Content
	}
	if give.Checkpoint != "" {
		ask.query.Set(protocol.QueryCheckpoint, give.Checkpoint)
	}
	return c.start(name, give.Version, ask)
}

// StartUninstall asks a member's agent to remove itself, in the background, unless that runs or was tried within
// CallPause. It returns the call's state. Only the leader among the agents removes what was delivered.
func (c *Calls) StartUninstall(name types.NamespacedName) Call {
	return c.start(name, "", agentRequest{method: http.MethodPost, path: protocol.PathUninstall, toLeader: true})
}

// start sends a request to a member in the background; digest is that of its body. Only a member's latest call is kept,
// until the member has a new tunnel. An agent that removes itself answers and disconnects, so the outcome is kept while
// the member is not connected.
func (c *Calls) start(name types.NamespacedName, digest string, ask agentRequest) Call {
	kind := ask.path + digest
	c.table.mu.Lock()
	defer c.table.mu.Unlock()
	m := c.table.members[name]
	if m != nil && m.lastCall != nil && m.lastCall.currentLocked(kind, c.table.now()) {
		return m.lastCall.Call
	}
	if m == nil || !m.connected() || c.table.closed {
		return Call{Err: ErrNotConnected, At: c.table.now()}
	}
	call := &agentCall{kind: kind, Call: Call{Running: true}}
	m.lastCall = call
	c.table.work.Go(func() {
		ctx, cancel := context.WithTimeout(c.table.ctx, callTimeout) // the end of the tunnel ends it, too
		defer cancel()
		var result protocol.UninstallResult
		raw, err := c.send(ctx, name, ask)
		if err == nil && ask.path == protocol.PathUninstall {
			result, err = uninstallResult(name, raw)
		}
		c.table.mu.Lock()
		call.Call = Call{Err: err, At: c.table.now(), Remaining: result.Remaining, Stale: result.Stale}
		c.table.mu.Unlock()
		c.notices.notify(name)
	})
	return call.Call
}

// agentCall is a Call of one kind. table.mu guards it.
type agentCall struct {
	Call
	kind string
}

// currentLocked reports whether the call is of that kind and runs, or ended within CallPause. table.mu is held.
func (c *agentCall) currentLocked(kind string, now time.Time) bool {
	return c.kind == kind && (c.Running || now.Sub(c.At) < CallPause)
}
