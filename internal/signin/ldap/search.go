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
	// page is the page size for searches. Active Directory returns at most 1000 entries.
	page = 500
	// anyEntry is a filter that matches every entry.
	anyEntry = "(objectClass=*)"
)

// none returns a list that requests no attributes. An empty list would request all attributes, including up to 100,000
// members of a group.
func none() []string { return []string{"1.1"} }

// errMany is returned if more entries match than the request allows.
var errMany = errors.New("more entries than allowed")

// request is a search. most is the maximum number of matching entries. If more entries match, search returns errMany.
type request struct {
	what, base string
	scope      int
	filter     string
	attributes []string
	most       int
}

// search returns the matching entries. It ignores referrals to other servers and does not follow aliases.
func (s *session) search(r request) ([]*goldap.Entry, error) {
	// Without this limit, the client would accept any number of entries from a server.
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

// seconds returns the remaining time in seconds. Search requests contain this time limit.
func (s *session) seconds() int {
	deadline, ok := s.ctx.Deadline()
	if !ok {
		return 0
	}
	return max(1, int(time.Until(deadline)/time.Second))
}

// values returns all values of an entry's attribute. Active Directory returns at most 1500 values at a time, so the
// client has to request the rest.
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
			return nil, fmt.Errorf("%s: read %s of %s: the server returned other values than requested", s.server, name,
				bounded(entry.DN))
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

// ranged returns the values of an attribute that an entry contains. If the server has more values, ranged also returns
// the index of the next one.
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
				// The caller detects an index that is invalid or that does not match the number of values.
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
