// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
)

// Settings are what the hub announces to all agents: its addresses and the CA to trust, before they take effect, and
// where images are.
type Settings struct {
	// Servers are the hub's base URLs, https only, the preferred one first.
	Servers []string `json:"servers"`
	// CABundle holds the certificates to trust, as PEM. Empty when agents trust their system's.
	CABundle string `json:"caBundle,omitempty"`

	// Registry is put in front of images that name none, see WithRegistry. Empty for none.
	Registry string `json:"registry,omitempty"`

	received []byte // the JSON that was read, if it has more than these fields; else nil
}

// knownSettings are Settings without methods.
type knownSettings Settings

// UnmarshalJSON implements json.Unmarshaler. Settings of a newer hub keep the fields that this version does not know:
// an agent stores them, and confirms them by the digest that the hub computes.
func (s *Settings) UnmarshalJSON(raw []byte) error {
	var read knownSettings
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, raw); err != nil {
		return err
	}
	if known, err := json.Marshal(read); err != nil || !bytes.Equal(known, compact.Bytes()) {
		read.received = compact.Bytes()
	}
	*s = Settings(read)
	return nil
}

// MarshalJSON implements json.Marshaler. Settings that were read are written as they came.
func (s Settings) MarshalJSON() ([]byte, error) {
	if s.received != nil {
		return s.received, nil
	}
	return json.Marshal(knownSettings(s))
}

// Digest identifies these settings: SHA-256 of their JSON, in hex.
func (s Settings) Digest() string {
	raw, err := json.Marshal(s)
	if err != nil { // strings, and JSON that was read, always marshal
		panic(err)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
