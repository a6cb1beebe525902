// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	goldap "github.com/go-ldap/ldap/v3"
)

// maxName is the maximum length of a name or an ID, in bytes.
const maxName = 255

// account holds the directory entry of a user.
type account struct {
	// raw is the unchanged value of the name attribute. The entries of groups may contain this value. name is the
	// user's name in principals.
	dn, id, raw, name string
	// changed is the time when the password was last set. Changing the password ends the user's sessions.
	changed string
	entry   *goldap.Entry
}

// locate returns the DN of the user who matches a filter. It refuses a filter that matches several users.
func (c *Connector) locate(s *session, filter string) (string, error) {
	found, err := s.search(request{
		what: "search users below " + c.Users.Base, base: c.Users.Base, scope: goldap.ScopeWholeSubtree, filter: filter, attributes: none(), most: 1,
	})
	switch {
	case errors.Is(err, errMany):
		return "", refuse("several users below %s match: make the filter of users match only one", c.Users.Base)
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", refuse("no user below %s matches the filter of users", c.Users.Base)
	case found[0].DN == "":
		return "", fmt.Errorf("%s: search users below %s: the entry has no DN", s.server, c.Users.Base)
	}
	return found[0].DN, nil
}

// bindUser binds as a user to verify the user's password.
func (s *session) bindUser(dn, password string) error {
	s.limit()
	// With this control, OpenLDAP and FreeIPA report whether the password must be changed first.
	ask := goldap.NewSimpleBindRequest(dn, password, []goldap.Control{goldap.NewControlBeheraPasswordPolicy()})
	result, err := s.conn.SimpleBind(ask)
	if refusesUser(err) {
		return refuse("%s regards name or password as wrong, or the account as locked", s.server)
	}
	if err != nil {
		return s.failed("sign in as a user", err, password)
	}
	for _, control := range result.Controls {
		switch said := control.(type) {
		case *goldap.ControlBeheraPasswordPolicy:
			if said.Error >= 0 {
				return refuse("the password policy: %s", goldap.BeheraPasswordPolicyErrorMap[said.Error])
			}
		case *goldap.ControlVChuPasswordMustChange:
			return refuse("the password must be changed first")
		}
	}
	return nil
}

func (c *Connector) read(s *session, dn string) (account, error) {
	attributes := append([]string{c.Users.ID, c.Users.Name}, stateAttributes()...)
	if attribute := c.Groups.Source.attribute(); attribute != "" {
		attributes = append(attributes, attribute)
	}
	found, err := s.search(request{
		what: "read a user", base: dn, scope: goldap.ScopeBaseObject, filter: anyEntry, attributes: attributes, most: 1,
	})
	f, failed := errors.AsType[*failure](err)
	if failed && f.code() == goldap.LDAPResultNoSuchObject || err == nil && len(found) == 0 {
		return account{}, refuse("the user is gone, or the service account may not read their entry")
	}
	if err != nil {
		return account{}, err
	}
	a := account{dn: dn, entry: found[0], changed: changed(found[0])}
	if a.id, err = c.idOf(a.entry); err != nil {
		return account{}, fmt.Errorf("%s: %s: %w: the service account must be able to read it", s.server, bounded(dn), err)
	}
	if a.raw = single(a.entry, c.Users.Name); a.raw == "" {
		return account{}, fmt.Errorf("%s: %s: %s has no value or several: choose an attribute with one", s.server,
			bounded(dn), c.Users.Name)
	}
	if a.name, err = normalize(a.raw); err != nil {
		return account{}, fmt.Errorf("%s: %s of %s: %w", s.server, c.Users.Name, bounded(dn), err)
	}
	// If this attribute cannot be read, the hub cannot tell whether the user is disabled.
	if strings.EqualFold(c.Users.ID, objectGUID) && a.entry.GetEqualFoldAttributeValue(attributeControl) == "" {
		return account{}, fmt.Errorf("%s: %s of %s cannot be read: give the service account the right to", s.server,
			attributeControl, bounded(dn))
	}
	if reason := refusal(a.entry, c.now()); reason != "" {
		return account{}, refuse("the account of %s %s", a.name, reason)
	}
	return a, nil
}

// unique returns an error if another entry has the same user name. If two entries had the same name, one user could be
// mistaken for another. Duplicates can occur if the filter compares several attributes, or if users are in several
// branches.
func (c *Connector) unique(s *session, a account) error {
	found, err := s.search(request{
		what: "search " + c.Users.Name + " below " + c.Users.Base, base: c.Users.Base, scope: goldap.ScopeWholeSubtree,
		filter: equals(c.Users.Name, a.raw), attributes: none(), most: 1,
	})
	switch {
	case errors.Is(err, errMany):
		return refuse("several entries below %s have the %s %s: a name must belong to one user", c.Users.Base, c.Users.Name,
			a.name)
	case err != nil:
		return err
	case len(found) == 0:
		return fmt.Errorf("%s: no entry below %s has the %s %s: the service account must be able to search it", s.server,
			c.Users.Base, c.Users.Name, a.name)
	}
	return nil
}

func (c *Connector) idOf(entry *goldap.Entry) (string, error) {
	values := entry.GetEqualFoldRawAttributeValues(c.Users.ID)
	if len(values) != 1 {
		return "", fmt.Errorf("%s has %d values, not one", c.Users.ID, len(values))
	}
	if strings.EqualFold(c.Users.ID, objectGUID) {
		return guidText(values[0])
	}
	id := string(values[0])
	if id == "" || len(id) > maxName || !printable(id) {
		return "", fmt.Errorf("%s is empty, longer than %d bytes or not printable", c.Users.ID, maxName)
	}
	return id, nil
}

func (c *Connector) byID(id string) (string, error) {
	if strings.EqualFold(c.Users.ID, objectGUID) {
		raw, err := guidBytes(id)
		if err != nil {
			return "", refuse("the ID of the session is %w", err)
		}
		return equals(c.Users.ID, string(raw)), nil
	}
	if id == "" || len(id) > maxName || !printable(id) {
		return "", refuse("the ID of the session is not one of this directory")
	}
	return equals(c.Users.ID, id), nil
}

// single returns the only value of an attribute. If there are several values, it returns the value that is part of the
// DN.
func single(entry *goldap.Entry, name string) string {
	values := entry.GetEqualFoldAttributeValues(name)
	if len(values) == 1 {
		return values[0]
	}
	if inDN := firstPart(entry.DN, name); slices.Contains(values, inDN) {
		return inDN
	}
	return ""
}

// firstPart returns the value of an attribute in the first component of a DN.
func firstPart(text, name string) string {
	dn, err := goldap.ParseDN(text)
	if err != nil || len(dn.RDNs) == 0 {
		return ""
	}
	for _, part := range dn.RDNs[0].Attributes {
		if strings.EqualFold(part.Type, name) {
			return part.Value
		}
	}
	return ""
}

// normalize returns a name in the form that is used in principals. Directories ignore case when they compare names, but
// principals are case-sensitive.
func normalize(name string) (string, error) {
	lower := strings.Map(lowerRune, name) // replaces invalid UTF-8
	if name == "" || len(lower) > maxName || !printable(name) || strings.TrimSpace(name) != name {
		return "", fmt.Errorf("%q is empty, longer than %d bytes, not printable or begins or ends with a space",
			bounded(name), maxName)
	}
	return lower, nil
}

// lowerRune converts a letter to lower case. It does not change letters that have the same lower case as another
// letter, such as the Kelvin sign and K. Otherwise, two names that differ in a directory could become the same name.
func lowerRune(r rune) rune {
	if lower := unicode.ToLower(r); unicode.ToUpper(lower) == r {
		return lower
	}
	return r
}

// printable reports whether text contains only visible characters and plain spaces.
func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// objectGUID is the attribute that identifies an entry in Active Directory. Its value is a GUID of 16 bytes. The first
// three fields of the GUID are little-endian.
const objectGUID = "objectGUID"

var (
	errGUID = errors.New("not a GUID")
	errSID  = errors.New("not a SID")
)

// guidText returns a GUID in the format that Active Directory's tools use.
func guidText(raw []byte) (string, error) {
	if len(raw) != 16 {
		return "", errGUID
	}
	return fmt.Sprintf("%08x-%04x-%04x-%x-%x", binary.LittleEndian.Uint32(raw), binary.LittleEndian.Uint16(raw[4:]),
		binary.LittleEndian.Uint16(raw[6:]), raw[8:10], raw[10:]), nil
}

// guidBytes decodes a GUID that guidText encoded.
func guidBytes(text string) ([]byte, error) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' ||
		strings.ToLower(text) != text {
		return nil, errGUID
	}
	raw, err := hex.DecodeString(strings.ReplaceAll(text, "-", ""))
	if err != nil || len(raw) != 16 {
		return nil, errGUID
	}
	binary.LittleEndian.PutUint32(raw, binary.BigEndian.Uint32(raw))
	binary.LittleEndian.PutUint16(raw[4:], binary.BigEndian.Uint16(raw[4:]))
	binary.LittleEndian.PutUint16(raw[6:], binary.BigEndian.Uint16(raw[6:]))
	return raw, nil
}

// sidText returns a security identifier in the usual notation: S-1-5-21-….
func sidText(raw []byte) (string, error) {
	if len(raw) < 8 || raw[0] != 1 || raw[1] > 15 || len(raw) != 8+4*int(raw[1]) {
		return "", errSID
	}
	authority := binary.BigEndian.Uint64(append([]byte{0, 0}, raw[2:8]...))
	text := fmt.Sprintf("S-1-%d", authority)
	for rest := raw[8:]; len(rest) > 0; rest = rest[4:] {
		text += fmt.Sprintf("-%d", binary.LittleEndian.Uint32(rest))
	}
	return text, nil
}
