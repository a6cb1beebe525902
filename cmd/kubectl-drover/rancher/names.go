// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// nameLimit is the maximum length of a name in Drover.
const nameLimit = 63

// label converts text to a DNS label, which may be empty, for use as an object name and a file name.
func label(text string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(text) {
		switch {
		case r >= 'a' && r <= 'z' || r >= '0' && r <= '9':
			b.WriteRune(r)
		case b.Len() > 0 && !strings.HasSuffix(b.String(), "-"):
			b.WriteByte('-')
		}
	}
	return bounded(strings.Trim(b.String(), "-"))
}

// bounded shortens a name if it is too long. The shortened name ends with a hash of the whole name.
func bounded(name string) string {
	if len(name) <= nameLimit {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:nameLimit-9], "-") + "-" + hex.EncodeToString(sum[:4])
}

// join joins parts into the name of an object that belongs to another object.
func join(parts ...string) string {
	var some []string
	for _, part := range parts {
		if part = label(part); part != "" {
			some = append(some, part)
		}
	}
	return bounded(strings.Join(some, "-"))
}

// names assigns unique names to the objects of a kind.
type names map[string]bool

// take returns the wanted name. If an older object already has that name, it returns a name that contains the ID.
func (n names) take(wanted, id string) string {
	name := wanted
	if name == "" || n[name] {
		name = join(wanted, id)
	}
	if name == "" || n[name] {
		sum := sha256.Sum256([]byte(id))
		name = join(wanted, "x"+hex.EncodeToString(sum[:8]))
	}
	n[name] = true
	return name
}
