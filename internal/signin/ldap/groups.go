// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	goldap "github.com/go-ldap/ldap/v3"
)

const (
	// maxGroups is the maximum number of a user's groups. The hub refuses a user who is in more groups. An arbitrary
	// subset of the groups could grant different rights each time.
	maxGroups = 20_000
	// batch is the number of groups in one filter.
	batch = 100
)

// attribute returns the attribute of a user's entry that lists the user's groups. It returns "" if the source uses no
// such attribute.
func (s Source) attribute() string {
	switch s {
	case TokenGroups:
		return "tokenGroups"
	case MemberOf:
		return "memberOf"
	}
	return ""
}

// groups returns the sorted names of an account's groups. It never requests the members of a group.
func (c *Connector) groups(s *session, a account) ([]string, error) {
	f := &finder{directory: c, session: s, names: map[string]bool{}, seen: map[string]bool{}}
	var err error
	switch c.Groups.Source {
	case TokenGroups:
		err = f.tokens(a)
	case MemberOf:
		err = f.memberOf(a)
	default:
		err = f.searched([]string{c.member.fill(a.raw, a.dn)})
	}
	if err == nil {
		err = f.nested()
	}
	if errors.Is(err, errMany) {
		return nil, fmt.Errorf("%s is in more than %d groups: narrow the base or the filter of groups: %w", a.name, c.most,
			err)
	}
	if err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(f.names)), nil
}

// finder collects the groups of one user.
type finder struct {
	directory *Connector
	session   *session
	names     map[string]bool
	// seen contains the DNs of the groups that have been found. It prevents endless searches when two groups contain
	// each other.
	seen map[string]bool
	// last contains the DNs of the groups that were found at the last level.
	last []string
}

// tokens adds the groups that Active Directory computed for the user.
func (f *finder) tokens(a account) error {
	values, err := f.session.values(a.entry, TokenGroups.attribute(), f.directory.most)
	if err != nil {
		return err
	}
	filters := make([]string, 0, len(values))
	for _, sid := range values {
		if _, err := sidText(sid); err != nil {
			return fmt.Errorf("%s: tokenGroups of %s: %w", f.session.server, a.name, err)
		}
		filters = append(filters, equals("objectSid", string(sid)))
	}
	return f.searched(filters)
}

// memberOf adds the groups in the memberOf attribute of the user's entry. It takes the names of the groups from their
// DNs.
func (f *finder) memberOf(a account) error {
	values, err := f.session.values(a.entry, MemberOf.attribute(), f.directory.most)
	if err != nil {
		return err
	}
	for _, value := range values {
		// Ignore values that are not DNs, and groups outside the base.
		if dn, err := goldap.ParseDN(string(value)); err == nil && f.directory.groupBase.AncestorOfFold(dn) {
			f.add(string(value), firstPart(string(value), f.directory.Groups.Name))
		}
	}
	return nil
}

// searched adds the groups that match one of the filters. Each search request contains at most batch filters.
func (f *finder) searched(filters []string) error {
	for some := range slices.Chunk(filters, batch) {
		found, err := f.session.search(request{
			what: "search groups below " + f.directory.Groups.Base, base: f.directory.Groups.Base,
			scope: goldap.ScopeWholeSubtree, filter: either(some),
			attributes: []string{f.directory.Groups.Name}, most: f.directory.most,
		})
		if err != nil {
			return err
		}
		for _, entry := range found {
			f.add(entry.DN, single(entry, f.directory.Groups.Name))
		}
		if len(f.seen) > f.directory.most {
			return errMany
		}
	}
	return nil
}

// nested adds the groups that contain the groups of the last level. It repeats this for the configured number of
// levels.
func (f *finder) nested() error {
	for range f.directory.Groups.Depth {
		level := f.last
		f.last = nil
		filters := make([]string, 0, len(level))
		for _, dn := range level {
			filters = append(filters, f.directory.member.fill("", dn))
		}
		if err := f.searched(filters); err != nil {
			return err
		}
	}
	return nil
}

// add adds a group. A group without a usable name grants no rights, but it may be nested in a group that does.
func (f *finder) add(dn, name string) {
	key := strings.ToLower(dn)
	if f.seen[key] {
		return
	}
	f.seen[key] = true
	f.last = append(f.last, dn)
	if normal, err := normalize(name); err == nil {
		f.names[normal] = true
	}
}
