// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	goldap "github.com/go-ldap/ldap/v3"

	"github.com/drover-dev/drover/internal/signin/connector"
	"github.com/drover-dev/drover/test/testkit/directory"
)

// relaxRules lets an administrator set attributes that otherwise only the server sets.
const relaxRules = "1.3.6.1.4.1.4203.666.5.12"

func TestUserSignsInOverLDAPSAndStartTLS(t *testing.T) {
	s := openldap(t)
	for _, url := range []string{s.LDAPS, s.LDAP} {
		c := settings(s)
		c.Servers = []string{url}
		user, err := connectorOf(t, c).Login(t.Context(), "aLICE", "password of Alice")
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		if user.Name != "alice" || !regexp.MustCompile(`^[0-9a-f-]{36}$`).MatchString(user.ID) {
			t.Errorf("%s: the user is %q with ID %q, expected alice with a UUID", url, user.Name, user.ID)
		}
		same(t, "groups", user.Groups, []string{"crowd", "developers"})
	}
}

func TestRejectedLoginsAreRefusalsAndNotErrors(t *testing.T) {
	c := connectorOf(t, settings(openldap(t)))
	for name, tt := range map[string]struct{ user, password, words string }{
		"wrong password":             {"Alice", "guessed", "as wrong"},
		"no user of this name":       {"mallory", "password of Alice", "no user"},
		"every user":                 {"*", "password of Alice", "no user"},
		"a part of a name":           {"Ali*", "password of Alice", "no user"},
		"a second condition":         {"Alice)(uid=*", "password of Alice", "no user"},
		"another filter":             {"x)(|(uid=Alice", "password of Alice", "no user"},
		"an escape":                  {`\41lice`, "password of Alice", "no user"},
		"a NUL":                      {"Alice\x00", "password of Alice", "malformed"},
		"a trailing space":           {"Alice ", "password of Alice", "malformed"},
		"wide letters":               {"\uff21lice", "password of Alice", "malformed"},
		"no name":                    {"", "password of Alice", "name is empty"},
		"a name that is not UTF-8":   {"Alice\xff", "password of Alice", "malformed"},
		"a name of a mebibyte":       {strings.Repeat("a", 1<<20), "x", "too long"},
		"a password of a mebibyte":   {"Alice", strings.Repeat("a", 1<<20), "too long"},
		"a placeholder in the name":  {"{dn}", "password of Alice", "no user"},
		"the service account's name": {"drover", "service secret", "no user"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := c.Login(t.Context(), tt.user, tt.password)
			refused(t, err, tt.words)
			if tt.user != "" && strings.Contains(err.Error(), tt.user) || strings.Contains(err.Error(), tt.password) {
				t.Errorf("the error repeats what was typed, which may be a password: %v", err)
			}
		})
	}
}

func logOf(t testing.TB, s *directory.Server) string {
	t.Helper()
	text, err := s.Log()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// RFC 4513 §5.1.2: a bind with a name and without a password succeeds, as an anonymous one.
func TestEmptyPasswordIsRefusedBeforeABind(t *testing.T) {
	s := openldap(t)
	uid := newUser(t, s)
	c := connectorOf(t, settings(s))
	binds := func() int { return strings.Count(logOf(t, s), fmt.Sprintf("BIND dn=%q", dnOf(uid))) }
	_, err := c.Login(t.Context(), uid, "")
	refused(t, err, "password is empty")
	if binds() != 0 {
		t.Error("a bind with an empty password reached the server")
	}
	login(t, c, uid)
	if binds() == 0 {
		t.Error("the log does not show binds: this test proves nothing")
	}
}

func TestSeveralEntriesThatMatchAreRefused(t *testing.T) {
	s := openldap(t)
	mail := attribute("mail", newName("shared")+"@example.org")
	first := newUser(t, s, mail)
	newUser(t, s, mail)
	newUser(t, s, mail)
	c := settings(s)
	c.Users.Filter = "(|(uid={name})(mail={name}))"
	_, err := connectorOf(t, c).Login(t.Context(), mail.Vals[0], "password of "+first)
	refused(t, err, "several users")
}

// A user who may add entries in one branch could otherwise take the name of a user in another branch.
func TestUserWithTheNameOfAnotherIsRefused(t *testing.T) {
	s := openldap(t)
	victim, mail := newUser(t, s), newName("thief")+"@example.org"
	unit := "ou=" + newName("branch") + ",ou=people," + directory.Suffix
	add(t, s, unit, attribute("objectClass", "organizationalUnit"))
	add(t, s, "cn=thief,"+unit, attribute("objectClass", "inetOrgPerson"), attribute("cn", "thief"),
		attribute("sn", "thief"),
		attribute("uid", strings.ToUpper(victim)), attribute("mail", mail), attribute("userPassword", "known to the thief"))
	c := settings(s)
	c.Users.Filter = "(mail={name})"
	_, err := connectorOf(t, c).Login(t.Context(), mail, "known to the thief")
	refused(t, err, "must belong to one user")
}

func TestUserIsInTenThousandGroups(t *testing.T) {
	s := openldap(t)
	for _, source := range []Source{Search, MemberOf} {
		c := settings(s)
		c.Groups.Source = source
		if source == MemberOf {
			c.Groups.Filter = ""
		}
		asked := connectorOf(t, c)
		user := login(t, asked, "many")
		if len(user.Groups) != many || !slices.Contains(user.Groups, "many-9999") {
			t.Errorf("%s: %d groups, expected %d", source, len(user.Groups), many)
		}
		asked.most = many - 1
		_, err := asked.Login(t.Context(), "many", "password of many")
		unasked(t, err, "more than 9999 groups: narrow the base or the filter")
	}
}

// Rancher #26061: the members of each group were fetched, which took more than a minute.
func TestMembersOfAGroupAreNeverRequested(t *testing.T) {
	s := openldap(t)
	before := len(logOf(t, s))
	for _, source := range []Source{Search, MemberOf} {
		c := settings(s)
		c.Groups.Source, c.Groups.Depth = source, 2
		asked := connectorOf(t, c)
		user, err := asked.Login(t.Context(), "alice", "password of Alice")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := asked.Refresh(t.Context(), user); err != nil {
			t.Fatal(err)
		}
		if err := asked.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	wanted := 0
	written := logOf(t, s)[before:]
	for line := range strings.Lines(written) {
		switch _, attributes, ok := strings.Cut(line, " SRCH attr="); {
		case ok:
			wanted++
			for _, attribute := range strings.Fields(strings.ToLower(attributes)) {
				if slices.Contains([]string{"member", "uniquemember", "memberuid", "*", "+"}, attribute) {
					t.Errorf("the server was asked for %s: %s", attribute, line)
				}
			}
		case strings.Contains(line, " SRCH base="):
			wanted--
		}
	}
	// A search that names no attribute requests all attributes, and has no line of attributes in the log.
	if wanted != 0 || !strings.Contains(written, " SRCH attr=1.1") {
		t.Errorf("%d searches named no attribute, and so asked for all", -wanted)
	}
}

func TestGroupsInGroupsAreFollowedToADepthAndCyclesEnd(t *testing.T) {
	s := openldap(t)
	for depth, want := range [][]string{{"crowd", "developers"}, {"crowd", "developers", "staff"},
		{"company", "crowd", "developers", "staff"}, 10: {"company", "crowd", "developers", "staff"}} {
		if want == nil {
			continue
		}
		c := settings(s)
		c.Groups.Depth = depth
		user, err := connectorOf(t, c).Login(t.Context(), "alice", "password of Alice")
		if err != nil {
			t.Fatal(err)
		}
		same(t, fmt.Sprintf("groups over %d levels", depth), user.Groups, want)
	}
}

func TestMemberOfHasGroupsInGroupsToo(t *testing.T) {
	s := openldap(t)
	uid, inner, outer := newUser(t, s), newName("group"), newName("group")
	dn := "cn=" + inner + ",ou=groups," + directory.Suffix
	add(t, s, dn, attribute("objectClass", "groupOfNames"), attribute("member", dnOf(uid)))
	add(t, s, "cn="+outer+",ou=groups,"+directory.Suffix, attribute("objectClass", "groupOfNames"),
		attribute("member", dn))
	c := settings(s)
	c.Groups = Groups{Source: MemberOf, Base: c.Groups.Base, Name: "cn", Depth: 1}
	same(t, "groups", login(t, connectorOf(t, c), uid).Groups, []string{inner, outer})
}

func TestMemberOfTakesGroupsBelowTheBaseOnly(t *testing.T) {
	s := openldap(t)
	uid := newUser(t, s)
	inside, outside := newName("group"), newName("group")
	add(t, s, "cn="+inside+",ou=groups,"+directory.Suffix, attribute("objectClass", "groupOfNames"),
		attribute("member", dnOf(uid)))
	add(t, s, "cn="+outside+",ou=people,"+directory.Suffix, attribute("objectClass", "groupOfNames"),
		attribute("member", dnOf(uid)))
	for _, source := range []Source{Search, MemberOf} {
		c := settings(s)
		c.Groups.Source = source
		if source == MemberOf {
			c.Groups.Filter = ""
		}
		same(t, "groups by "+string(source), login(t, connectorOf(t, c), uid).Groups, []string{inside})
	}
}

func TestGroupsThatNameTheirMembersByUID(t *testing.T) {
	s := openldap(t)
	uid, name := newUser(t, s), newName("group")
	add(t, s, "cn="+name+",ou=groups,"+directory.Suffix, attribute("objectClass", "posixGroup"),
		attribute("gidNumber", "1"), attribute("memberUid", uid))
	c := settings(s)
	c.Groups.Filter = "(|(member={dn})(memberUid={name}))"
	same(t, "groups", login(t, connectorOf(t, c), uid).Groups, []string{name})
}

// CVE-2022-22975: a user who may rename their own entry could put a filter into its name, and thereby into the search
// for their groups.
func TestNameOfAnEntryIsEscapedInTheSearchForItsGroups(t *testing.T) {
	s := openldap(t)
	for _, cn := range []string{"*", "x)(cn=*)(cn=", "x)(objectClass=groupOfNames)(cn="} {
		uid := newName("user")
		dn := goldap.DN{RDNs: []*goldap.RelativeDN{{Attributes: []*goldap.AttributeTypeAndValue{{Type: "cn",
			Value: cn + uid}}}}}
		add(t, s, dn.String()+",ou=people,"+directory.Suffix, attribute("objectClass", "inetOrgPerson"),
			attribute("uid", uid), attribute("cn", cn+uid),
			attribute("sn", uid), attribute("userPassword", "password of "+uid))
		c := settings(s)
		c.Groups.Filter = "(|(member={dn})(memberUid={name}))"
		same(t, "groups of cn="+cn, login(t, connectorOf(t, c), uid).Groups, nil)
	}
}

// CVE-2021-21411: the option that names groups was read but had no effect.
func TestOnlyAllowedGroupsSignIn(t *testing.T) {
	s := openldap(t)
	c := settings(s)
	c.AllowedGroups = []string{"Developers"}
	asked := connectorOf(t, c)
	if _, err := asked.Login(t.Context(), "alice", "password of Alice"); err != nil {
		t.Errorf("a user in an allowed group must be let in: %v", err)
	}
	uid := newUser(t, s)
	_, err := asked.Login(t.Context(), uid, "password of "+uid)
	refused(t, err, "none of the allowed groups")
}

// CVE-2023-22648: groups changed in the directory and stayed until the next login.
func TestRefreshFindsAMovedUser(t *testing.T) {
	s := openldap(t)
	c := connectorOf(t, settings(s))
	uid, name := newUser(t, s), newName("group")
	groupDN := "cn=" + name + ",ou=groups," + directory.Suffix
	add(t, s, groupDN, attribute("objectClass", "groupOfNames"), attribute("member", dnOf(uid), dnOf("member-0")))
	user := login(t, c, uid)
	same(t, "groups at first", user.Groups, []string{name})

	unit := "ou=" + newName("branch") + ",ou=people," + directory.Suffix
	add(t, s, unit, attribute("objectClass", "organizationalUnit"))
	change(t, s, func(conn *goldap.Conn) error {
		return conn.ModifyDN(goldap.NewModifyDNRequest(dnOf(uid), "uid="+uid, false, unit))
	})
	moved, err := c.Refresh(t.Context(), user)
	if err != nil || moved.ID != user.ID || moved.Name != uid {
		t.Fatalf("a user who moved must stay the same: %+v, %v", moved, err)
	}
	same(t, "groups after the move", moved.Groups, []string{name})

	replace(t, s, groupDN, "member", dnOf("member-0"))
	left, err := c.Refresh(t.Context(), user)
	if err != nil || len(left.Groups) != 0 {
		t.Fatalf("a user who left the group must have none: %+v, %v", left, err)
	}
}

// CVE-2023-22650: a user was removed in the directory, and tokens stayed valid.
func TestRefreshRefusesUsersWhoMayNoLongerSignIn(t *testing.T) {
	s := openldap(t)
	c := connectorOf(t, settings(s))
	for name, tt := range map[string]struct {
		words  string
		change func(uid string)
	}{
		"deleted": {"no user", func(uid string) {
			change(t, s, func(conn *goldap.Conn) error { return conn.Del(goldap.NewDelRequest(dnOf(uid), nil)) })
		}},
		"deleted, and another made with the name": {"no user", func(uid string) {
			change(t, s, func(conn *goldap.Conn) error { return conn.Del(goldap.NewDelRequest(dnOf(uid), nil)) })
			add(t, s, dnOf(uid), attribute("objectClass", "inetOrgPerson"), attribute("cn", uid), attribute("sn", uid))
		}},
		"locked": {"is locked", func(uid string) { replace(t, s, dnOf(uid), attributeLocked, "000001010000Z") }},
		"reset":  {"changed", func(uid string) { replace(t, s, dnOf(uid), attributeReset, "TRUE") }},
		"ended":  {"expired", func(uid string) { replace(t, s, dnOf(uid), attributeEnd, "20200101000000Z") }},
		"with a new password": {
			"password was changed", func(uid string) { replace(t, s, dnOf(uid), "userPassword", "another") },
		},
		"with the name of another": {"must belong to one user", func(uid string) {
			other := newUser(t, s)
			replace(t, s, dnOf(other), "uid", other, uid)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			uid := newUser(t, s)
			// The time has no fractions of a second: a change within the same one would not be seen.
			old := goldap.NewModifyRequest(dnOf(uid), []goldap.Control{goldap.NewControlString(relaxRules, true, "")})
			old.Replace("pwdChangedTime", []string{"20200101000000Z"})
			change(t, s, func(conn *goldap.Conn) error { return conn.Modify(old) })
			user := login(t, c, uid)
			tt.change(uid)
			_, err := c.Refresh(t.Context(), user)
			refused(t, err, tt.words)
		})
	}
	_, err := c.Refresh(t.Context(), connector.User{ID: "*"})
	refused(t, err, "no user")
}

func TestUserWhoMustChangeThePasswordIsRefused(t *testing.T) {
	s := openldap(t)
	for words, attributes := range map[string][]goldap.Attribute{
		"the password policy: Password must be changed": {
			attribute(attributeReset, "TRUE"), attribute("pwdPolicySubentry", directory.StrictPolicy),
		},
		"must have its password changed first": {attribute(attributeReset, "TRUE")},
	} {
		uid := newUser(t, s)
		for _, a := range attributes {
			replace(t, s, dnOf(uid), a.Type, a.Vals...)
		}
		_, err := connectorOf(t, settings(s)).Login(t.Context(), uid, "password of "+uid)
		refused(t, err, words)
	}
}

func TestLockedUserIsRefusedWithTheRightPassword(t *testing.T) {
	s := openldap(t)
	uid := newUser(t, s)
	replace(t, s, dnOf(uid), attributeLocked, "000001010000Z")
	_, err := connectorOf(t, settings(s)).Login(t.Context(), uid, "password of "+uid)
	refused(t, err, "locked")
}

// Anyone can type wrong passwords. The lock makes the directory refuse the correct password for a while, and must not
// end sessions.
func TestWrongPasswordsOfOthersEndNoSession(t *testing.T) {
	s := openldap(t)
	c := connectorOf(t, settings(s))
	uid := newUser(t, s, attribute("pwdPolicySubentry", directory.StrictPolicy))
	user := login(t, c, uid)
	for range 3 {
		_, err := c.Login(t.Context(), uid, "guessed")
		refused(t, err, "as wrong")
	}
	_, err := c.Login(t.Context(), uid, "password of "+uid)
	refused(t, err, "locked")
	if _, err := c.Refresh(t.Context(), user); err != nil {
		t.Errorf("the session ends with %v, want it to go on", err)
	}
	replace(t, s, dnOf(uid), attributeLocked, "20200101000000Z") // the lock has ended but stays in the entry
	if _, err := c.Refresh(t.Context(), user); err != nil {
		t.Errorf("the session ends with %v after the lock, want it to go on", err)
	}
	login(t, c, uid)
}

// slapd accepts times in each of these forms.
func TestTimesAreReadAsTheServerReadsThem(t *testing.T) {
	s := openldap(t)
	c := connectorOf(t, settings(s))
	for end, ended := range map[string]bool{"203012312359Z": false, "20301231235959+0100": false, "2030123123Z": false,
		"202001010000Z": true, "20200101000000-0500": true} {
		uid := newUser(t, s)
		replace(t, s, dnOf(uid), attributeEnd, end)
		_, err := c.Login(t.Context(), uid, "password of "+uid)
		if ended {
			refused(t, err, "expired")
		} else if err != nil {
			t.Errorf("a password that ends at %s: %v, want the user to be let in", end, err)
		}
	}
}

func TestReferralsAreNotFollowed(t *testing.T) {
	s := openldap(t)
	stranger := listener(t, func(conn recorded) {}) // the test fails if it is asked
	name := newName("elsewhere")
	change(t, s, func(conn *goldap.Conn) error {
		ask := goldap.NewAddRequest("ou="+name+",ou=people,"+directory.Suffix,
			[]goldap.Control{goldap.NewControlManageDsaIT(true)})
		ask.Attribute("objectClass", []string{"referral", "extensibleObject"})
		ask.Attribute("ou", []string{name})
		ask.Attribute("ref", []string{"ldap://" + stranger.address + "/ou=people," + directory.Suffix})
		return conn.Add(ask)
	})
	c := settings(s)
	// The search ignores the reference and finds the users on this server.
	if _, err := connectorOf(t, c).Login(t.Context(), "alice", "password of Alice"); err != nil {
		t.Error(err)
	}
	c.Users.Base = "ou=" + name + ",ou=people," + directory.Suffix
	_, err := connectorOf(t, c).Login(t.Context(), "alice", "password of Alice")
	unasked(t, err, "referrals are not followed")
	if stranger.asked() != 0 {
		t.Error("the other server was asked")
	}
}

func TestRefusedServiceAccountIsAnErrorWithoutItsPassword(t *testing.T) {
	s := openldap(t)
	c := settings(s)
	c.Servers = []string{s.LDAPS, s.LDAP}
	c.BindPassword = secret("not the service secret")
	before := len(logOf(t, s))
	_, err := connectorOf(t, c).Login(t.Context(), "alice", "password of Alice")
	unasked(t, err, "check its name and its Secret")
	if strings.Contains(err.Error(), "not the service secret") {
		t.Errorf("the error has the password: %v", err)
	}
	// The second server would only count another failure and lock the account.
	if n := strings.Count(logOf(t, s)[before:], fmt.Sprintf("BIND dn=%q", s.BindDN)); n != 1 {
		t.Errorf("%d binds with a wrong password, expected one", n)
	}
}

func TestChangedPasswordOfTheServiceAccountIsUsedAtOnce(t *testing.T) {
	s := openldap(t)
	c, current := settings(s), "old"
	c.BindPassword = func(context.Context) (string, error) { return current, nil }
	asked := connectorOf(t, c)
	unasked(t, asked.Check(t.Context()), "Invalid Credentials")
	current = s.BindPassword
	if err := asked.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestCheckSaysWhichBaseIsMissing(t *testing.T) {
	c := settings(openldap(t))
	c.Groups.Base = "ou=nowhere," + directory.Suffix
	unasked(t, connectorOf(t, c).Check(t.Context()),
		"read ou=nowhere,"+directory.Suffix+": No Such Object (32): the entry does not exist, or the service account may not read it")
}

// Data that a server does not show must not look like a user without groups, or like a missing user.
func TestUnreadableEntriesAreErrors(t *testing.T) {
	s := openldap(t)
	uid := newUser(t, s)
	c := settings(s)
	c.BindDN, c.BindPassword = dnOf(uid), secret("password of "+uid) // has no rights
	_, err := connectorOf(t, c).Login(t.Context(), "many", "password of many")
	unasked(t, err, "the service account may not read it")
	c.BindDN, c.BindPassword = directory.LimitedDN, secret(directory.LimitedPassword)
	_, err = connectorOf(t, c).Login(t.Context(), "many", "password of many")
	unasked(t, err, "the server limits how much the service account may read: raise its limits")
}
