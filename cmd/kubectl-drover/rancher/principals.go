// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"regexp"
	"slices"
	"strings"

	v1 "github.com/drover-dev/drover/api/v1"
)

// scheme is the part of a principal's name before "://". It consists of the provider and the kind of the principal.
type scheme struct {
	provider, kind string
}

// splitPrincipal parses names such as "github_user://123". For any other name, it returns a scheme without a provider.
func splitPrincipal(id string) (scheme, string) {
	front, name, found := strings.Cut(id, "://")
	if !found || name == "" {
		return scheme{}, id
	}
	if front == localCluster || front == "system" {
		return scheme{front, "user"}, name
	}
	cut := strings.LastIndexByte(front, '_')
	if cut < 1 || front[:cut] == localCluster || front[:cut] == "system" {
		return scheme{}, id
	}
	return scheme{front[:cut], front[cut+1:]}, name
}

func (s scheme) subject() v1.SubjectKind {
	if s.kind == "user" {
		return v1.SubjectUser
	}
	return v1.SubjectGroup
}

// people holds Rancher's data about principals.
type people struct {
	users  map[string]User            // by name, such as u-xxxxx
	owners map[string][]string        // names of users, by principal
	logins map[string]map[string]bool // login names that the provider reported at a login, by principal
	groups map[string]map[string]bool // login names of groups, by principal
	orgs   map[string]map[string]bool // the organizations of a GitHub team's members, by team
	seen   map[string]bool            // all principals of users and of their groups
}

func newPeople(users []User, attributes []UserAttribute) *people {
	p := &people{users: map[string]User{}, owners: map[string][]string{}, logins: map[string]map[string]bool{}, groups: map[string]map[string]bool{}, orgs: map[string]map[string]bool{}, seen: map[string]bool{}}
	for _, u := range users {
		p.users[u.Name] = u
		for _, id := range u.PrincipalIDs {
			p.owners[id] = append(p.owners[id], u.Name)
			p.seen[id] = true
		}
	}
	for _, a := range attributes {
		for _, extra := range a.ExtraByProvider {
			// The login name belongs to the principal only if there is exactly one login name and one principal.
			if ids, logins := extra["principalid"], extra["username"]; len(ids) == 1 && len(logins) == 1 {
				note(p.logins, ids[0], logins[0])
				p.seen[ids[0]] = true
			}
		}
		for _, principals := range a.GroupPrincipals {
			p.noteGroups(principals.Items)
		}
	}
	return p
}

func note(all map[string]map[string]bool, key, value string) {
	if all[key] == nil {
		all[key] = map[string]bool{}
	}
	all[key][value] = true
}

func (p *people) noteGroups(items []GroupPrincipal) {
	var orgs []string
	for _, g := range items {
		s, _ := splitPrincipal(g.Metadata.Name)
		p.seen[g.Metadata.Name] = true
		if g.LoginName != "" {
			note(p.groups, g.Metadata.Name, g.LoginName)
		}
		if s.kind == "org" {
			orgs = append(orgs, strings.ToLower(g.LoginName))
		}
	}
	for _, g := range items {
		if s, _ := splitPrincipal(g.Metadata.Name); s.kind != "team" {
			continue
		}
		known, seen := p.orgs[g.Metadata.Name]
		if !seen {
			known = map[string]bool{}
			for _, org := range orgs {
				known[org] = true
			}
			p.orgs[g.Metadata.Name] = known
		}
		for org := range known {
			if !slices.Contains(orgs, org) {
				delete(known, org)
			}
		}
	}
}

// one returns the only element of a set, or "" if the number of elements is not one.
func one(set map[string]bool) string {
	if len(set) != 1 {
		return ""
	}
	for only := range set {
		return only
	}
	return ""
}

// Names that are valid for users and groups that sign in to the hub; see docs/spec/authprovider.md.
var (
	userName  = regexp.MustCompile(`^[a-z0-9_]([a-z0-9._@+'-]{0,126}[a-z0-9_])?$`)
	groupName = regexp.MustCompile(`^[!-9;-~]([ -9;-~]{0,254}[!-9;-~])?$`)
)

// identity is a principal's name without the provider. The name is either certain or only a suggestion.
type identity struct {
	decided, suggested, why string
}

// identify returns the name of a principal at its provider.
func (p *people) identify(id string) identity {
	s, name := splitPrincipal(id)
	switch s.provider {
	case localCluster:
		return p.identifyLocal(name)
	case "github", "githubapp":
		return p.identifyGitHub(s, id)
	case "openldap", "freeipa", "activedirectory":
		return p.identifyDirectory(s, id, name)
	case "keycloakoidc", "genericoidc", "cognito", "azuread":
		if s.kind == "group" {
			return checked(s, identity{decided: name, why: "the value of the claim that has the groups"})
		}
		return checked(s, identity{suggested: one(p.logins[id]), why: "Rancher knows the user by the claim sub; the AuthProvider's nameClaim decides the name"})
	case "":
		return identity{why: "is not a principal of a provider"}
	}
	if s.kind == "group" && s.provider != "googleoauth" {
		return checked(s, identity{suggested: name, why: "Drover does not support SAML: this is the group's name if the provider also uses it in OpenID Connect"})
	}
	return checked(s, identity{suggested: one(p.logins[id]), why: "the provider's AuthProvider in Drover decides the name"})
}

// identifyLocal returns the name of a user with a password.
func (p *people) identifyLocal(name string) identity {
	user, found := p.users[name]
	switch {
	case !found:
		return identity{why: "Rancher has no such user"}
	case len(user.elsewhere()) > 1:
		return identity{why: "the user has several principals: " + ascii(strings.Join(user.elsewhere(), ", "))}
	case user.Username == "":
		return identity{why: "the user has no user name for a password and never signed in at a provider"}
	}
	return checked(scheme{localCluster, "user"}, identity{decided: user.Username, why: "the user's name in Rancher; create the User with \"kubectl drover user create\""})
}

func (p *people) identifyGitHub(s scheme, id string) identity {
	switch s.kind {
	case "user":
		if login := one(p.logins[id]); login != "" {
			return checked(s, identity{decided: strings.ToLower(login), why: "the login when the user last signed in at Rancher"})
		}
		return identity{why: "Rancher only has the number of the account: no login is recorded"}
	case "org":
		if login := one(p.groups[id]); login != "" {
			return checked(s, identity{decided: strings.ToLower(login), why: "the organization's login when a member last signed in at Rancher"})
		}
	case "team":
		if org, slug := one(p.orgs[id]), one(p.groups[id]); org != "" && slug != "" {
			return checked(s, identity{suggested: org + "/" + strings.ToLower(slug), why: "Rancher does not record a team's organization; this is its members' only organization"})
		}
		return identity{why: "Rancher does not record a team's organization: write organization/team"}
	}
	return identity{why: "Rancher only has the number: no member has signed in since Rancher began to record logins"}
}

func (p *people) identifyDirectory(s scheme, id, dn string) identity {
	attribute, value := firstOf(dn)
	if s.kind == "group" {
		if attribute != "cn" {
			return identity{why: "the name does not begin with a plain cn="}
		}
		return checked(s, identity{decided: strings.ToLower(value), why: "the cn of the group: the AuthProvider's nameAttribute must be cn"})
	}
	if login := one(p.logins[id]); login != "" {
		return checked(s, identity{decided: strings.ToLower(login), why: "the login when the user last signed in at Rancher"})
	}
	if attribute == "uid" {
		return checked(s, identity{suggested: strings.ToLower(value), why: "the uid in the name; the user has not signed in at Rancher"})
	}
	return identity{why: "no login is recorded: the user has not signed in at Rancher"}
}

// firstOf returns the first attribute of a distinguished name, unless the attribute contains escapes or is part of a
// multi-valued RDN.
func firstOf(dn string) (attribute, value string) {
	first, _, _ := strings.Cut(dn, ",")
	attribute, value, _ = strings.Cut(first, "=")
	if strings.ContainsAny(first, `\+"#<>;`) {
		return "", ""
	}
	return strings.ToLower(strings.TrimSpace(attribute)), strings.TrimSpace(value)
}

// checked drops a name that is not valid for a user or group that signs in to the hub.
func checked(s scheme, i identity) identity {
	form := groupName
	if s.subject() == v1.SubjectUser {
		form = userName
	}
	for _, name := range []*string{&i.decided, &i.suggested} {
		if *name != "" && !form.MatchString(*name) {
			*name, i.why = "", "its name at the provider is not valid in Drover: "+ascii(*name)
		}
	}
	return i
}
