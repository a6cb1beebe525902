// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package token

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"

	"github.com/go-jose/go-jose/v4"

	"github.com/drover-dev/drover/internal/untrusted"
)

// maxPublished is the maximum number of keys that an issuer may publish.
const maxPublished = 16

// Published holds the public keys of an issuer, by ID.
type Published map[string]*ecdsa.PublicKey

// ParsePublished decodes a JSON Web Key Set (RFC 7517) in the format that the issuer publishes. It rejects a set that
// contains other types of keys.
func ParsePublished(raw []byte) (Published, error) {
	var set jose.JSONWebKeySet
	if err := untrusted.JSON(raw, &set, untrusted.Small()); err != nil || len(set.Keys) > maxPublished {
		return nil, errors.New("the keys of the issuer are malformed, or too many")
	}
	keys := Published{}
	for _, key := range set.Keys {
		public, ok := key.Key.(*ecdsa.PublicKey)
		if !ok || public.Curve != elliptic.P256() || key.KeyID == "" || key.Algorithm != string(jose.ES256) ||
			key.Use != "sig" || keys[key.KeyID] != nil {
			return nil, errors.New("the keys of the issuer are not all public ES256 keys with different names")
		}
		keys[key.KeyID] = public
	}
	return keys, nil
}

// Public implements Keys.
func (p Published) Public(id string) (*ecdsa.PublicKey, bool) {
	key, known := p[id]
	return key, known
}
