// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package password generates random passwords, and hashes and verifies passwords with argon2id.
package password

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"
)

// Parameters for new hashes, as recommended by OWASP. The parameters in RFC 9106 would use more memory for a single
// hash than the idle manager uses in total.
const (
	memory  = 19 << 10 // KiB
	passes  = 2
	lanes   = 1
	saltLen = 16
	hashLen = 32
)

// Limits on a stored hash. They are needed because a user who can write a hash could otherwise make the manager use any
// amount of memory.
const (
	maxMemory = 64 << 10 // KiB
	maxPasses = 4
	maxLanes  = 4
	// MaxHash is the maximum length of a stored hash, in bytes.
	MaxHash = 512
)

// Max and Min are the maximum and minimum length of a password, in bytes.
const (
	Min = 12
	Max = 256
)

// ErrHash means that a stored hash is malformed or exceeds the limits of this package.
var ErrHash = errors.New("the hash is not of the form $argon2id$v=19$m=…,t=…,p=…$<salt>$<hash> within the bounds")

// Random returns a new password of 26 characters, with 130 bits of entropy. It omits letters and digits that look
// alike.
func Random() string { return strings.ToLower(rand.Text()) }

// Hash returns the hash of a password in the form that is stored.
func Hash(password string) (string, error) {
	if len(password) < Min || len(password) > Max {
		return "", fmt.Errorf("a password has %d to %d bytes; this one has %d", Min, Max, len(password))
	}
	var salt [saltLen]byte
	_, _ = rand.Read(salt[:]) // never fails
	sum := argon2.IDKey([]byte(password), salt[:], passes, memory, lanes, hashLen)
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, memory, passes, lanes,
		base64.RawStdEncoding.EncodeToString(salt[:]), base64.RawStdEncoding.EncodeToString(sum)), nil
}

// Nothing returns a hash that no password matches. It is used for users who do not exist, so that verifying a password
// takes the same amount of time.
func Nothing() string {
	zero := func(n int) string { return base64.RawStdEncoding.EncodeToString(make([]byte, n)) }
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, memory, passes, lanes, zero(saltLen),
		zero(hashLen))
}

// Verify reports whether a password matches a stored hash. It uses about 30 ms of CPU time and the amount of memory
// that the hash specifies.
func Verify(stored, password string) (bool, error) {
	h, err := parse(stored)
	if err != nil {
		return false, err
	}
	if len(password) > Max {
		return false, nil
	}
	sum := argon2.IDKey([]byte(password), h.salt, h.passes, h.memory, h.lanes, uint32(len(h.sum)))
	return subtle.ConstantTimeCompare(sum, h.sum) == 1, nil
}

// Valid returns an error if Verify cannot use a stored hash.
func Valid(stored string) error {
	_, err := parse(stored)
	return err
}

// stored is a parsed hash.
type stored struct {
	memory, passes uint32
	lanes          uint8
	salt, sum      []byte
}

func parse(text string) (stored, error) {
	if len(text) > MaxHash {
		return stored{}, ErrHash
	}
	parts := strings.Split(text, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return stored{}, ErrHash
	}
	var h stored
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.lanes); err != nil ||
		parts[3] != fmt.Sprintf("m=%d,t=%d,p=%d", h.memory, h.passes, h.lanes) {
		return stored{}, ErrHash
	}
	var errSalt, errSum error
	h.salt, errSalt = base64.RawStdEncoding.Strict().DecodeString(parts[4])
	h.sum, errSum = base64.RawStdEncoding.Strict().DecodeString(parts[5])
	switch {
	case errSalt != nil, errSum != nil, len(h.salt) < 8, len(h.salt) > 64, len(h.sum) < 16, len(h.sum) > 64,
		h.memory < 8*uint32(h.lanes), h.memory > maxMemory, h.passes < 1, h.passes > maxPasses, h.lanes < 1, h.lanes > maxLanes:
		return stored{}, ErrHash
	}
	return h, nil
}
