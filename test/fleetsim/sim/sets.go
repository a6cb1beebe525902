// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
)

// maxArrivals is the maximum number of arrivals that are kept. Later ones are dropped.
const maxArrivals = 1 << 20

// Arrival is a set that a member received, or that was removed from a member.
type Arrival struct {
	Member types.NamespacedName
	ID     string
	At     time.Time
}

// arrivals contains the arrivals of all members.
type arrivals struct {
	mu  sync.Mutex // guards all
	all []Arrival
}

func (a *arrivals) note(member types.NamespacedName, id string) {
	at := time.Now()
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.all) < maxArrivals {
		a.all = append(a.all, Arrival{Member: member, ID: id, At: at})
	}
}

// Arrivals returns the sets that were put or removed since the last call, in the order of their arrival.
func (s *Sim) Arrivals() []Arrival {
	s.arrivals.mu.Lock()
	defer s.arrivals.mu.Unlock()
	all := s.arrivals.all
	s.arrivals.all = nil
	return all
}

// Sets returns the IDs of the sets in each member.
func (s *Sim) Sets() map[types.NamespacedName][]string {
	has := map[types.NamespacedName][]string{}
	for _, a := range s.agents {
		has[a.name()] = slices.DeleteFunc(a.stream.Topic(protocol.SubjectSets).Keys(), func(key string) bool { return key == checkpointKey })
	}
	return has
}

// checkpointKey is the key of the hub's checkpoint among the sets, as in a real agent. No set has this ID.
const checkpointKey = "//"

// reached stores and reports the checkpoint that was sent with a set.
func (a *agent) reached(checkpoint string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if protocol.ValidCheckpoint(checkpoint) && !protocol.OlderCheckpoint(checkpoint, a.checkpoint) {
		a.checkpoint = checkpoint
		a.stream.Topic(protocol.SubjectSets).Put(checkpointKey, &protocol.Line{Set: &protocol.SetEvent{Checkpoint: checkpoint}})
	}
}

// serveSets serves the paths below protocol.PathSets. The content of sets is discarded, and sets count as applied
// immediately.
func (a *agent) serveSets(w http.ResponseWriter, r *http.Request) {
	id, ok := protocol.SetOfPath(r.URL.Path)
	if !ok {
		http.NotFound(w, r)
		return
	}
	a.reached(r.URL.Query().Get(protocol.QueryCheckpoint))
	state := protocol.SetState{ID: id, Phase: protocol.SetDeleted}
	if r.Method == http.MethodPut {
		put, err := a.readSet(id, http.MaxBytesReader(w, r.Body, set.MaxSize))
		if err != nil || put.Digest == "" {
			http.Error(w, "this is no set", http.StatusUnprocessableEntity)
			return
		}
		state.Phase, state.Digest = protocol.SetApplied, put.Digest
		if b := put.Content.Baseline; b != nil {
			n := int32(len(b.Objects))
			state.Baseline = &protocol.BaselineState{Revision: b.Revision, Objects: n, Healthy: n}
		}
	}
	if topic := a.stream.Topic(protocol.SubjectSets); state.Phase == protocol.SetDeleted {
		a.plans.remove(id)
		topic.Delete(id)
	} else {
		topic.Put(id, &protocol.Line{Set: &protocol.SetEvent{State: &state}})
	}
	a.sim.arrivals.note(a.name(), id)
	_ = json.NewEncoder(w).Encode(state) // the client may be gone
}

// received is the part of a set that the simulator reads.
type received struct {
	Digest  string
	Content struct{ Baseline *set.BaselineContent }
}

// maxDecoded is the maximum number of decoded sets that are kept.
const maxDecoded = 64

// decoded keeps sets that were decoded. Most members receive the same sets, and in a real fleet each agent decodes them
// on its own machine.
type decoded struct {
	mu   sync.Mutex // guards sets
	sets map[[sha256.Size]byte]received
}

func (d *decoded) read(raw []byte) (received, error) {
	sum := sha256.Sum256(raw)
	d.mu.Lock()
	put, known := d.sets[sum]
	d.mu.Unlock()
	if known {
		return put, nil
	}
	if err := json.Unmarshal(raw, &put); err != nil {
		return put, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.sets == nil || len(d.sets) >= maxDecoded {
		d.sets = map[[sha256.Size]byte]received{}
	}
	d.sets[sum] = put
	return put, nil
}

// readSet reads a set, and takes its Plans. The simulator ignores its other objects.
func (a *agent) readSet(id string, body io.Reader) (received, error) {
	var put received
	raw, err := io.ReadAll(body)
	if err != nil {
		return put, fmt.Errorf("read set %s: %w", id, err)
	}
	if !strings.HasPrefix(id, "plan/") {
		return a.sim.decoded.read(raw)
	}
	parsed, content, err := set.Parse(raw)
	if err != nil {
		return put, fmt.Errorf("read set %s: %w", id, err)
	}
	a.take(content)
	put.Digest = parsed.Digest
	return put, nil
}
