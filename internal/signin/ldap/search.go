// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
)

const (
	// page is how many entries are asked for at once. Active Directory gives at most 1000.
	page = 500
	// anyEntry is the filter that each entry matches.
	anyEntry = "(objectClass=*)"
)

// none asks for no attribute. An empty list would ask for all, of which the members of a group may be 100,000.
func none() []string { return []string{"1.1"} }

// errMany means that more entries match than a request takes.
var errMany = errors.New("more entries than are taken")

// request is a search. More than most entries are an error: errMany.
type request struct {
	what, base string
	scope      int
	filter     string
	attributes []string
	most       int
}

// search returns the entries that match. References to other servers are left out, and aliases are not followed.
func (s *session) search(r request) ([]*goldap.Entry, error) {
	// Without a limit of ours, the client would take whatever a server sends.
	ask := &goldap.SearchRequest{
		BaseDN: r.base, Scope: r.scope, DerefAliases: goldap.NeverDerefAliases, SizeLimit: r.most + 1, EnforceSizeLimit: true,
		Filter: r.filter, Attributes: r.attributes,
	}
	var paging *goldap.ControlPaging
	if r.most > page {
		paging = goldap.NewControlPaging(page)
		ask.Controls = []goldap.Control{paging}
	}
	var entries []*goldap.Entry
	for {
		s.limit()
		ask.TimeLimit = s.seconds()
		result, err := s.conn.Search(ask)
		if result != nil {
			entries = append(entries, result.Entries...)
		}
		if len(entries) > r.most {
			return nil, fmt.Errorf("%s: %s: %w: %d", s.server, r.what, errMany, r.most)
		}
		if err != nil {
			return nil, s.failed(r.what, err)
		}
		next, ok := goldap.FindControl(result.Controls, goldap.ControlTypePaging).(*goldap.ControlPaging)
		if paging == nil || !ok || len(next.Cookie) == 0 {
			return entries, nil
		}
		paging.SetCookie(next.Cookie)
	}
}

// seconds returns the time that is left, for the server.
func (s *session) seconds() int {
	deadline, ok := s.ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, int(time.Until(deadline)/time.Second))
}

// values returns the values of an attribute of an entry. Active Directory gives the first 1500 and has the rest asked
// for.
func (s *session) values(entry *goldap.Entry, name string, most int) ([][]byte, error) {
	var all [][]byte
	for {
		values, next := ranged(entry, name)
		if all = append(all, values...); len(all) > most {
			return nil, fmt.Errorf("%s: read %s of %s: %w: %d", s.server, name, bounded(entry.DN), errMany, most)
		}
		if next == 0 {
			return all, nil
		}
		if next != len(all) {
			return nil, fmt.Errorf("%s: read %s of %s: the server gave other values than it was asked for", s.server, name, bounded(entry.DN))
		}
		found, err := s.search(request{
			what: "read " + name, base: entry.DN, scope: goldap.ScopeBaseObject, filter: anyEntry, most: 1,
			attributes: []string{name + ";range=" + strconv.Itoa(next) + "-*"},
		})
		if err != nil {
			return nil, err
		}
		if len(found) != 1 {
			return nil, fmt.Errorf("%s: read %s of %s: the entry is gone", s.server, name, bounded(entry.DN))
		}
		entry = found[0]
	}
}

// ranged returns the values of an attribute in an entry, and the index of the next one if the entry has a part of them.
func ranged(entry *goldap.Entry, name string) (values [][]byte, next int) {
	for _, attribute := range entry.Attributes {
		base, option, ok := strings.Cut(attribute.Name, ";range=")
		switch {
		case !strings.EqualFold(base, name):
		case !ok:
			values = append(values, attribute.ByteValues...)
		default:
			values = append(values, attribute.ByteValues...)
			if _, last, _ := strings.Cut(option, "-"); last != "*" {
				// A number that cannot be read, or that is not the last one of these, is found by the caller.
				n, err := strconv.Atoi(last)
				if err != nil {
					n = -2
				}
				next = n + 1
			}
		}
	}
	return values, next
}
