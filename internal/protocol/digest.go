// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Digest identifies these settings: SHA-256 of their JSON, in hex.
func (s Settings) Digest() string {
	raw, err := json.Marshal(s)
	if err != nil { // strings and slices of strings always marshal
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
