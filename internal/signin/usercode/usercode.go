// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package usercode makes the codes that users type to let a program on another device act as them (RFC 8628), and tells
// codes of this hub from others.
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
	// Lifetime is how long a code can be typed, and as long again if it was made just before.
	Lifetime = 10 * time.Minute
	// letters are those of a code: neither vowels, so that it spells no word, nor what looks alike (RFC 8628, section
	// 6.1).
	letters = "BCDFGHJKLMNPQRSTVWXZ"
	// random and checked are how many letters a code has. The first are random, 39 bits. The others tell that this hub has
	// made the code not long ago, so that a wrong one is found without an object for each right one.
	random, checked = 9, 3
	// maxTyped bounds what is typed, in bytes.
	maxTyped = 64
)

// New makes a code for a time. The key is secret.
func New(key []byte, now time.Time) (string, error) {
	text := make([]byte, 0, random)
	for len(text) < random {
		var one [1]byte
		_, _ = rand.Read(one[:]) // never fails
		if one[0] < 240 {        // a multiple of 20: every letter is as likely
			text = append(text, letters[one[0]%byte(len(letters))])
		}
	}
	check, err := checkOf(key, string(text), slot(now))
	return string(text) + check, err
}

// Parse returns the code that a user has typed, if New made it with one of some keys within its lifetime.
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

// Format writes a code as users read it.
func Format(code string) string {
	if len(code) != random+checked {
		return code
	}
	return code[:4] + "-" + code[4:8] + "-" + code[8:]
}

// Session is the ID of the session that a code leads to: who approves it and the device that polls need nothing else in
// common.
func Session(code string) string {
	sum := sha256.Sum256([]byte("drover user code " + code))
	return hex.EncodeToString(sum[:16])
}

func slot(now time.Time) int64 { return now.Unix() / int64(Lifetime/time.Second) }

// checkOf returns the letters that follow random ones.
func checkOf(key []byte, text string, slot int64) (string, error) {
	derived, err := hkdf.Key(sha256.New, key, nil, "drover sign-in: user codes", sha256.Size)
	if err != nil {
		return "", fmt.Errorf("derive key of user codes: %w", err)
	}
	mac := hmac.New(sha256.New, derived)
	_ = binary.Write(mac, binary.BigEndian, slot) // a hash takes all
	mac.Write([]byte(text))
	n := binary.BigEndian.Uint64(mac.Sum(nil))
	check := make([]byte, checked)
	for i := range check {
		check[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	return string(check), nil
}
