// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goldap "github.com/go-ldap/ldap/v3"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/test/testkit/directory"
)

// many is the number of groups of the user "many", and the number of members of the group "crowd".
const many = 10_000

// shared is a server that tests share. The first one that needs it starts it.
type shared struct {
	once   sync.Once
	server *directory.Server
	err    error
}

var slapd, domainController shared

func TestMain(m *testing.M) {
	m.Run()
	for _, s := range []*shared{&slapd, &domainController} {
		if s.server != nil {
			s.server.Stop()
		}
	}
}

func (s *shared) get(t testing.TB, start func(context.Context) (*directory.Server, error)) *directory.Server {
	t.Helper()
	s.once.Do(func() { s.server, s.err = start(t.Context()) })
	if errors.Is(s.err, directory.ErrMissing) {
		t.Skip(s.err)
	}
	if s.err != nil {
		t.Fatal(s.err)
	}
	return s.server
}

// openldap returns slapd with some people and groups, and with one user in many groups and a group of many members.
func openldap(t testing.TB) *directory.Server {
	return slapd.get(t, func(ctx context.Context) (*directory.Server, error) {
		var b strings.Builder
		person(&b, "Alice", "ou=people", "alice@example.org")
		person(&b, "many", "ou=people", "many@example.org")
		for i := range many {
			fmt.Fprintf(&b, "memberOf: cn=many-%d,ou=groups,%s\n", i, directory.Suffix)
		}
		b.WriteString("\n")
		for i := range many {
			group(&b, fmt.Sprintf("many-%d", i), dnOf("many"))
		}
		members := make([]string, many)
		for i := range members {
			members[i] = dnOf(fmt.Sprintf("member-%d", i))
		}
		group(&b, "crowd", append(members, dnOf("Alice"))...)
		group(&b, "Developers", dnOf("Alice"))
		group(&b, "staff", "cn=Developers,ou=groups,"+directory.Suffix, "cn=company,ou=groups,"+directory.Suffix)
		group(&b, "company", "cn=staff,ou=groups,"+directory.Suffix) // and so in itself
		return directory.StartOpenLDAP(ctx, b.String())
	})
}

func dnOf(uid string) string { return "uid=" + uid + ",ou=people," + directory.Suffix }

// person writes an entry. The caller ends it with an empty line.
func person(b *strings.Builder, uid, unit, mail string) {
	fmt.Fprintf(b, "\ndn: uid=%s,%s,%s\nobjectClass: inetOrgPerson\nuid: %s\ncn: %s\nsn: %s\nmail: %s\nuserPassword: password of %s\n",
		uid, unit, directory.Suffix, uid, uid, uid, mail, uid)
}

func group(b *strings.Builder, name string, members ...string) {
	fmt.Fprintf(b, "\ndn: cn=%s,ou=groups,%s\nobjectClass: groupOfNames\ncn: %s\nmember: %s\n",
		name, directory.Suffix, name, strings.Join(members, "\nmember: "))
}

// newUser adds a user with a new name to the directory and returns the name.
func newUser(t testing.TB, s *directory.Server, more ...goldap.Attribute) string {
	t.Helper()
	uid := newName("user")
	add(t, s, dnOf(uid), append(more, attribute("objectClass", "inetOrgPerson"), attribute("uid", uid),
		attribute("cn", uid), attribute("sn", uid),
		attribute("userPassword", "password of "+uid))...)
	return uid
}

var names struct {
	mu   sync.Mutex // guards next
	next int
}

func newName(kind string) string {
	names.mu.Lock()
	defer names.mu.Unlock()
	names.next++
	return fmt.Sprintf("%s-%d", kind, names.next)
}

func attribute(name string, values ...string) goldap.Attribute {
	return goldap.Attribute{Type: name, Vals: values}
}

func add(t testing.TB, s *directory.Server, dn string, attributes ...goldap.Attribute) {
	t.Helper()
	change(t, s, func(c *goldap.Conn) error { return c.Add(&goldap.AddRequest{DN: dn, Attributes: attributes}) })
}

func replace(t testing.TB, s *directory.Server, dn, name string, values ...string) {
	t.Helper()
	ask := goldap.NewModifyRequest(dn, nil)
	ask.Replace(name, values)
	change(t, s, func(c *goldap.Conn) error { return c.Modify(ask) })
}

// change changes the directory as its administrator.
func change(t testing.TB, s *directory.Server, f func(*goldap.Conn) error) {
	t.Helper()
	conn, err := s.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := f(conn); err != nil {
		t.Fatal(err)
	}
}

// settings returns the configuration for a server of OpenLDAP. Its timeout is long enough for a machine that is busy
// with other tests.
func settings(s *directory.Server) Config {
	users, groups := openLDAP("ou=people,"+directory.Suffix, "ou=groups,"+directory.Suffix)
	return Config{
		Servers: []string{s.LDAPS}, Roots: s.Roots(), BindDN: s.BindDN, BindPassword: secret(s.BindPassword), Users: users, Groups: groups, Timeout: maxTimeout,
	}
}

func secret(text string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) { return text, nil }
}

func connectorOf(t testing.TB, c Config) *Connector {
	t.Helper()
	made, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// login signs in a user with the password that newUser set.
func login(t testing.TB, c *Connector, name string) connector.User {
	t.Helper()
	user, err := c.Login(t.Context(), name, "password of "+name)
	if err != nil {
		t.Fatalf("%s is refused with %v, want the user signed in", name, err)
	}
	return user
}

// refused fails the test unless the directory answered and did not let the user in, for a reason that contains words.
func refused(t testing.TB, err error, words string) {
	t.Helper()
	if !errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), words) {
		t.Errorf("got the error %[2]v, want a refusal with %[1]q", words, err)
	}
}

// unasked fails the test unless the directory could not be queried, for a reason that contains words.
func unasked(t testing.TB, err error, words string) {
	t.Helper()
	if err == nil || errors.Is(err, connector.ErrRefused) || !strings.Contains(err.Error(), words) {
		t.Errorf("got the error %[2]v, want an error with %[1]q that is not a refusal", words, err)
	}
}

func same(t testing.TB, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: %q, want %q", what, got, want)
	}
}

// within returns a context for a call that must not take the configured timeout.
func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
