// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/expansion"
)

// PathSets on the agent answers GET with a stream of SetEvents, one JSON object a line: the state of each set that is there, then
// one that says Synced, then each change. It ends when the replica stops leading.
//
// PathSets + "/" + id takes a Set by PUT, and removes it by DELETE. Both answer 200 with the resulting SetState, which is
// Pending if that takes longer than SetTimeout. An id needs no escaping: see ValidSetID.
//
// Only the leader among the agent's replicas serves sets; another answers 421. An agent without sets answers 404. 413 means
// that the set is larger than MaxSet, 422 that it is refused permanently, and why.
const PathSets = "/v1/sets"

// FeatureSets among Report.Features says that the agent takes sets.
const FeatureSets = "sets"

// Bounds of sets.
const (
	// MaxSet is the size of a Set's JSON in bytes.
	MaxSet = 8 << 20
	// MaxSetEvent is the length of a line of PathSets in bytes.
	MaxSetEvent = 64 << 10
	// MaxSetObjects is how many objects a SetState names.
	MaxSetObjects = 10
	// SetTimeout is after how long an agent answers that a set is Pending.
	SetTimeout = 10 * time.Second

	maxSetID = 320 // a kind and the longest name that Kubernetes has
)

// setID is what DNS names and a kind before them make: no segment of a path could be empty or dots only.
var setID = regexp.MustCompile(`^[a-z]+(/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`)

// ValidSetID reports whether a set can have this id: "kind/name", or "kind" for the only one of its kind.
func ValidSetID(id string) bool { return len(id) <= maxSetID && setID.MatchString(id) }

// SetPath is where a set of this id is put and deleted.
func SetPath(id string) string { return PathSets + "/" + id }

// SetOfPath returns the id in a path, and false if there is no valid one.
func SetOfPath(path string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, PathSets+"/")
	return id, ok && ValidSetID(id)
}

// Set is what one hub object wants in one member.
type Set struct {
	// ID names the hub object: "crtb/alice-owns-prod".
	ID string `json:"id"`
	// Digest of all else, see NewSet.
	Digest string `json:"digest"`
	// ExpiresAt is when the agent removes the set's objects, by its own clock. Nil for never.
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	// Content is what the member is to have.
	Content expansion.Content `json:"content"`
}

// NewSet makes a set with its digest. It fails for an invalid id and for more than MaxSet.
func NewSet(id string, expiresAt *time.Time, content expansion.Content) (Set, error) {
	if expiresAt != nil {
		utc := expiresAt.UTC()
		expiresAt = &utc
	}
	s := Set{ID: id, ExpiresAt: expiresAt, Content: content}
	digest, err := s.digest()
	if err != nil {
		return Set{}, err
	}
	s.Digest = digest
	return s, nil
}

// digest is the SHA-256 in hex of the set's JSON without the digest. The JSON is canonical: Go writes fields in their order and the keys
// of maps sorted.
func (s Set) digest() (string, error) {
	if !ValidSetID(s.ID) {
		return "", fmt.Errorf("make set %q: no valid id", Cut(s.ID, maxText))
	}
	s.Digest = ""
	raw, err := json.Marshal(s)
	if err != nil {
		return "", fmt.Errorf("make set %s: %w", s.ID, err)
	}
	if len(raw) > MaxSet {
		return "", fmt.Errorf("make set %s: it has %d bytes, at most %d are sent: split what it is made of", s.ID, len(raw), MaxSet)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:]), nil
}

// Check returns an error if a set does not match its digest. If hub and agent differ in what a set can hold, they differ in the digest too.
func (s Set) Check() error {
	digest, err := s.digest()
	if err != nil {
		return err
	}
	if digest != s.Digest {
		return fmt.Errorf("check set %s: its digest is another: hub and agent may differ in version", s.ID)
	}
	return nil
}

// SetPhase is how far a set is.
type SetPhase string

const (
	// SetApplied says: the member has all of it, and nothing that it no longer holds.
	SetApplied SetPhase = "Applied"
	// SetPending says: it is being applied, or a binding in it waits for the set that brings its role.
	SetPending SetPhase = "Pending"
	// SetConflict says: an object of that name is not Drover's, another field manager holds a field, or a binding is not made because its role is
	// not Drover's. It is tried again.
	SetConflict SetPhase = "Conflict"
	// SetFighting says: something changes an object back each time that it is repaired.
	SetFighting SetPhase = "Fighting"
	// SetRoleMissing says: the member has no ClusterRole of the name that a binding binds. It is looked for again.
	SetRoleMissing SetPhase = "RoleMissing"
	// SetFailed says: the API server refused some of it. It is tried again.
	SetFailed SetPhase = "Failed"
	// SetExpired says: its time has passed, and the member has nothing of it any more.
	SetExpired SetPhase = "Expired"
	// SetDeleted says: it was removed. Only in the answer to DELETE.
	SetDeleted SetPhase = "Deleted"
	// SetReadOnly says: the agent's profile is ReadOnly; it takes nothing. Only in the answer to PUT.
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

// SetEvent is a line of PathSets: exactly one of its fields is set.
type SetEvent struct {
	// State of a set, new or changed.
	State *SetState `json:"state,omitempty"`
	// Removed is the id of a set that was removed.
	Removed string `json:"removed,omitempty"`
	// Synced means that all present sets have been sent.
	Synced bool `json:"synced,omitempty"`
}

// Bound cuts a state to size.
func (s *SetState) Bound() {
	s.ID, s.Digest, s.Phase = Cut(s.ID, maxSetID), Cut(s.Digest, maxText), SetPhase(Cut(string(s.Phase), maxText))
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
	e.Removed = Cut(e.Removed, maxSetID)
	if e.State != nil {
		e.State.Bound()
	}
}

// Valid reports whether the id in the event is valid.
func (e *SetEvent) Valid() bool {
	switch {
	case e.State != nil:
		return ValidSetID(e.State.ID)
	case e.Removed != "":
		return ValidSetID(e.Removed)
	}
	return true
}

// SetGuards is the id of the set with the policies that guard the others. An agent that removes all removes it last.
const SetGuards = "guards"
