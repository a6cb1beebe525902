// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"errors"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

// Attributes that describe the state of an account. A server ignores requests for attributes that it does not have.
const (
	// Attributes of Active Directory.
	attributeControl = "userAccountControl"
	attributeExpires = "accountExpires"
	// Attributes of OpenLDAP with the ppolicy overlay.
	attributeLocked = "pwdAccountLockedTime"
	attributeReset  = "pwdReset"
	attributeEnd    = "pwdEndTime"
	// Attributes of FreeIPA.
	attributeLock       = "nsAccountLock"
	attributeExpiration = "krbPrincipalExpiration"
)

// bitDisabled is the bit in userAccountControl that is set for disabled accounts.
const bitDisabled = 1 << 1

// changeAttributes returns the names of the attributes in which Active Directory, OpenLDAP and FreeIPA record when a
// password was last set.
func changeAttributes() []string { return []string{"pwdLastSet", "pwdChangedTime", "krbLastPwdChange"} }

func stateAttributes() []string {
	return append(changeAttributes(), attributeControl, attributeExpires, attributeLocked, attributeReset, attributeEnd,
		attributeLock, attributeExpiration)
}

// changed returns the time when the password of an entry was last set, in the directory's format.
func changed(entry *goldap.Entry) string {
	for _, attribute := range changeAttributes() {
		if value := entry.GetEqualFoldAttributeValue(attribute); value != "" {
			return attribute + "=" + value
		}
	}
	return ""
}

// refusal returns the reason why an account currently may not be used, or "" if there is no reason. An attribute that
// cannot be parsed is also a reason.
//
// A lock caused by wrong passwords is not a reason. Otherwise, anyone could end a user's sessions by entering wrong
// passwords. In addition, only the directory knows when such a lock expires, and the attributes of the lock remain
// until the next bind. A bind with the user's password fails while the account is locked.
func refusal(entry *goldap.Entry, now time.Time) string {
	value := entry.GetEqualFoldAttributeValue
	number := func(attribute string) int64 {
		if value(attribute) == "" {
			return 0
		}
		n, err := strconv.ParseInt(value(attribute), 10, 64)
		if err != nil {
			return -1 // all bits
		}
		return n
	}
	passed := func(attribute string) bool {
		if value(attribute) == "" {
			return false
		}
		at, err := generalizedTime(value(attribute))
		return err != nil || !now.Before(at)
	}
	switch {
	case number(attributeControl)&bitDisabled != 0, strings.EqualFold(value(attributeLock), "TRUE"):
		return "is disabled"
	case lockedForGood(value(attributeLocked)):
		return "is locked"
	case expired(number(attributeExpires), now), passed(attributeExpiration), passed(attributeEnd):
		return "has expired"
	case strings.EqualFold(value(attributeReset), "TRUE"):
		return "must have its password changed first"
	}
	return ""
}

// lockedForGood reports whether pwdAccountLockedTime has the special value 000001010000Z, which means that only an
// administrator can unlock the account. Other values are the time when wrong passwords locked the account.
func lockedForGood(value string) bool {
	if value == "" {
		return false
	}
	at, err := generalizedTime(value)
	return err != nil || at.UTC().Year() <= 0
}

// expired reports whether an Active Directory time is in the past. Such a time is the number of 100 ns intervals since
// 1601. 0 and the maximum value mean that an account never expires.
func expired(steps int64, now time.Time) bool {
	if steps == 0 || steps == math.MaxInt64 {
		return false
	}
	const perSecond, since1601 = 10_000_000, 11_644_473_600
	return steps < 0 || steps/perSecond-since1601 <= now.Unix()
}

// timeForm matches the Generalized Time syntax (RFC 4517, section 3.3.13). Minutes, seconds and a fraction are
// optional, but the time zone is required.
var timeForm = regexp.MustCompile(`^[0-9]{10}([0-9]{2}([0-9]{2})?)?([.,][0-9]{1,20})?(Z|[+-][0-9]{2}([0-9]{2})?)$`)

// generalizedTime parses a value in the Generalized Time syntax.
func generalizedTime(text string) (time.Time, error) {
	if !timeForm.MatchString(text) {
		return time.Time{}, errors.New("it is not a generalized time")
	}
	raw, leap := []byte(text), time.Duration(0)
	if timeForm.FindStringSubmatch(text)[2] == "60" { // a leap second is treated as the first second of the next minute
		copy(raw[12:], "59")
		leap = time.Second
	}
	at, err := ber.ParseGeneralizedTime(raw)
	return at.Add(leap), err
}
