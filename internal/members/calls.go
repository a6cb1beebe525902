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
	// callTimeout is the timeout for one call to an agent. Handling a call takes little time, but the agent may first
	// have to wait until it becomes the leader.
	callTimeout = 20 * time.Second
	// CallPause is how long the result of a call is reused before the same call is made again.
	CallPause = time.Minute
)

// Call is a background call to an agent. When the call ends, listeners are notified that the member has changed.
type Call struct {
	// Running reports whether the call is still in progress.
	Running bool
	// Err is the reason why the call was not made or why it failed.
	Err error
	// At is the time at which the call ended.
	At time.Time
	// Remaining lists the objects that an uninstalling agent could not remove.
	Remaining []string
	// Stale lists API groups of the member that are not being served. Deleted objects in these groups remain until
	// the groups are served again.
	Stale []string
}

// Done reports whether the call succeeded.
func (c Call) Done() bool { return !c.Running && c.Err == nil }

// Calls sends requests to members' agents in the background and stores the results.
type Calls struct {
	table      *table
	transports *Transports
	notices    *Notices
}

type agentRequest struct {
	method, path string
	query        url.Values // ignored when calls are compared
	body         []byte     // JSON
	toLeader     bool       // set if only the leading agent can handle the request
}

func (a agentRequest) target() string {
	if len(a.query) == 0 {
		return a.path
	}
	return a.path + "?" + a.query.Encode()
}

// StartSettings sends settings to a member in the background, unless the same call is still running or ended less than
// CallPause ago. It returns the state of the call. Once the call has succeeded, the agent has stored the settings.
func (c *Calls) StartSettings(name types.NamespacedName, settings protocol.Settings) Call {
	body, err := json.Marshal(settings)
	if err != nil { // strings can always be marshaled
		return Call{Err: err, At: c.table.now()}
	}
	return c.start(name, settings.Digest(), agentRequest{method: http.MethodPut, path: protocol.PathSettings, body: body})
}

// StartDeployment sends the JSON of an agent's Deployment to the agent in the background, unless the same call is
// still running or ended less than CallPause ago. It returns the state of the call. Once the call has succeeded, the
// agent has stored the Deployment, and its report contains the outcome. A *ResponseError with code 422 means that the
// agent will never accept this Deployment.
func (c *Calls) StartDeployment(name types.NamespacedName, digest string, deployment []byte) Call {
	return c.start(name, digest, agentRequest{method: http.MethodPut, path: protocol.PathDeployment, body: deployment})
}

// HostInstructions are the instructions that StartHostInstructions sends to a host.
type HostInstructions struct {
	// Version is the version of the instructions. If it is empty, the host's current instructions are removed.
	Version string
	// Content contains the instructions as JSON.
	Content []byte
	// Checkpoint is the hub's checkpoint, or empty if there is none. It is ignored when calls are compared.
	Checkpoint string
}

// StartHostInstructions sends a host's agent its instructions in the background, unless the same call is still running
// or ended less than CallPause ago. It returns the state of the call. Once the call has succeeded, the agent has stored
// the instructions, and its report contains the outcome.
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

// StartUninstall asks a member's leading agent to uninstall itself, unless the same call is still running or ended less
// than CallPause ago. The request is sent in the background. StartUninstall returns the state of the call. The other
// agents do not remove the delivered objects.
func (c *Calls) StartUninstall(name types.NamespacedName) Call {
	return c.start(name, "", agentRequest{method: http.MethodPost, path: protocol.PathUninstall, toLeader: true})
}

// start sends a request to a member in the background. digest is the digest of the request body. Only the member's
// latest call is kept, and only until the member opens a new tunnel. The call is kept after the member disconnects,
// because an agent that uninstalls itself responds and then disconnects.
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
		ctx, cancel := context.WithTimeout(c.table.ctx, callTimeout) // the call is also canceled when the tunnel ends
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

// agentCall is a Call and the kind of its request. It is guarded by table.mu.
type agentCall struct {
	Call
	kind string
}

// currentLocked reports whether a call has the given kind, and is still running or ended less than CallPause ago.
// table.mu must be held.
func (c *agentCall) currentLocked(kind string, now time.Time) bool {
	return c.kind == kind && (c.Running || now.Sub(c.At) < CallPause)
}
