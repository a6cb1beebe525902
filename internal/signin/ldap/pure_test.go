// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

func TestUnsafeConfigurationsAreRefused(t *testing.T) {
	good := to("ldaps://ldap.example.org", nil)
	for name, tt := range map[string]struct {
		change func(*Config)
		words  string
	}{
		"no server":           {func(c *Config) { c.Servers = nil }, "name 1 to 8 servers"},
		"nine servers":        {func(c *Config) { c.Servers = make([]string, 9) }, "name 1 to 8 servers"},
		"another scheme":      {func(c *Config) { c.Servers = []string{"ldapi://x"} }, "scheme"},
		"a query":             {func(c *Config) { c.Servers = []string{"ldaps://x?y"} }, "it must be ldaps://"},
		"a user in the URL":   {func(c *Config) { c.Servers = []string{"ldaps://u@x"} }, "it must be ldaps://"},
		"no account":          {func(c *Config) { c.BindDN = "" }, "service account"},
		"no password":         {func(c *Config) { c.BindPassword = nil }, "service account"},
		"two minutes":         {func(c *Config) { c.Timeout = 2 * time.Minute }, "at most 1m0s"},
		"no base of users":    {func(c *Config) { c.Users.Base = "" }, "base of users"},
		"no base of groups":   {func(c *Config) { c.Groups.Base = "groups" }, "base of groups"},
		"filter without name": {func(c *Config) { c.Users.Filter = "(uid=alice)" }, "must have {name}"},
		"filter cut":          {func(c *Config) { c.Users.Filter = "(uid={name}" }, "not a filter"},
		"name as attribute":   {func(c *Config) { c.Users.Filter = "({name}=alice)" }, "must be a value"},
		"name negated":        {func(c *Config) { c.Users.Filter = "(!(uid={name}))" }, "must be a value"},
		"name compared by <=": {func(c *Config) { c.Users.Filter = "(uid<={name})" }, "must be a value"},
		"unknown placeholder": {func(c *Config) { c.Users.Filter = "(&(uid={name})(cn={dn}))" }, "no other placeholder"},
		"members as names":    {func(c *Config) { c.Groups.Name = "Member" }, "not a name"},
		"hashes as names":     {func(c *Config) { c.Users.Name = "userpassword" }, "not a name"},
		"all attributes":      {func(c *Config) { c.Users.Name = "*" }, "not the name of an attribute"},
		"no source":           {func(c *Config) { c.Groups.Source = "" }, "specify where groups are read"},
		"unknown source":      {func(c *Config) { c.Groups.Source = "Members" }, "not from"},
		"too deep":            {func(c *Config) { c.Groups.Depth = 11 }, "0 to 10 levels"},
		"depth by name": {
			func(c *Config) { c.Groups.Depth, c.Groups.Filter = 1, "(memberUid={name})" }, "it must have {dn}",
		},
		"depth of tokenGroups": {func(c *Config) { c.Groups.Source, c.Groups.Depth = TokenGroups, 1 }, "omit the depth"},
		"filter unused":        {func(c *Config) { c.Groups.Source = TokenGroups }, "omit their filter"},
		"allowed, not a name":  {func(c *Config) { c.AllowedGroups = []string{"ops\u200b"} }, "allowed group"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			tt.change(&c)
			if _, err := New(c); err == nil || !strings.Contains(err.Error(), tt.words) {
				t.Errorf("got the error %[2]v, want a refusal with %[1]q", tt.words, err)
			}
		})
	}
	if _, err := New(good); err != nil {
		t.Errorf("the unchanged configuration gives the error %v, want none", err)
	}
}

func TestEachKindOfDirectoryHasAUsableConfiguration(t *testing.T) {
	for name, of := range map[string]func(string, string) (Users, Groups){"OpenLDAP": openLDAP, "FreeIPA": freeIPA,
		"ActiveDirectory": activeDirectory} {
		c := to("ldap://ldap.example.org", nil)
		c.Users, c.Groups = of("dc=example,dc=org", "dc=example,dc=org")
		if _, err := New(c); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestEmptyPasswordOfTheServiceAccountIsNotSent(t *testing.T) {
	s := listener(t, drain)
	c := to("ldap://"+s.address, nil)
	c.BindPassword = secret("")
	unasked(t, connectorOf(t, c).Check(t.Context()), "password of the service account is empty")
	c.BindPassword = func(context.Context) (string, error) { return "", fmt.Errorf("no Secret x") }
	unasked(t, connectorOf(t, c).Check(t.Context()), "read the password of the service account: no Secret x")
	if s.asked() != 0 {
		t.Error("the server was asked, want no request")
	}
}

func TestGeneralizedTimesAreParsedInAllForms(t *testing.T) {
	for text, want := range map[string]string{
		"20261123120000Z": "2026-11-23T12:00:00Z", "202611231200Z": "2026-11-23T12:00:00Z", "2026112312Z": "2026-11-23T12:00:00Z",
		"20261123120000.5Z": "2026-11-23T12:00:00.5Z", "20261123120000,25Z": "2026-11-23T12:00:00.25Z", "202611231200.5Z": "2026-11-23T12:00:30Z", "2026112312.5Z": "2026-11-23T12:30:00Z",
		"20261123130000+0100": "2026-11-23T12:00:00Z", "202611231300+01": "2026-11-23T12:00:00Z", "2026112306-0600": "2026-11-23T12:00:00Z", "20261123173000.0+0530": "2026-11-23T12:00:00Z",
		"20261231235960Z": "2027-01-01T00:00:00Z", "20261231235960.5Z": "2027-01-01T00:00:00.5Z", "000001010000Z": "0000-01-01T00:00:00Z", "99991231235959Z": "9999-12-31T23:59:59Z",
	} {
		if at, err := generalizedTime(text); err != nil || at.UTC().Format(time.RFC3339Nano) != want {
			t.Errorf("%s is %s, %v, want %s", text, at.UTC().Format(time.RFC3339Nano), err, want)
		}
	}
	for _, text := range []string{
		"", "x", "20261123", "20261123120000", "20261123120000z", "20261123120000 Z", "20261123120000.Z", "20261123120000.5e3Z", "20261323120000Z", "2026112325Z", "20261123120061Z",
		"20261123120000+1", "20261123120000+010", "20261123120000+0100Z", "2026-11-23T12:00:00Z", "20261123120000Z\n", strings.Repeat("1", 1<<16),
	} {
		if at, err := generalizedTime(text); err == nil {
			t.Errorf("%.40q is read as %s, want an error", text, at)
		}
	}
}

func entryOf(values map[string]string) *goldap.Entry {
	attributes := map[string][]string{}
	for name, value := range values {
		attributes[name] = []string{value}
	}
	return goldap.NewEntry("uid=alice,dc=example,dc=org", attributes)
}

func TestDisabledAndExpiredAccountsAreRefused(t *testing.T) {
	now := time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)
	steps := func(at time.Time) string { return fmt.Sprint((at.Unix() + 11_644_473_600) * 10_000_000) }
	for name, tt := range map[string]struct {
		values map[string]string
		want   string
	}{
		"nothing known": {nil, ""},
		"AD, normal": {
			map[string]string{attributeControl: "512", attributeExpires: "9223372036854775807"}, "",
		},
		"AD, never expires by 0": {map[string]string{attributeControl: "512", attributeExpires: "0"}, ""},
		"AD, disabled":           {map[string]string{attributeControl: "514"}, "is disabled"},
		"AD, malformed":          {map[string]string{attributeControl: "x"}, "is disabled"},
		"AD, locked for wrong passwords": {
			map[string]string{attributeControl: "512", "msDS-User-Account-Control-Computed": "16", "lockoutTime": steps(now)},
			"",
		},
		"AD, expired": {
			map[string]string{attributeControl: "512", attributeExpires: steps(now)}, "has expired",
		},
		"AD, expires later": {
			map[string]string{attributeControl: "512", attributeExpires: steps(now.Add(time.Second))}, "",
		},
		"AD, expiry malformed": {
			map[string]string{attributeControl: "512", attributeExpires: "soon"}, "has expired",
		},
		"OpenLDAP, locked for good":           {map[string]string{attributeLocked: "000001010000Z"}, "is locked"},
		"OpenLDAP, with seconds":              {map[string]string{attributeLocked: "00000101000000Z"}, "is locked"},
		"OpenLDAP, locked by guesses":         {map[string]string{attributeLocked: "20261123115959Z"}, ""},
		"OpenLDAP, a lock that is not a time": {map[string]string{attributeLocked: "TRUE"}, "is locked"},
		"OpenLDAP, ends without seconds":      {map[string]string{attributeEnd: "203012312359Z"}, ""},
		"OpenLDAP, reset": {
			map[string]string{"pwdreset": "TRUE"}, "must have its password changed first",
		},
		"OpenLDAP, ended":                    {map[string]string{attributeEnd: "20261123115959.5Z"}, "has expired"},
		"FreeIPA, locked":                    {map[string]string{"nsaccountlock": "true"}, "is disabled"},
		"FreeIPA, unlocked":                  {map[string]string{attributeLock: "FALSE"}, ""},
		"FreeIPA, expired":                   {map[string]string{attributeExpiration: "20261123120000Z"}, "has expired"},
		"FreeIPA, expires later":             {map[string]string{attributeExpiration: "20261123120001Z"}, ""},
		"FreeIPA, expires in another zone":   {map[string]string{attributeExpiration: "20261123130001+0100"}, ""},
		"FreeIPA, expiry that is not a time": {map[string]string{attributeExpiration: "x"}, "has expired"},
	} {
		if got := refusal(entryOf(tt.values), now); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
	if got := expired(math.MinInt64, now); !got {
		t.Error("the earliest time has not passed, want it to have passed")
	}
}

func TestNamesArePlainAndInLowerCase(t *testing.T) {
	for name, want := range map[string]string{
		"Alice": "alice", "Domain Admins": "domain admins", "ÄRZTE": "ärzte", "a:b/c": "a:b/c", "system:masters": "system:masters",
		"\u212aim": "\u212aim", "\u0130brahim": "\u0130brahim", "\u212bke": "\u212bke",
		"": "", " alice": "", "alice\u00a0": "", "al\u200bice": "", "alice\n": "", "alice\xff": "", "\u202ealice": "", strings.Repeat("a", 256): "",
	} {
		if got, err := normalize(name); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestNameInTheDNCountsIfThereAreSeveral(t *testing.T) {
	entry := goldap.NewEntry("UID=bob+cn=x,dc=example,dc=org",
		map[string][]string{"uid": {"alice", "bob"}, "cn": {"x"}, "mail": {"a@b", "c@d"}})
	for attribute, want := range map[string]string{"Uid": "bob", "CN": "x", "mail": "", "sn": ""} {
		if got := single(entry, attribute); got != want {
			t.Errorf("%s: %q, want %q", attribute, got, want)
		}
	}
}

func TestRangesOfActiveDirectoryAttributesAreParsed(t *testing.T) {
	for name, tt := range map[string]struct {
		attributes map[string][]string
		values     int
		next       int
	}{
		"all":             {map[string][]string{"memberOf": {"a", "b"}}, 2, 0},
		"first part":      {map[string][]string{"memberOf": nil, "memberOf;range=0-1": {"a", "b"}}, 2, 2},
		"last part":       {map[string][]string{"MEMBEROF;range=2-*": {"c"}}, 1, 0},
		"malformed":       {map[string][]string{"memberOf;range=0-x": {"a"}}, 1, -1},
		"other attribute": {map[string][]string{"memberOfX": {"a"}}, 0, 0},
	} {
		values, next := ranged(goldap.NewEntry("", tt.attributes), "memberOf")
		if len(values) != tt.values || next != tt.next {
			t.Errorf("%s: %d values and then %d, expected %d and %d", name, len(values), next, tt.values, tt.next)
		}
	}
}

func TestGUIDsAndSIDsHaveActiveDirectoryFormat(t *testing.T) {
	raw := []byte{0x6f, 0x7c, 0x3d, 0x15, 0x1b, 0xf4, 0x1d, 0x43, 0x8b, 0x5c, 1, 2, 3, 4, 5, 0xab}
	if text, err := guidText(raw); err != nil || text != "153d7c6f-f41b-431d-8b5c-0102030405ab" {
		t.Errorf("GUID %q, %v", text, err)
	}
	sid := []byte{1, 5, 0, 0, 0, 0, 0, 5, 21, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 2, 0, 0}
	if text, err := sidText(sid); err != nil || text != "S-1-5-21-1-2-3-512" {
		t.Errorf("SID %q, %v", text, err)
	}
}

func FuzzGUID(f *testing.F) {
	f.Add([]byte("0123456789abcdef"), "153d7c6f-f41b-431d-8b5c-0102030405ab")
	f.Add([]byte{}, "----")
	f.Fuzz(func(t *testing.T, raw []byte, text string) {
		if written, err := guidText(raw); err == nil {
			if back, err := guidBytes(written); err != nil || string(back) != string(raw) {
				t.Errorf("%x is written as %q and read as %x, %v", raw, written, back, err)
			}
		}
		if read, err := guidBytes(text); err == nil {
			if back, err := guidText(read); err != nil || back != text {
				t.Errorf("%q is read as %x and written as %q, %v", text, read, back, err)
			}
		}
	})
}

func FuzzSID(f *testing.F) {
	f.Add([]byte{1, 1, 0, 0, 0, 0, 0, 5, 21, 0, 0, 0})
	f.Add([]byte{1, 15, 0, 0, 0, 0, 0, 5})
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, err := sidText(raw)
		if err == nil && strings.Count(text, "-") != 2+int(raw[1]) {
			t.Errorf("%x is %q, expected %d parts", raw, text, raw[1])
		}
	})
}

// shape writes a filter without its values.
func shape(packet *ber.Packet) string {
	if len(packet.Children) == 0 {
		return fmt.Sprint(packet.Tag)
	}
	parts := make([]string, len(packet.Children))
	for i, child := range packet.Children {
		parts[i] = shape(child)
	}
	return fmt.Sprint(packet.Tag, parts)
}

func leaves(packet *ber.Packet) string {
	if len(packet.Children) == 0 {
		return "\x01" + packet.Data.String()
	}
	text := ""
	for _, child := range packet.Children {
		text += leaves(child)
	}
	return text
}

// LDAP injection, CVE-2022-22975: for any name, the filter keeps its structure and compares with the unchanged name.
func FuzzFilter(f *testing.F) {
	for _, name := range []string{"alice", "*", ")(uid=*", `\2a`, "{dn}", "a\x00b", "\xff", "(|(uid=*))", "ä", `\`, ""} {
		f.Add(name, "cn=x,dc=y")
	}
	templates := []string{
		"(uid={name})", "(&(objectClass=person)(|(uid={name})(mail={name}@example.org)))", "(&(member={dn})(cn=*{name}*))",
		"(member:1.2.840.113556.1.4.1941:={dn})",
	}
	f.Fuzz(func(t *testing.T, name, dn string) {
		if name == "" || dn == "" {
			return // neither is ever filled in
		}
		for _, text := range templates {
			parsed, err := parseTemplate(text, placeName, placeDN)
			if err != nil {
				t.Fatal(err)
			}
			want, err := goldap.CompileFilter(parsed.fill("n", "d"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := goldap.CompileFilter(parsed.fill(name, dn))
			if err != nil {
				t.Fatalf("%q with %q and %q is no filter: %v", text, name, dn, err)
			}
			if shape(got) != shape(want) {
				t.Errorf("%q with %q and %q has another shape", text, name, dn)
			}
			if strings.Contains(text, placeName) && !strings.Contains(leaves(got), name) || strings.Contains(text, placeDN) &&
				!strings.Contains(leaves(got), dn) {
				t.Errorf("%q with %q and %q compares with another value: %q", text, name, dn, leaves(got))
			}
		}
	})
}

// FuzzTemplate checks that an accepted template is a valid filter with every name, and with any.
func FuzzTemplate(f *testing.F) {
	for _, text := range []string{"(uid={name})", "(&(a=b)(uid=x{name}*))", "({name})", "(!(uid={name}))",
		"(uid:dn:2.4:={name})", "(uid=\\{name})", "(uid={name}"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := parseTemplate(text, placeName)
		if err != nil {
			return
		}
		if _, err := goldap.CompileFilter(parsed.fill(")(*\\\x00", "")); err != nil {
			t.Errorf("%q is a template and no filter: %v", text, err)
		}
	})
}

func FuzzBounded(f *testing.F) {
	f.Add("a\nb\x00" + strings.Repeat("ä", 300))
	f.Fuzz(func(t *testing.T, text string) {
		if got := bounded(text); len(got) > 210 || !utf8.ValidString(got) || strings.ContainsAny(got, "\n\r\x00\x1b") {
			t.Errorf("%q becomes %q", text, got)
		}
	})
}
