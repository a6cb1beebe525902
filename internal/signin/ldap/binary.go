// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package ldap

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

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
