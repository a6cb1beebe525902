// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package expansion

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

const (
	maxLabel = 63
	// hashLength characters of base 32 are 60 bits.
	hashLength = 12
)

// SetLabel is the value of the label cluster.drover.dev/set for a set's id: "/" becomes ".", and what is longer than a label can
// be begins with "kind-" instead of "kind." and ends in a hash of the whole, so that no id can be chosen to have the label of another.
func SetLabel(id string) string {
	value := strings.ReplaceAll(id, "/", ".")
	if len(value) <= maxLabel {
		return value
	}
	sum := sha256.Sum256([]byte(id))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(strings.Replace(id, "/", "-", 1)[:maxLabel-hashLength-1], "-_.") + "-" + hash
}
