// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ldap asks OpenLDAP, FreeIPA and Active Directory who a user is and which groups they are in.
package ldap

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
	"golang.org/x/sync/semaphore"
	"golang.org/x/text/unicode/norm"

	"github.com/drover-dev/drover/internal/signin/connector"
)

// Bounds of what a user types.
const (
	maxTyped    = 256
	maxPassword = 1024
)

// Connector is the connector of one directory. Each call has a connection of its own, at most maxConnections at once: a
// login binds as the user in between, and what is kept open must be found dead by a user. A connection costs a TLS
// handshake, at a login and then at each refresh.
type Connector struct {
	*parsed
	seats *semaphore.Weighted
	last  atomic.Int32  // the index of the server that served last
	most  int           // groups of a user
	dial  time.Duration // for the way to one server
	now   func() time.Time
}

var (
	_ connector.Password  = (*Connector)(nil)
	_ connector.Refresher = (*Connector)(nil)
)

// New returns the connector of a directory, which it does not ask yet.
func New(c Config) (*Connector, error) {
	setBounds()
	p, err := parse(c)
	if err != nil {
		return nil, err
	}
	return &Connector{parsed: p, seats: semaphore.NewWeighted(maxConnections), most: maxGroups, dial: p.Timeout / dialShare, now: time.Now}, nil
}

// Login returns the user of a name and a password.
func (c *Connector) Login(ctx context.Context, name, password string) (connector.User, error) {
	// A bind with a name and no password is an anonymous one and succeeds (RFC 4513 §5.1.2).
	if password == "" || len(password) > maxPassword {
		return connector.User{}, refuse("the password is empty or too long")
	}
	// Directories take forms of a name for the same, which would each have attempts of their own: with more spaces, with
	// wide letters.
	if name == "" || len(name) > maxTyped || !printable(name) || strings.TrimSpace(name) != name || strings.Contains(name, "  ") || !norm.NFKC.IsNormalString(name) {
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
		// What a bind changes, such as an old lock, is read after it.
		return c.read(s, dn)
	})
}

// Refresh returns a user who signed in before as the directory has them now, wherever in it they are.
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

// Check reports whether a server takes the service account and has the bases of users and groups.
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

// ask returns the user of the account that find finds, if the directory lets them in.
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

// allows reports whether one of the groups may sign in.
func (c *Connector) allows(groups []string) bool {
	for _, group := range groups {
		if c.allowed[group] {
			return true
		}
	}
	return len(c.allowed) == 0
}
