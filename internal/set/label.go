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
	// hashLength characters in base 32 hold 60 bits.
	hashLength = 12
)

// Label returns the value of the label cluster.drover.dev/set for a set's ID, with "." in place of "/". A value that is
// too long for a label is cut. It then starts with "kind-" instead of "kind." and ends in a hash of the ID, so a user
// cannot choose an ID with the label of another one.
func Label(id string) string {
	value := strings.ReplaceAll(id, "/", ".")
	if len(value) <= maxLabel {
		return value
	}
	sum := sha256.Sum256([]byte(id))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(strings.Replace(id, "/", "-", 1)[:maxLabel-hashLength-1], "-_.") + "-" + hash
}
