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

// PathSets + "/" + id is the path of a set on the agent. A PUT request stores a set.Set, and a DELETE request removes
// it. The agent responds to both with 200 and the resulting SetState. If applying the request takes longer than
// SetTimeout, the SetState is Pending. An ID needs no escaping; see set.ValidID. State changes are streamed on
// PathReport.
//
// Only the replica that is the leader serves sets. Other replicas respond with 421. A response with 413 means that the
// set is larger than set.MaxSize. A response with 422 is a permanent refusal, and its body contains the reason.
const PathSets = "/v1/sets"

// FeatureSets in Report.Features means that the agent accepts sets and reports them on PathReport. Older agents have
// the feature "sets" and a separate stream.
const FeatureSets = "sets/2"

// FeatureBaselines in Report.Features means that the agent applies the objects of Baselines.
const FeatureBaselines = "baselines"

// BasicSet reports whether an agent without FeatureBaselines supports the kind of set that an ID belongs to.
func BasicSet(id string) bool { return id != set.Values && !strings.HasPrefix(id, set.Baseline+"/") }

// Limits for sets.
const (
	// MaxSetObjects is the maximum number of objects that are listed in a SetState.
	MaxSetObjects = 10
	// SetTimeout is the time after which an agent responds that a set is still Pending.
	SetTimeout = 10 * time.Second
)

// SetPath returns the path of the set with the given ID.
func SetPath(id string) string { return PathSets + "/" + id }

// QueryCheckpoint is the query parameter of PathSets that contains the hub's checkpoint. The checkpoint is the hub's
// position in its history. The agent keeps the latest checkpoint, and reports it on PathReport before Synced. Only the
// hub interprets checkpoints, with one exception: if two checkpoints differ only in the number after the last slash,
// the checkpoint with the larger number is the later one.
const QueryCheckpoint = "checkpoint"

var checkpointForm = regexp.MustCompile(`^[A-Za-z0-9/-]+$`)

const maxCheckpoint = 128 // bytes

// ValidCheckpoint reports whether a checkpoint has the accepted form.
func ValidCheckpoint(checkpoint string) bool {
	return len(checkpoint) <= maxCheckpoint && checkpointForm.MatchString(checkpoint)
}

// OlderCheckpoint reports whether a checkpoint belongs to the same term as another checkpoint and precedes it. The
// hub sends several sets at the same time, so a delayed set may arrive with an older checkpoint.
func OlderCheckpoint(checkpoint, than string) bool {
	term := than[:strings.LastIndexByte(than, '/')+1]
	text, same := strings.CutPrefix(checkpoint, term)
	number, err := strconv.ParseUint(text, 10, 64)
	last, invalid := strconv.ParseUint(than[len(term):], 10, 64)
	return same && err == nil && invalid == nil && number < last
}

// SetPathAt returns SetPath with a checkpoint in the query. The checkpoint may be empty.
func SetPathAt(id, checkpoint string) string {
	if checkpoint == "" {
		return SetPath(id)
	}
	return SetPath(id) + "?" + url.Values{QueryCheckpoint: {checkpoint}}.Encode()
}

// SetOfPath returns the set ID in a path. It returns false if the path contains no valid ID.
func SetOfPath(path string) (id string, ok bool) {
	id, ok = strings.CutPrefix(path, PathSets+"/")
	return id, ok && set.ValidID(id)
}

// SetPhase is the progress of a set.
type SetPhase string

const (
	// SetApplied means that the member has the whole set, and none of the objects that were removed from the set.
	SetApplied SetPhase = "Applied"
	// SetPending means that the set is being applied, or that a binding in it is waiting for the set that contains its
	// role.
	SetPending SetPhase = "Pending"
	// SetConflict means that the agent cannot apply an object. Possible reasons are that an object with the same name
	// does not belong to Drover, that another field manager owns a field, that admission in the member changed the
	// object, or that the role of a binding does not belong to Drover. The agent retries.
	SetConflict SetPhase = "Conflict"
	// SetFighting means that another client reverts an object each time the agent repairs it.
	SetFighting SetPhase = "Fighting"
	// SetRoleMissing means that the member does not have the ClusterRole that a binding refers to. The agent checks
	// again.
	SetRoleMissing SetPhase = "RoleMissing"
	// SetFailed means that the API server rejected part of the set. The agent retries.
	SetFailed SetPhase = "Failed"
	// SetProgressing means that the member has all objects of a Baseline, and that some of them are not healthy yet.
	SetProgressing SetPhase = "Progressing"
	// SetUnhealthy means that an object of a Baseline has failed, or did not become healthy in time.
	SetUnhealthy SetPhase = "Unhealthy"
	// SetForbidden means that a Baseline's user lacks the rights to apply an object. The agent retries.
	SetForbidden SetPhase = "Forbidden"
	// SetDrifted means that another client has changed an object of a Baseline that reports drift without correcting
	// it.
	SetDrifted SetPhase = "Drifted"
	// SetExpired means that the set has expired, and none of its objects are left in the member.
	SetExpired SetPhase = "Expired"
	// SetDeleted means that the set has been removed. It occurs only in the response to a DELETE request.
	SetDeleted SetPhase = "Deleted"
	// SetReadOnly means that the agent has the ReadOnly profile and accepts no sets. It occurs only in the response
	// to a PUT request.
	SetReadOnly SetPhase = "ReadOnly"
)

// SetState is the state of a set in the member.
type SetState struct {
	ID     string   `json:"id"`
	Digest string   `json:"digest"`
	Phase  SetPhase `json:"phase"`
	// Message contains details that do not relate to a specific object. It is at most 512 bytes long.
	Message string `json:"message,omitempty"`
	// Objects are the first MaxSetObjects objects that are not in the desired state.
	Objects []SetObject `json:"objects,omitempty"`
	// Failed is the number of objects that are not in the desired state.
	Failed int32 `json:"failed,omitempty"`
	// Namespaces is the number of namespaces for which the set's templates are expanded.
	Namespaces int32 `json:"namespaces,omitempty"`
	// Short lists the first MaxSetObjects namespaces that received less quota than the default.
	Short []string `json:"short,omitempty"`
	// Spent lists the first MaxSetObjects namespaces that received no quota for at least one resource. Older agents
	// leave it empty.
	Spent []string `json:"spent,omitempty"`
	// Baseline is the progress of a Baseline. It is nil for other sets.
	Baseline *BaselineState `json:"baseline,omitempty"`
}

// Applied returns the state of a set that has been applied completely, if it has no templates.
func Applied(s *set.Set) *SetState {
	state := &SetState{ID: s.ID, Digest: s.Digest, Phase: SetApplied}
	if b := s.Baseline; b != nil {
		state.Baseline = &BaselineState{Revision: b.Revision, Objects: b.Objects, Healthy: b.Objects}
	}
	return state
}

// BaselineState is the progress of a Baseline in the member. The agent sends it at most once per second for each
// Baseline, except when the phase of the set changes.
type BaselineState struct {
	// Revision is the revision that the agent keeps. It is at most 128 bytes long.
	Revision string `json:"revision"`
	// Objects is the number of objects, and Healthy is the number of objects that are applied and healthy.
	Objects int32 `json:"objects"`
	Healthy int32 `json:"healthy"`
}

// SetObject describes an object that is not in the desired state.
type SetObject struct {
	// Object is the kind, namespace and name, for example "ResourceQuota web/drover-project".
	Object string `json:"object"`
	// Phase is Conflict, Fighting, RoleMissing, Failed or Pending. For an object of a Baseline, it can also be
	// Progressing, Unhealthy, Forbidden or Drifted.
	Phase SetPhase `json:"phase"`
	// Message describes the problem and how to fix it. It never contains the object's content. It is at most 512
	// bytes long.
	Message string `json:"message"`
}

// SetEvent is an event about sets in a Line. Exactly one of its fields is set.
type SetEvent struct {
	// State is the state of a new or changed set.
	State *SetState `json:"state,omitempty"`
	// Removed is the ID of a removed set.
	Removed string `json:"removed,omitempty"`
	// Checkpoint is the latest checkpoint that the hub has sent.
	Checkpoint string `json:"checkpoint,omitempty"`
	// Synced means that all existing sets have been sent.
	Synced bool `json:"synced,omitempty"`
	// Stopped means that the replica is no longer the leader. No more changes follow until the replica becomes the
	// leader again.
	Stopped bool `json:"stopped,omitempty"`
}

// Bound trims a state to its limits.
func (s *SetState) Bound() {
	s.ID, s.Digest, s.Phase = Cut(s.ID, set.MaxID), Cut(s.Digest, maxText), SetPhase(Cut(string(s.Phase), maxText))
	s.Message = Cut(s.Message, maxMessage)
	s.Failed, s.Namespaces = max(s.Failed, 0), max(s.Namespaces, 0)
	s.Objects = slices.Clone(s.Objects[:min(len(s.Objects), MaxSetObjects)])
	for i := range s.Objects {
		o := &s.Objects[i]
		o.Phase = SetPhase(Cut(string(o.Phase), maxText))
		o.Object, o.Message = Cut(o.Object, maxMessage), Cut(o.Message, maxMessage)
	}
	if s.Baseline != nil {
		b := *s.Baseline
		b.Revision, b.Objects, b.Healthy = Cut(b.Revision, maxText), max(b.Objects, 0), max(b.Healthy, 0)
		s.Baseline = &b
	}
	for _, names := range []*[]string{&s.Short, &s.Spent} {
		*names = slices.Clone((*names)[:min(len(*names), MaxSetObjects)])
		for i, name := range *names {
			(*names)[i] = Cut(name, maxText)
		}
	}
}

// Bound trims an event to its limits.
func (e *SetEvent) Bound() {
	e.Removed, e.Checkpoint = Cut(e.Removed, set.MaxID), Cut(e.Checkpoint, maxText)
	if e.State != nil {
		e.State.Bound()
	}
}

// Valid reports whether the ID in the event is valid.
func (e *SetEvent) Valid() bool {
	switch {
	case e.State != nil:
		return set.ValidID(e.State.ID)
	case e.Removed != "":
		return set.ValidID(e.Removed)
	}
	return true
}
