// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"errors"
	"regexp"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
)

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
