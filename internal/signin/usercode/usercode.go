// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package usercode generates and recognizes the user codes of the device authorization grant (RFC 8628).
package usercode

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
)

const (
	// Lifetime is the minimum lifetime of a code. Depending on when a code was generated, it may be valid for up to
	// twice that time.
	Lifetime = 10 * time.Minute
	// letters are the letters that codes consist of. There are no vowels, so that codes do not spell words, and no letters
	// that look alike (RFC 8628, section 6.1).
	letters = "BCDFGHJKLMNPQRSTVWXZ"
	// The constants random and checked are the numbers of random letters and check letters in a code. The random letters
	// carry 39 bits of entropy. The check letters prove that this hub generated the code recently, so the hub can detect
	// wrong codes without storing an object for each code.
	random, checked = 9, 3
	// maxTyped is the maximum length of a user's input, in bytes.
	maxTyped = 64
)

// New generates a code. The secret key authenticates the code.
func New(key []byte, now time.Time) (string, error) {
	text := make([]byte, 0, random)
	for len(text) < random {
		var one [1]byte
		_, _ = rand.Read(one[:]) // never fails
		if one[0] < 240 {        // a multiple of 20, so that every letter is equally likely
			text = append(text, letters[one[0]%byte(len(letters))])
		}
	}
	check, err := checkOf(key, string(text), slot(now))
	return string(text) + check, err
}

// Parse returns the code that a user has typed. It reports whether New generated the code with one of the keys and
// whether the code is still valid.
func Parse(typed string, now time.Time, keys ...[]byte) (string, bool) {
	if len(typed) > maxTyped {
		return "", false
	}
	code := strings.Map(func(c rune) rune {
		if c == '-' || c == ' ' {
			return -1
		}
		return c
	}, strings.ToUpper(typed))
	if len(code) != random+checked || strings.Trim(code, letters) != "" {
		return "", false
	}
	for _, key := range keys {
		for back := range int64(2) {
			check, err := checkOf(key, code[:random], slot(now)-back)
			if err == nil && hmac.Equal([]byte(check), []byte(code[random:])) {
				return code, true
			}
		}
	}
	return "", false
}

// Format formats a code for display.
func Format(code string) string {
	if len(code) != random+checked {
		return code
	}
	return code[:4] + "-" + code[4:8] + "-" + code[8:]
}

// Session returns the ID of the session for a code. The ID is derived from the code, because only the code is known
// when the user approves the device and when the device polls.
func Session(code string) string {
	sum := sha256.Sum256([]byte("drover user code " + code))
	return hex.EncodeToString(sum[:16])
}

func slot(now time.Time) int64 { return now.Unix() / int64(Lifetime/time.Second) }

// checkOf returns the letters that prove that the hub generated a code.
func checkOf(key []byte, text string, slot int64) (string, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "drover sign-in: user codes", sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive key of user codes: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	_ = binary.Write(mac, binary.BigEndian, slot) // writing to a hash never fails
	mac.Write([]byte(text))
	n := binary.BigEndian.Uint64(mac.Sum(nil))
	check := make([]byte, checked)
	for i := range check {
		check[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	return string(check), nil
}
