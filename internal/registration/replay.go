// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registration

import (
	"sync"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// maxConnects is the maximum number of connect tokens that are remembered for one agent. It is enough for about two
// minutes.
const maxConnects = 1000

// replayGuard remembers the IDs of connect tokens until the tokens expire. It accepts only verified tokens and is
// limited per agent, so one client cannot use up the space for others. The zero value is ready to use.
type replayGuard struct {
	mu    sync.Mutex                      // guards the fields below
	used  map[string]map[string]time.Time // the expiry of each token, by KeyID and then by token ID
	swept time.Time
}

// use records the ID of an agent's token. The parameter expires is the time when the token expires. It returns an error
// if the ID has been used before.
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
