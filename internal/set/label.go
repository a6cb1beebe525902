// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	maxLabel = 63
	// hashLength is the number of characters in a hash. In base 32, 12 characters represent 60 bits.
	hashLength = 12
)

// Label returns the value of the label cluster.drover.dev/set for a set's ID. In this value, "." replaces "/". A value
// that is too long for a label is truncated. It then starts with "kind-" instead of "kind." and ends in a hash of the
// ID, so that a user cannot choose an ID that results in another ID's label.
func Label(id string) string {
	value := strings.ReplaceAll(id, "/", ".")
	if len(value) <= maxLabel {
		return value
	}
	sum := sha256.Sum256([]byte(id))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(strings.Replace(id, "/", "-", 1)[:maxLabel-hashLength-1], "-_.") + "-" + hash
}
