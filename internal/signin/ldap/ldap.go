// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ldap queries OpenLDAP, FreeIPA and Active Directory for a user and the user's groups.
package ldap

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
	"golang.org/x/sync/semaphore"
	"golang.org/x/text/unicode/norm"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// Limits on a user's input.
const (
	maxTyped    = 256
	maxPassword = 1024
)

// Connector queries one directory. Each call uses its own connection, and at most maxConnections are open at the same
// time. Connections are not shared, because a login temporarily binds as the user. Idle connections are not kept,
// because the next login would fail if such a connection were dead. Each login and refresh therefore needs a TLS
// handshake.
type Connector struct {
	*parsed
	seats *semaphore.Weighted
	last  atomic.Int32  // the index of the most recently used server
	most  int           // the maximum number of groups of a user
	dial  time.Duration // the time limit for connecting to one server
	now   func() time.Time
}

var (
	_ connector.Password  = (*Connector)(nil)
	_ connector.Refresher = (*Connector)(nil)
)

// New returns the connector for a directory. It does not connect to the directory.
func New(c Config) (*Connector, error) {
	setBounds()
	p, err := parse(c)
	if err != nil {
		return nil, err
	}
	return &Connector{parsed: p, seats: semaphore.NewWeighted(maxConnections), most: maxGroups,
		dial: p.Timeout / dialShare, now: time.Now}, nil
}

// Login returns the user with the given name and password.
func (c *Connector) Login(ctx context.Context, name, password string) (connector.User, error) {
	// A bind with a name and an empty password is an anonymous bind and succeeds (RFC 4513 §5.1.2).
	if password == "" || len(password) > maxPassword {
		return connector.User{}, refuse("the password is empty or too long")
	}
	// Directories treat several forms of a name as equal, such as forms with extra spaces or full-width letters. If all
	// forms were allowed, failed attempts would be counted separately for each form.
	if name == "" || len(name) > maxTyped || !printable(name) || strings.TrimSpace(name) != name ||
		strings.Contains(name, "  ") || !norm.NFKC.IsNormalString(name) {
		return connector.User{}, refuse("the name is empty, too long or malformed")
	}
	return c.ask(ctx, func(s *session) (account, error) {
		dn, err := c.locate(s, c.find.fill(name, ""))
		if err != nil {
			return account{}, err
		}
		if err := s.bindUser(dn, password); err != nil {
			return account{}, err
		}
		if err := s.bindAccount(); err != nil {
			return account{}, err
		}
		// A bind may change the entry. For example, it may reset an expired lock. Therefore, the entry is read after
		// the bind.
		return c.read(s, dn)
	})
}

// Refresh queries the directory again for a user who signed in before. It also finds an entry that was moved within the
// directory.
func (c *Connector) Refresh(ctx context.Context, last connector.User) (connector.User, error) {
	byID, err := c.byID(last.ID)
	if err != nil {
		return connector.User{}, err
	}
	return c.ask(ctx, func(s *session) (account, error) {
		dn, err := c.locate(s, both(c.find.any(), byID))
		if err != nil {
			return account{}, err
		}
		a, err := c.read(s, dn)
		switch {
		case err != nil:
			return account{}, err
		case a.id != last.ID:
			return account{}, refuse("the entry has another %s now", c.Users.ID)
		case len(last.State) > 0 && a.changed != string(last.State):
			return account{}, refuse("the password was changed after the user signed in")
		}
		return a, nil
	})
}

// Check reports whether a server accepts the service account and whether the search bases for users and groups exist.
func (c *Connector) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	s, err := c.connect(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	for _, base := range []string{c.Users.Base, c.Groups.Base} {
		found, err := s.search(request{
			what: "read " + base, base: base, scope: goldap.ScopeBaseObject, filter: anyEntry, attributes: none(), most: 1,
		})
		if err == nil && len(found) != 1 {
			err = fmt.Errorf("%s: read %s: the service account may not read it", s.server, base)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ask calls find, and converts the account that find returns to a user. It refuses a user who is not in any allowed
// group.
func (c *Connector) ask(ctx context.Context, find func(*session) (account, error)) (connector.User, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	s, err := c.connect(ctx)
	if err != nil {
		return connector.User{}, err
	}
	defer s.close()
	a, err := find(s)
	if err != nil {
		return connector.User{}, err
	}
	if err := c.unique(s, a); err != nil {
		return connector.User{}, err
	}
	groups, err := c.groups(s, a)
	if err != nil {
		return connector.User{}, err
	}
	if !c.allows(groups) {
		return connector.User{}, refuse("%s is in none of the allowed groups", a.name)
	}
	return connector.User{ID: a.id, Name: a.name, Groups: groups, State: []byte(a.changed)}, nil
}

func (c *Connector) allows(groups []string) bool {
	return len(c.allowed) == 0 || slices.ContainsFunc(groups, func(group string) bool { return c.allowed[group] })
}
