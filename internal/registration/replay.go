// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"sync"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxConnects bounds the connect tokens that are remembered of one agent: those of about two minutes.
const maxConnects = 1000

// replayGuard remembers the IDs of connect tokens until they expire. It takes only tokens that were verified, and has a
// bound for each agent, so that no client can fill it for others. The zero value is ready.
type replayGuard struct {
	mu    sync.Mutex                      // guards what follows
	used  map[string]map[string]time.Time // by KeyID, then by the token's ID: when the token ends
	swept time.Time
}

// use records the ID of an agent's token, which is valid until expires. It refuses an ID that was used before.
func (g *replayGuard) use(agent, id string, now, expires time.Time) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.sweep(now)
	used := g.used[agent]
	if _, before := used[id]; before {
		return refuse(v1.ReasonTokenInvalid, "this connect token was used before")
	}
	if len(used) >= maxConnects {
		return errBusy
	}
	if used == nil {
		used = map[string]time.Time{}
		if g.used == nil {
			g.used = map[string]map[string]time.Time{}
		}
		g.used[agent] = used
	}
	used[id] = expires
	return nil
}

// sweep removes expired tokens, at most once in each ConnectTokenTTL.
func (g *replayGuard) sweep(now time.Time) {
	if now.Sub(g.swept) < protocol.ConnectTokenTTL {
		return
	}
	g.swept = now
	for agent, used := range g.used {
		for id, end := range used {
			if now.After(end) {
				delete(used, id)
			}
		}
		if len(used) == 0 {
			delete(g.used, agent)
		}
	}
}
