// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
)

// Timing of errands.
const (
	// errandTimeout bounds one call to an agent. It has little to do for it, and may have to wait until it leads.
	errandTimeout = 20 * time.Second
	// ErrandPause is how long the outcome of an errand stands before the same is asked of the same agent again.
	ErrandPause = time.Minute
)

// Errand is a call to an agent that nobody waits for: an agent that does not answer holds up nobody but itself. Its end is told as a
// change of the member.
type Errand struct {
	// Running is whether the agent has not answered yet.
	Running bool
	// Err is why the call was not made or did not succeed.
	Err error
	// At is when the outcome became known.
	At time.Time
	// Remaining is what an uninstalling agent could not remove.
	Remaining []string
}

// Done is whether the agent has answered well.
func (e Errand) Done() bool { return !e.Running && e.Err == nil }

// Announce has settings put to a member, unless that is under way or was tried within ErrandPause, and returns how it stands.
func (r *Registry) Announce(name types.NamespacedName, settings protocol.Settings) Errand {
	return r.errand(name, protocol.PathSettings+settings.Digest(), func(ctx context.Context) ([]string, error) {
		return nil, r.PutSettings(ctx, name, settings)
	})
}

// Deploy has a member's agent given its Deployment, unless that is under way or was tried within ErrandPause, and returns how it stands.
func (r *Registry) Deploy(name types.NamespacedName, digest string, deployment []byte) Errand {
	return r.errand(name, protocol.PathDeployment+digest, func(ctx context.Context) ([]string, error) {
		return nil, r.PutDeployment(ctx, name, deployment)
	})
}

// Dismantle has a member's agent remove itself, unless that is under way or was tried within ErrandPause, and returns how it stands.
func (r *Registry) Dismantle(name types.NamespacedName) Errand {
	return r.errand(name, protocol.PathUninstall, func(ctx context.Context) ([]string, error) {
		result, err := r.Uninstall(ctx, name)
		return result.Remaining, err
	})
}

// errand runs call for a member. Only the latest kind of errand is remembered of a member, and none once it has a new tunnel. How one
// ended stands when the member has gone: an agent that removes itself answers and goes.
func (r *Registry) errand(name types.NamespacedName, kind string, call func(context.Context) ([]string, error)) Errand {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[name]
	if m != nil && m.errand != nil && m.errand.standsLocked(kind, r.now()) {
		return m.errand.Errand
	}
	if m == nil || !m.connected() || r.closed {
		return Errand{Err: ErrNotConnected, At: r.now()}
	}
	e := &errand{kind: kind, Errand: Errand{Running: true}}
	m.errand = e
	r.sessions.Go(func() {
		ctx, cancel := context.WithTimeout(r.ctx, errandTimeout) // the end of the tunnel ends it, too
		defer cancel()
		remaining, err := call(ctx)
		r.mu.Lock()
		e.Errand = Errand{Err: err, At: r.now(), Remaining: remaining}
		r.mu.Unlock()
		r.notify(name)
	})
	return e.Errand
}

// errand is an Errand of one kind. Registry.mu guards it.
type errand struct {
	Errand
	kind string
}

// standsLocked is whether the errand is one of that kind that is under way, or was tried a moment ago. Registry.mu is held.
func (e *errand) standsLocked(kind string, now time.Time) bool {
	return e.kind == kind && (e.Running || now.Sub(e.At) < ErrandPause)
}
