// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checkpoint detects that the hub's etcd was restored from a backup, and holds back the hub's changes to
// members and hosts until an administrator confirms them.
//
// A checkpoint is one renewal of the leader's Lease. The leader sends the latest checkpoint with each set, and agents
// store it. The Lease contains the history of leaders and the number of renewals by each leader, so a leader can
// determine whether the hub has a record of a checkpoint. A restored hub has no record of the checkpoints that were
// sent after the backup was taken. Nothing but the Lease has to be written.
package checkpoint

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxTerms is the maximum number of terms in a history. A history of this length takes about 13 KB. Checkpoints from
// before the oldest term are assumed to be recorded.
const maxTerms = 500

// term is the time during which one manager was the leader.
type term struct {
	number   int32  // LeaseTransitions of the Lease
	id       string // the ID of the manager's process
	renewals uint64 // number of times that the Lease was renewed in this term
}

// history holds the latest terms in one Lease, oldest first.
type history struct {
	lease string // UID of the Lease; a recreated Lease has a different history
	terms []term
}

// point is a checkpoint.
type point struct {
	lease string
	term
}

// String returns the checkpoint in its wire format.
func (p point) String() string {
	return fmt.Sprintf("%s/%d/%s/%d", p.lease, p.number, p.id, p.renewals)
}

// term returns the common prefix of all checkpoints in the latest term.
func (h history) term() string {
	last, ok := h.last()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s/%d/%s", last.lease, last.number, last.id)
}

var pointForm = regexp.MustCompile(`^([a-zA-Z0-9-]{1,64})/([0-9]{1,9})/([a-zA-Z0-9]{1,32})/([0-9]{1,19})$`)

// parsePoint decodes a checkpoint. The text comes from an agent, so it may be malformed.
func parsePoint(text string) (point, bool) {
	parts := pointForm.FindStringSubmatch(text)
	if parts == nil {
		return point{}, false
	}
	number, err := strconv.ParseInt(parts[2], 10, 32)
	if err != nil {
		return point{}, false
	}
	renewals, err := strconv.ParseUint(parts[4], 10, 64)
	return point{lease: parts[1], term: term{number: int32(number), id: parts[3], renewals: renewals}}, err == nil
}

// renew returns the history with one more renewal by the given process. The first renewal by a process starts its term.
func (h history) renew(number int32, id string) history {
	terms := append([]term(nil), h.terms...)
	if n := len(terms); n == 0 || terms[n-1].id != id {
		terms = append(terms, term{number: number, id: id})
	}
	terms[len(terms)-1].renewals++
	return history{lease: h.lease, terms: terms[max(0, len(terms)-maxTerms):]}
}

// forgot reports whether a checkpoint belongs to this hub but is missing from its history.
//
// A checkpoint from another Lease does not belong to this hub. An agent can have such a checkpoint if the hub was
// restored into another cluster, or if the Lease was deleted.
func (h history) forgot(p point) bool {
	if p.lease != h.lease || len(h.terms) == 0 {
		return false
	}
	for _, t := range h.terms {
		if t.number == p.number && t.id == p.id {
			return p.renewals > t.renewals
		}
	}
	return p.number >= h.terms[0].number
}

// last returns the latest checkpoint. It returns false if the history has no terms.
func (h history) last() (point, bool) {
	if len(h.terms) == 0 {
		return point{}, false
	}
	return point{lease: h.lease, term: h.terms[len(h.terms)-1]}, true
}

// String returns the terms in the format of the Lease's annotation.
func (h history) String() string {
	parts := make([]string, len(h.terms))
	for i, t := range h.terms {
		parts[i] = fmt.Sprintf("%d/%s/%d", t.number, t.id, t.renewals)
	}
	return strings.Join(parts, " ")
}

// parseHistory decodes the annotation of a Lease. It returns an empty history if the annotation is malformed.
func parseHistory(lease, text string) history {
	h := history{lease: lease}
	for part := range strings.FieldsSeq(text) {
		p, ok := parsePoint("x/" + part) // a term has the format of a checkpoint without the Lease's UID
		if !ok {
			return history{lease: lease}
		}
		h.terms = append(h.terms, p.term)
	}
	return h
}
