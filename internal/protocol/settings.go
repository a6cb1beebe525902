// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"encoding/json"
)

// Settings are the settings that the hub announces to all agents: the hub's addresses, its CA, and the registry for
// images. Addresses and CAs are announced before they take effect.
type Settings struct {
	// Servers are the hub's base URLs. The preferred URL comes first. Only https is allowed.
	Servers []string `json:"servers"`
	// CABundle holds the PEM-encoded certificates to trust. It is empty if agents trust their system's CAs.
	CABundle string `json:"caBundle,omitempty"`

	// Registry is prepended to images that do not specify a registry. See WithRegistry. Registry may be empty.
	Registry string `json:"registry,omitempty"`

	received []byte // the JSON that the settings were read from; nil if this version writes the same JSON
}

// knownSettings is Settings without its methods.
type knownSettings Settings

// UnmarshalJSON implements json.Unmarshaler. It preserves unknown fields, because settings may come from a newer hub.
// The digest of the settings that an agent stores must equal the digest that the hub computes.
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

// MarshalJSON implements json.Marshaler. Settings that this version would write differently, for example because they
// contain unknown fields, are written exactly as they were received.
func (s Settings) MarshalJSON() ([]byte, error) {
	if s.received != nil {
		return s.received, nil
	}
	return json.Marshal(knownSettings(s))
}

// Digest returns the digest of the settings. It is the SHA-256 of their JSON, in hex.
func (s Settings) Digest() string { return digestOf(s) }
