// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package seal encrypts what a client carries and must neither read nor change.
package seal

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

// Max is how long a sealed value may be, in bytes: a code has up to 6 KiB of groups, and 4 KiB of a provider's.
const Max = 24 << 10

// ErrSealed means that a value was not sealed with one of the keys for that purpose, or was changed.
var ErrSealed = errors.New("the value is not one that this hub has sealed")

// Sealer seals values. New makes it. It may be used concurrently.
type Sealer struct{ keys []cipher.AEAD }

// New makes a Sealer that seals with the first of some keys of 32 bytes, and opens what was sealed with any.
func New(keys ...[]byte) (*Sealer, error) {
	s := &Sealer{}
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

// Seal encrypts a value for a purpose. What is sealed for one is not opened for another.
func (s *Sealer) Seal(purpose string, value any) (string, error) {
	plain, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("seal: %w", err)
	}
	nonce := make([]byte, s.keys[0].NonceSize())
	_, _ = rand.Read(nonce) // never fails
	return base64.RawURLEncoding.EncodeToString(s.keys[0].Seal(nonce, nonce, plain, []byte(purpose))), nil
}

// Open decrypts what Seal returned.
func (s *Sealer) Open(purpose, sealed string, into any) error {
	if len(sealed) > Max || strings.ContainsAny(sealed, "\r\n") { // which the decoder would leave out
		return ErrSealed
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil {
		return ErrSealed
	}
	for _, key := range s.keys {
		if len(raw) < key.NonceSize() {
			return ErrSealed
		}
		plain, err := key.Open(nil, raw[:key.NonceSize()], raw[key.NonceSize():], []byte(purpose))
		if err == nil {
			return json.Unmarshal(plain, into)
		}
	}
	return ErrSealed
}
