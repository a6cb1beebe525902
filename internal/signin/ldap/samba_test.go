// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"fmt"
	"regexp"
	"slices"
	"testing"

	goldap "github.com/go-ldap/ldap/v3"

	"github.com/drover-dev/drover/test/testkit/directory"
)

func samba(t testing.TB) *directory.Server { return domainController.get(t, directory.StartSamba) }

func inDomain(name string) string { return "CN=" + name + ",CN=Users," + directory.Domain }

// domain returns the configuration for a server of Active Directory.
func domain(s *directory.Server) Config {
	c := settings(s)
	c.Users, c.Groups = activeDirectory(directory.Domain, directory.Domain)
	return c
}

func newDomainUser(t testing.TB, s *directory.Server) string {
	t.Helper()
	name := newName("User")
	add(t, s, inDomain(name), attribute("objectClass", "user"), attribute("sAMAccountName", name),
		attribute("userPrincipalName", name+"@ad.test"),
		attribute("userAccountControl", "512"), attribute("unicodePwd", directory.UnicodePassword("password of "+name)))
	return name
}

func newDomainGroup(t testing.TB, s *directory.Server, members ...string) string {
	t.Helper()
	name := newName("Group")
	add(t, s, inDomain(name), attribute("objectClass", "group"), attribute("sAMAccountName", name),
		attribute("member", members...))
	return name
}

func TestUserOfADomainSignsInWithNestedGroups(t *testing.T) {
	s := samba(t)
	name := newDomainUser(t, s)
	inner := newDomainGroup(t, s, inDomain(name))
	outer := newDomainGroup(t, s, inDomain(inner))
	change(t, s, func(conn *goldap.Conn) error { // and so in itself
		ask := goldap.NewModifyRequest(inDomain(inner), nil)
		ask.Add("member", []string{inDomain(outer)})
		return conn.Modify(ask)
	})
	lower := func(names ...string) []string {
		var all []string
		for _, n := range names {
			normal, err := normalize(n)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, normal)
		}
		slices.Sort(all)
		return all
	}
	chain := domain(s)
	chain.Groups = Groups{Source: Search, Base: directory.Domain, Filter: "(member:1.2.840.113556.1.4.1941:={dn})",
		Name: "sAMAccountName"}
	direct := domain(s)
	direct.Groups = Groups{Source: MemberOf, Base: "CN=Users," + directory.Domain, Name: "cn"}
	upn := domain(s)
	upn.Users.Filter, upn.Users.Name = "(&(objectClass=user)(userPrincipalName={name}@ad.test))", "userPrincipalName"
	upn.Servers = []string{s.LDAP}
	for what, tt := range map[string]struct {
		config Config
		name   string
		groups []string
	}{
		"tokenGroups":               {domain(s), lower(name)[0], lower("Domain Users", "Users", inner, outer)},
		"a search along the chain":  {chain, lower(name)[0], lower(inner, outer)},
		"memberOf":                  {direct, lower(name)[0], lower(inner)},
		"userPrincipalName as name": {upn, lower(name)[0] + "@ad.test", lower("Domain Users", "Users", inner, outer)},
	} {
		user := login(t, connectorOf(t, tt.config), name)
		if user.Name != tt.name || !regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(user.ID) {
			t.Errorf("%s: the user is %q with ID %q, expected %q with a GUID", what, user.Name, user.ID, tt.name)
		}
		same(t, what, user.Groups, tt.groups)
	}
}

func TestUserOfADomainIsInManyGroups(t *testing.T) {
	s := samba(t)
	const groups = 2*batch + 1
	name := newDomainUser(t, s)
	change(t, s, func(conn *goldap.Conn) error {
		for range groups {
			group := newName("Group")
			ask := goldap.NewAddRequest(inDomain(group), nil)
			ask.Attribute("objectClass", []string{"group"})
			ask.Attribute("sAMAccountName", []string{group})
			ask.Attribute("member", []string{inDomain(name)})
			if err := conn.Add(ask); err != nil {
				return fmt.Errorf("add a group: %w", err)
			}
		}
		return nil
	})
	if user := login(t, connectorOf(t, domain(s)), name); len(user.Groups) != groups+2 {
		t.Errorf("%d groups, expected %d, Domain Users and Users", len(user.Groups), groups)
	}
}

func TestUserOfADomainIsRefused(t *testing.T) {
	s := samba(t)
	c := connectorOf(t, domain(s))
	unit := "OU=elsewhere," + directory.Domain
	for what, tt := range map[string]struct {
		words  string
		change func(name string)
	}{
		"disabled": {"is disabled", func(name string) { replace(t, s, inDomain(name), attributeControl, "514") }},
		"expired": {
			"has expired", func(name string) { replace(t, s, inDomain(name), attributeExpires, "132223104000000000") },
		},
		"deleted": {"no user", func(name string) { remove(t, s, inDomain(name)) }},
		"with a new password": {"password was changed", func(name string) {
			replace(t, s, inDomain(name), "unicodePwd", directory.UnicodePassword("another password"))
		}},
	} {
		t.Run(what, func(t *testing.T) {
			name := newDomainUser(t, s)
			user := login(t, c, name)
			tt.change(name)
			_, err := c.Refresh(t.Context(), user)
			refused(t, err, tt.words)
			if what != "with a new password" {
				_, err = c.Login(t.Context(), name, "password of "+name)
				refused(t, err, "")
			}
		})
	}
	t.Run("but keeps the session when others have guessed", func(t *testing.T) {
		name := newDomainUser(t, s)
		user := login(t, c, name)
		for range 3 {
			_, err := c.Login(t.Context(), name, "guessed")
			refused(t, err, "as wrong")
		}
		_, err := c.Login(t.Context(), name, "password of "+name)
		refused(t, err, "the account as locked")
		if _, err := c.Refresh(t.Context(), user); err != nil {
			t.Errorf("the session ends with %v, want it to go on: anyone can guess", err)
		}
	})
	t.Run("but not one who was moved and renamed", func(t *testing.T) {
		name := newDomainUser(t, s)
		user := login(t, c, name)
		change(t, s, func(conn *goldap.Conn) error {
			ask := goldap.NewAddRequest(unit, nil)
			ask.Attribute("objectClass", []string{"organizationalUnit"})
			if err := conn.Add(ask); err != nil && !goldap.IsErrorWithCode(err, goldap.LDAPResultEntryAlreadyExists) {
				return err
			}
			return conn.ModifyDN(goldap.NewModifyDNRequest(inDomain(name), "CN=moved "+name, true, unit))
		})
		moved, err := c.Refresh(t.Context(), user)
		if err != nil || moved.ID != user.ID || moved.Name != user.Name {
			t.Errorf("the user must stay the same: %+v, %v", moved, err)
		}
	})
	t.Run("who must change the password", func(t *testing.T) {
		name := newDomainUser(t, s)
		replace(t, s, inDomain(name), "pwdLastSet", "0")
		_, err := c.Login(t.Context(), name, "password of "+name)
		refused(t, err, "as wrong, or the account as locked")
	})
	t.Run("with an empty password or a wrong name", func(t *testing.T) {
		name := newDomainUser(t, s)
		_, err := c.Login(t.Context(), name, "")
		refused(t, err, "password is empty")
		_, err = c.Login(t.Context(), name[:4]+"*", "password of "+name)
		refused(t, err, "no user")
	})
}

func remove(t testing.TB, s *directory.Server, dn string) {
	t.Helper()
	change(t, s, func(conn *goldap.Conn) error { return conn.Del(goldap.NewDelRequest(dn, nil)) })
}
