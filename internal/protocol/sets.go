// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/set"
)

// PathSets + "/" + id on the agent takes a set.Set by PUT, and removes it by DELETE. Both answer 200 with the resulting
// SetState, which is Pending if that takes longer than SetTimeout. An id needs no escaping: see set.ValidID. PathReport
// has the changes of states.
//
// Only the leader among the agent's replicas serves sets; another answers 421. 413 means that the set is larger than
// set.MaxSize, 422 that it is refused permanently, and why.
const PathSets = "/v1/sets"

// FeatureSets among Report.Features says that the agent takes sets and reports them on PathReport. Older agents have a
// feature "sets" and a stream of its own.
const FeatureSets = "sets/2"

// Bounds of sets.
const (
	// MaxSetObjects is how many objects a SetState names.
	MaxSetObjects = 10
	// SetTimeout is after how long an agent answers that a set is Pending.
	SetTimeout = 10 * time.Second
)

// SetPath is where a set of this id is put and deleted.
func SetPath(id string) string { return PathSets + "/" + id }

// QueryCheckpoint is the query parameter of PathSets with the hub's checkpoint: where in its history the hub is. The
// agent keeps the latest, and reports it on PathReport before Synced. Its content is the hub's business, except that of
// two which differ only in the number after the last slash the larger is the later.
const QueryCheckpoint = "checkpoint"

var checkpointForm = regexp.MustCompile(`^[A-Za-z0-9/-]+$`)

const maxCheckpoint = 128 // bytes

// ValidCheckpoint reports whether a checkpoint may be kept.
func ValidCheckpoint(checkpoint string) bool {
	return len(checkpoint) <= maxCheckpoint && checkpointForm.MatchString(checkpoint)
}

// OlderCheckpoint reports whether a checkpoint is of the same term as another and comes before it: sets are sent at
// once, and one that was delayed brings it.
func OlderCheckpoint(checkpoint, than string) bool {
	term := than[:strings.LastIndexByte(than, '/')+1]
	text, same := strings.CutPrefix(checkpoint, term)
	number, err := strconv.ParseUint(text, 10, 64)
	last, invalid := strconv.ParseUint(than[len(term):], 10, 64)
	return same && err == nil && invalid == nil && number < last
}

// SetPathAt is SetPath with a checkpoint; empty for none.
func SetPathAt(id, checkpoint string) string {
	if checkpoint == "" {
		return SetPath(id)
	}
	return SetPath(id) + "?" + url.Values{QueryCheckpoint: {checkpoint}}.Encode()
}

// SetOfPath returns the id in a path, and false if there is no valid one.
func SetOfPath(path string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, PathSets+"/")
	return id, ok && set.ValidID(id)
}

// SetPhase is how far a set is.
type SetPhase string

const (
	// SetApplied means that the member has all of it, and nothing that it no longer holds.
	SetApplied SetPhase = "Applied"
	// SetPending means that it is being applied, or a binding in it waits for the set that brings its role.
	SetPending SetPhase = "Pending"
	// SetConflict means that an object of that name is not Drover's, another field manager holds a field, the admission
	// of the member changed what was applied, or a binding is not made because its role is not Drover's. It is tried
	// again.
	SetConflict SetPhase = "Conflict"
	// SetFighting means that something changes an object back each time that it is repaired.
	SetFighting SetPhase = "Fighting"
	// SetRoleMissing means that the member has no ClusterRole of the name that a binding binds. It is looked for again.
	SetRoleMissing SetPhase = "RoleMissing"
	// SetFailed means that the API server refused some of it. It is tried again.
	SetFailed SetPhase = "Failed"
	// SetExpired means that its time has passed, and the member has nothing of it any more.
	SetExpired SetPhase = "Expired"
	// SetDeleted means that it was removed. Only in the answer to DELETE.
	SetDeleted SetPhase = "Deleted"
	// SetReadOnly means that the agent's profile is ReadOnly; it takes nothing. Only in the answer to PUT.
	SetReadOnly SetPhase = "ReadOnly"
)

// SetState is how a set is in the member.
type SetState struct {
	ID     string   `json:"id"`
	Digest string   `json:"digest"`
	Phase  SetPhase `json:"phase"`
	// Message says more where no object can. At most 512 bytes.
	Message string `json:"message,omitempty"`
	// Objects that are not as they should be: the first MaxSetObjects.
	Objects []SetObject `json:"objects,omitempty"`
	// Failed is how many objects are not as they should be.
	Failed int32 `json:"failed,omitempty"`
	// Namespaces is how many namespaces the templates are expanded for.
	Namespaces int32 `json:"namespaces,omitempty"`
	// Short are the first MaxSetObjects namespaces that got less quota than the default.
	Short []string `json:"short,omitempty"`
	// Spent are the first MaxSetObjects of them that got nothing of some resource. An older agent names none.
	Spent []string `json:"spent,omitempty"`
}

// SetObject is an object that differs from what it should be.
type SetObject struct {
	// Object is kind, namespace and name: "ResourceQuota web/drover-project".
	Object string `json:"object"`
	// Phase is Conflict, Fighting, RoleMissing, Failed or Pending.
	Phase SetPhase `json:"phase"`
	// Message says what is wrong and what to do. It holds nothing of an object's content. At most 512 bytes.
	Message string `json:"message"`
}

// SetEvent is what a Line says of sets: exactly one of its fields is set.
type SetEvent struct {
	// State of a set, new or changed.
	State *SetState `json:"state,omitempty"`
	// Removed is the id of a set that was removed.
	Removed string `json:"removed,omitempty"`
	// Checkpoint is the latest that the hub has sent.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Synced means that all present sets have been sent.
	Synced bool `json:"synced,omitempty"`
	// Stopped means that the replica no longer leads: no more changes follow before it begins again.
	Stopped bool `json:"stopped,omitempty"`
}

// Bound cuts a state to size.
func (s *SetState) Bound() {
	s.ID, s.Digest, s.Phase = Cut(s.ID, set.MaxID), Cut(s.Digest, maxText), SetPhase(Cut(string(s.Phase), maxText))
	s.Message = Cut(s.Message, maxMessage)
	s.Failed, s.Namespaces = max(s.Failed, 0), max(s.Namespaces, 0)
	s.Objects = slices.Clone(s.Objects[:min(len(s.Objects), MaxSetObjects)])
	for i := range s.Objects {
		o := &s.Objects[i]
		o.Object, o.Phase, o.Message = Cut(o.Object, maxMessage), SetPhase(Cut(string(o.Phase), maxText)), Cut(o.Message, maxMessage)
	}
	for _, names := range []*[]string{&s.Short, &s.Spent} {
		*names = slices.Clone((*names)[:min(len(*names), MaxSetObjects)])
		for i, name := range *names {
			(*names)[i] = Cut(name, maxText)
		}
	}
}

// Bound cuts an event to size.
func (e *SetEvent) Bound() {
	e.Removed, e.Checkpoint = Cut(e.Removed, set.MaxID), Cut(e.Checkpoint, maxText)
	if e.State != nil {
		e.State.Bound()
	}
}

// Valid reports whether the id in the event is valid.
func (e *SetEvent) Valid() bool {
	switch {
	case e.State != nil:
		return set.ValidID(e.State.ID)
	case e.Removed != "":
		return set.ValidID(e.Removed)
	}
	return true
}
