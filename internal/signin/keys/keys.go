// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package keys holds the issuer's signing keys and decides when to rotate them.
package keys

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	// Lead is how long a key is published before it signs tokens. By then, all caches contain the key.
	Lead = time.Hour
	// Lifetime is how long a key signs tokens.
	Lifetime = 30 * 24 * time.Hour
	// Overlap is how long a key stays published after the next key has started to sign tokens. Overlap must be longer
	// than the lifetime of any token. The longest lifetime is 12 hours, for tokens for direct access.
	Overlap = 13 * time.Hour
	// maxKeys is the maximum number of keys in a stored set. A set usually has two keys.
	maxKeys = 8
)

// Key is a signing key.
type Key struct {
	// ID is the thumbprint of the public key (RFC 7638).
	ID      string
	Created time.Time
	Private *ecdsa.PrivateKey
}

// Set holds all published keys, oldest first.
type Set []Key

// New generates a key.
func New(now time.Time) (Key, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("generate signing key: %w", err)
	}
	return of(private, now)
}

func of(private *ecdsa.PrivateKey, created time.Time) (Key, error) {
	sum, err := (&jose.JSONWebKey{Key: private.Public()}).Thumbprint(crypto.SHA256)
	if err != nil {
		return Key{}, fmt.Errorf("identify signing key: %w", err)
	}
	return Key{ID: base64.RawURLEncoding.EncodeToString(sum), Created: created.UTC().Truncate(time.Second),
		Private: private}, nil
}

// Active returns the key that signs tokens. This is the newest key that has been published for at least Lead, or the
// first key if no key has been published for that long.
func (s Set) Active(now time.Time) (Key, error) {
	for _, key := range slices.Backward(s) {
		if now.Sub(key.Created) >= Lead {
			return key, nil
		}
	}
	if len(s) == 0 {
		return Key{}, errors.New("there is no signing key yet")
	}
	return s[0], nil
}

// Public returns the public key with the given ID.
func (s Set) Public(id string) (*ecdsa.PublicKey, bool) {
	i := slices.IndexFunc(s, func(key Key) bool { return key.ID == id })
	if i < 0 {
		return nil, false
	}
	return &s[i].Private.PublicKey, true
}

// JWKS returns the set in its published form.
func (s Set) JWKS() jose.JSONWebKeySet {
	var set jose.JSONWebKeySet
	for _, key := range s {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: key.Private.Public(), KeyID: key.ID, Algorithm: string(jose.ES256),
			Use: "sig"})
	}
	return set
}

// Sealing returns secret keys for sealing values. They are derived from the signing keys. As a result, all replicas
// have them, and no other secret has to be stored. The key that is derived from the active key comes first.
func (s Set) Sealing(active Key) ([][]byte, error) {
	var all [][]byte
	others := slices.DeleteFunc(slices.Clone(s), func(key Key) bool { return key.ID == active.ID })
	for _, key := range append(Set{active}, others...) {
		secret, err := key.Private.Bytes()
		if err != nil {
			return nil, fmt.Errorf("derive sealing key: %w", err)
		}
		derived, err := hkdf.Key(sha256.New, secret, nil, "drover sign-in: pages and codes", 32)
		if err != nil {
			return nil, fmt.Errorf("derive sealing key: %w", err)
		}
		all = append(all, derived)
	}
	return all, nil
}

// Step is the next step in the rotation of a set.
type Step struct {
	// Add reports whether to add a key. Remove is the number of keys to remove, starting with the oldest.
	Add    bool
	Remove int
	// Again is the time of the next step.
	Again time.Time
}

// Next returns the next step for a set.
func Next(s Set, now time.Time) Step {
	if len(s) == 0 {
		return Step{Add: true, Again: now}
	}
	step := Step{}
	for i := 1; i < len(s) && !now.Before(s[i].Created.Add(Lead+Overlap)); i++ {
		step.Remove = i
	}
	renew := s[len(s)-1].Created.Add(Lifetime)
	step.Add = !now.Before(renew)
	step.Again = renew
	if next := step.Remove + 1; next < len(s) {
		if remove := s[next].Created.Add(Lead + Overlap); remove.Before(renew) {
			step.Again = remove
		}
	}
	return step
}

// stored is the encoding of a key.
type stored struct {
	Created time.Time `json:"created"`
	Private []byte    `json:"private"`
}

// Encode encodes a set for storage in a Secret.
func Encode(s Set) ([]byte, error) {
	all := make([]stored, 0, len(s))
	for _, key := range s {
		raw, err := key.Private.Bytes()
		if err != nil {
			return nil, fmt.Errorf("encode signing key: %w", err)
		}
		all = append(all, stored{Created: key.Created, Private: raw})
	}
	return json.Marshal(all)
}

// Decode decodes a set that Encode encoded. It returns an empty set for an empty input. Errors contain no part of the
// keys.
func Decode(raw []byte) (Set, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var all []stored
	if json.Unmarshal(raw, &all) != nil || len(all) > maxKeys {
		return nil, fmt.Errorf("the signing keys are not a JSON list of at most %d keys", maxKeys)
	}
	var s Set
	for i, one := range all {
		private, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), one.Private)
		if err != nil {
			return nil, fmt.Errorf("signing key %d is not a P-256 key", i)
		}
		key, err := of(private, one.Created)
		if err != nil {
			return nil, err
		}
		s = append(s, key)
	}
	slices.SortStableFunc(s, func(a, b Key) int { return a.Created.Compare(b.Created) })
	return s, nil
}
