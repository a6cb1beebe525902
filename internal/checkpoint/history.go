// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package checkpoint tells a hub whose etcd was restored from one that was restarted, and holds back what a restored
// hub would change in its members and hosts until an administrator confirms it.
//
// A checkpoint is one renewal of the leader's Lease. The leader sends the latest with each set, and agents keep it. The
// Lease has the history of leaders and how often each renewed it, so a leader can tell whether the hub remembers a
// checkpoint. A restored hub does not remember those that were sent after the backup, whatever its revisions are now.
// Nothing is written for this beside the Lease.
package checkpoint

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// maxTerms is the number of terms that a history has, about 13 KB of text. Older checkpoints count as remembered.
const maxTerms = 500

// term is the time in which one manager led.
type term struct {
	number   int32  // transitions of the Lease
	id       string // of the manager's process
	renewals uint64 // of the Lease in this term, the first is 1
}

// history has the latest terms of one Lease, the oldest first.
type history struct {
	lease string // UID of the Lease: a Lease that was made anew has another history
	terms []term
}

// point is a checkpoint.
type point struct {
	lease string
	term
}

// String returns the form in which a checkpoint is sent.
func (p point) String() string {
	return fmt.Sprintf("%s/%d/%s/%d", p.lease, p.number, p.id, p.renewals)
}

// term returns the name of the latest term. All checkpoints of one term have it in common.
func (h history) term() string {
	last, ok := h.last()
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s/%d/%s", last.lease, last.number, last.id)
}

var pointForm = regexp.MustCompile(`^([a-zA-Z0-9-]{1,64})/([0-9]{1,9})/([a-zA-Z0-9]{1,32})/([0-9]{1,19})$`)

// parsePoint reads a checkpoint. An agent may have sent anything.
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

// renew returns the history with one more renewal by a process. Its term begins with the first.
func (h history) renew(number int32, id string) history {
	terms := append([]term(nil), h.terms...)
	if n := len(terms); n == 0 || terms[n-1].id != id {
		terms = append(terms, term{number: number, id: id})
	}
	terms[len(terms)-1].renewals++
	return history{lease: h.lease, terms: terms[max(0, len(terms)-maxTerms):]}
}

// forgot reports whether a checkpoint is one of this hub's that its history has no place for.
//
// A checkpoint of another Lease is none of this hub's: it was restored into another cluster, or the Lease was deleted.
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

// last returns the latest checkpoint, if the history has a term.
func (h history) last() (point, bool) {
	if len(h.terms) == 0 {
		return point{}, false
	}
	return point{lease: h.lease, term: h.terms[len(h.terms)-1]}, true
}

// String returns the terms as the Lease's annotation has them.
func (h history) String() string {
	parts := make([]string, len(h.terms))
	for i, t := range h.terms {
		parts[i] = fmt.Sprintf("%d/%s/%d", t.number, t.id, t.renewals)
	}
	return strings.Join(parts, " ")
}

// parseHistory reads the annotation of a Lease. One that cannot be read is none: a history begins.
func parseHistory(lease, text string) history {
	h := history{lease: lease}
	for part := range strings.FieldsSeq(text) {
		p, ok := parsePoint("x/" + part) // a term has the form of a checkpoint without the Lease
		if !ok {
			return history{lease: lease}
		}
		h.terms = append(h.terms, p.term)
	}
	return h
}
