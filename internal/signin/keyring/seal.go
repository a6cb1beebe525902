// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package keyring

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// maxSealed is the maximum length of a sealed value, in bytes. A code contains up to 6 KiB of groups and 4 KiB of a
// provider's state.
const maxSealed = 24 << 10

// errSealed means that a value was modified, or was not sealed for this purpose with one of the keys.
var errSealed = errors.New("the value was not sealed by this hub")

// sealer encrypts values that a client carries but must not read or change. It is safe for concurrent use.
type sealer struct{ keys []cipher.AEAD }

// newSealer returns a sealer that seals with the first key, and opens values that were sealed with any key. Each key
// must be 32 bytes long.
func newSealer(keys ...[]byte) (*sealer, error) {
	s := &sealer{}
	for _, key := range keys {
		if len(key) != 32 {
			return nil, fmt.Errorf("make cipher: the key has %d bytes, want 32", len(key))
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, fmt.Errorf("make cipher: %w", err)
		}
		aead, err := cipher.NewGCM(block)
		if err != nil {
			return nil, fmt.Errorf("make cipher: %w", err)
		}
		s.keys = append(s.keys, aead)
	}
	if len(s.keys) == 0 {
		return nil, errors.New("make sealer: no key")
	}
	return s, nil
}

// Seal encrypts a value for a purpose. Open fails for any other purpose.
func (s *sealer) Seal(purpose string, value any) (string, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("seal: %w", err)
	}
	nonce := make([]byte, s.keys[0].NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return base64.RawURLEncoding.EncodeToString(s.keys[0].Seal(nonce, nonce, plain, []byte(purpose))), nil
}

// Open decrypts a value that Seal returned.
func (s *sealer) Open(purpose, sealed string, into any) error {
	if len(sealed) > maxSealed || strings.ContainsAny(sealed, "\r\n") { // the decoder would ignore line breaks
		return errSealed
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return errSealed
	}
	for _, key := range s.keys {
		if len(raw) < key.NonceSize() {
			return errSealed
		}
		plain, err := key.Open(nil, raw[:key.NonceSize()], raw[key.NonceSize():], []byte(purpose))
		if err == nil {
			return json.Unmarshal(plain, into)
		}
	}
	return errSealed
}
