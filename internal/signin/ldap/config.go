// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	goldap "github.com/go-ldap/ldap/v3"
)

// Config is the configuration of a directory.
type Config struct {
	// Servers are tried in order. Their form is ldaps://host[:port], or ldap://host[:port] for StartTLS. Connections
	// always use TLS.
	Servers []string
	// Roots is used to verify the servers' certificates. If Roots is nil, the system's roots are used.
	Roots *x509.CertPool
	// BindDN is the name of the service account: a DN, or another form that the server accepts, such as drover@example.com
	// for Active Directory.
	BindDN string
	// BindPassword returns the password of the service account. It is called for each connection, so a new password
	// takes effect immediately.
	BindPassword func(context.Context) (string, error)
	Users        Users
	Groups       Groups
	// AllowedGroups lists the groups whose members may sign in. A user must be in at least one of them. If the list is
	// empty, every user may sign in.
	AllowedGroups []string
	// Timeout is the time limit for a whole login, refresh or check. 0 means 10 s.
	Timeout time.Duration
}

// Users describes where users are and which attributes they have.
type Users struct {
	// Base is the DN of the subtree that is searched for users.
	Base string
	// Filter finds a user, for example (&(objectClass=person)(uid={name})). {name} is replaced with the name that the user
	// entered, escaped for use in a filter. On a refresh, {name} is replaced with *, so the rest of the filter determines
	// which users may refresh.
	Filter string
	// ID is the attribute that identifies a user, such as entryUUID, ipaUniqueID or objectGUID. Its values must never
	// be assigned to another user.
	ID string
	// Name is the attribute that holds the user's name. Principals contain the value in lower case. The value must be
	// unique in the subtree.
	Name string
}

// Source determines how a user's groups are read.
type Source string

const (
	// TokenGroups means that the hub reads the SIDs that Active Directory computes for a user. They include all
	// security groups, even nested ones.
	TokenGroups Source = "TokenGroups"
	// MemberOf means that the hub reads the user's memberOf attribute. FreeIPA provides this attribute, as does
	// OpenLDAP with the memberof overlay.
	MemberOf Source = "MemberOf"
	// Search means that the hub searches for groups that contain the user.
	Search Source = "Search"
)

// Groups describes how the groups of a user are found.
type Groups struct {
	Source Source
	// Base is the DN of the subtree that is searched for groups. Groups outside this subtree are ignored.
	Base string
	// Filter finds the groups that contain a user or, for nested groups, another group. {dn} is the DN of the user or
	// group, and {name} is the name of the user. TokenGroups does not use the filter. MemberOf uses it only for nested
	// groups, with the default (member={dn}).
	Filter string
	// Name is the attribute that holds the name of a group. Principals contain the value in lower case. The value must be
	// unique in the subtree. With MemberOf, the name is taken from the first component of the group's DN.
	Name string
	// Depth is the number of levels of nested groups to search. If Depth is 0, only the user's direct groups are found.
	// TokenGroups always includes all levels.
	Depth int
}

// Limits on a configuration, and on data from a directory.
const (
	maxServers     = 8
	maxDepth       = 10
	defaultTimeout = 10 * time.Second
	maxTimeout     = time.Minute
)

// parsed is a validated Config.
type parsed struct {
	Config
	servers   []server
	find      template
	member    template
	groupBase *goldap.DN
	allowed   map[string]bool
}

type server struct {
	url, host, address string
	startTLS           bool
}

func parse(c Config) (*parsed, error) {
	p := &parsed{Config: c, allowed: map[string]bool{}}
	if len(c.Servers) == 0 || len(c.Servers) > maxServers {
		return nil, fmt.Errorf("name 1 to %d servers, not %d", maxServers, len(c.Servers))
	}
	for _, text := range c.Servers {
		s, err := parseServer(text)
		if err != nil {
			return nil, err
		}
		p.servers = append(p.servers, s)
	}
	if c.BindDN == "" || c.BindPassword == nil {
		return nil, errors.New("name a service account and its password, because users are searched with its rights")
	}
	if p.Timeout == 0 {
		p.Timeout = defaultTimeout
	}
	if p.Timeout < 0 || p.Timeout > maxTimeout {
		return nil, fmt.Errorf("the time limit is %s; it must be above 0 and at most %s", c.Timeout, maxTimeout)
	}
	for _, name := range c.AllowedGroups {
		normal, err := normalize(name)
		if err != nil {
			return nil, fmt.Errorf("allowed group %q: %w", name, err)
		}
		p.allowed[normal] = true
	}
	if err := p.parseUsers(); err != nil {
		return nil, err
	}
	return p, p.parseGroups()
}

func parseServer(text string) (server, error) {
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || (*u != url.URL{Scheme: u.Scheme, Host: u.Host}) {
		return server{}, fmt.Errorf("server %q: it must be ldaps://host[:port], or ldap://host[:port] for StartTLS",
			bounded(text))
	}
	s := server{url: text, host: u.Hostname()}
	port := goldap.DefaultLdapsPort
	switch u.Scheme {
	case "ldaps":
	case "ldap":
		s.startTLS, port = true, goldap.DefaultLdapPort
	default:
		return server{}, fmt.Errorf("server %q: the scheme must be ldaps, or ldap for StartTLS", bounded(text))
	}
	if u.Port() != "" {
		port = u.Port()
	}
	s.address = net.JoinHostPort(s.host, port)
	return s, nil
}

func (p *parsed) parseUsers() error {
	if _, err := parseBase(p.Users.Base); err != nil {
		return fmt.Errorf("base of users: %w", err)
	}
	var err error
	if p.find, err = parseTemplate(p.Users.Filter, placeName); err != nil {
		return fmt.Errorf("filter of users: %w", err)
	}
	// A refresh replaces the name with *.
	if _, err := goldap.CompileFilter(p.find.any()); err != nil {
		return fmt.Errorf("filter of users: %s cannot be put where a * is not allowed", placeName)
	}
	for use, attribute := range map[string]string{"ID": p.Users.ID, "name": p.Users.Name} {
		if err := checkAttribute(attribute); err != nil {
			return fmt.Errorf("attribute for the %s of users: %w", use, err)
		}
	}
	return nil
}

func (p *parsed) parseGroups() error {
	g := p.Groups
	if g.Source == "" {
		return errors.New("specify where groups are read: TokenGroups, MemberOf or Search")
	}
	var err error
	if p.groupBase, err = parseBase(g.Base); err != nil {
		return fmt.Errorf("base of groups: %w", err)
	}
	if err := checkAttribute(g.Name); err != nil {
		return fmt.Errorf("attribute for the name of groups: %w", err)
	}
	searches := g.Source == Search || g.Source == MemberOf && g.Depth > 0
	if searches && g.Source == MemberOf && g.Filter == "" {
		g.Filter = "(member={dn})"
	}
	switch {
	case g.Source != TokenGroups && g.Source != MemberOf && g.Source != Search:
		return fmt.Errorf("groups are read from TokenGroups, MemberOf or Search, not from %q", g.Source)
	case g.Depth < 0 || g.Depth > maxDepth:
		return fmt.Errorf("nested groups are followed for 0 to %d levels, not %d", maxDepth, g.Depth)
	case g.Source == TokenGroups && g.Depth > 0:
		return errors.New("tokenGroups has all nested groups: omit the depth")
	case !searches && g.Filter != "":
		return fmt.Errorf("groups are read from %s without a search: omit their filter", g.Source)
	case !searches:
		return nil
	}
	if p.member, err = parseTemplate(g.Filter, placeDN, placeName); err != nil {
		return fmt.Errorf("filter of groups: %w", err)
	}
	if g.Depth > 0 && (!p.member.has(placeDN) || p.member.has(placeName)) {
		return fmt.Errorf("filter of groups: to follow nested groups it must have %s and not %s, because groups name "+
			"groups by their DN", placeDN, placeName)
	}
	return nil
}

func parseBase(text string) (*goldap.DN, error) {
	dn, err := goldap.ParseDN(text)
	if err != nil || len(dn.RDNs) == 0 {
		return nil, fmt.Errorf("%q is not a DN", bounded(text))
	}
	return dn, nil
}

// attributeForm matches the names of attributes without options.
var attributeForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]{0,63}$`)

// checkAttribute rejects attributes that list the members of a group, because reading them takes minutes for a large
// group. It also rejects attributes with passwords.
func checkAttribute(name string) error {
	if !attributeForm.MatchString(name) {
		return fmt.Errorf("%q is not the name of an attribute", bounded(name))
	}
	never := []string{"member", "uniqueMember", "memberUid", "memberOf", "userPassword", "unicodePwd", "sambaNTPassword",
		"krbPrincipalKey"}
	if slices.ContainsFunc(never, func(n string) bool { return strings.EqualFold(n, name) }) {
		return fmt.Errorf("%s is not a name or an ID", name)
	}
	return nil
}
