// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package password

import (
	"strings"
	"testing"
)

func TestOnlyTheRightPasswordMatchesTheHash(t *testing.T) {
	secret := Random()
	if len(secret) != 26 || secret == Random() {
		t.Fatalf("Random returned %q, want 26 characters that differ each time", secret)
	}
	first, err := Hash(secret)
	if err != nil {
		t.Fatal(err)
	}
	second, err := Hash(secret)
	if err != nil || first == second || strings.Contains(first, secret) {
		t.Fatalf("the hashes of one password are %q and %q (%v), want two that differ and hold no password", first, second,
			err)
	}
	for text, want := range map[string]bool{secret: true, secret + "x": false, "": false, strings.ToUpper(secret): false,
		strings.Repeat("x", Max+1): false} {
		if got, err := Verify(first, text); got != want || err != nil {
			t.Errorf("Verify of %d bytes returned %t and %v, want %t", len(text), got, err, want)
		}
	}
}

func TestNoPasswordHasTheHashOfNothing(t *testing.T) {
	for _, text := range []string{"", "x", strings.Repeat("\x00", 32)} {
		if got, err := Verify(Nothing(), text); got || err != nil {
			t.Errorf("Verify of %q returned %t and %v, want false", text, got, err)
		}
	}
}

func TestPasswordOfAnotherLengthIsRefused(t *testing.T) {
	for _, text := range []string{"", "elevenchars", strings.Repeat("x", Max+1)} {
		if _, err := Hash(text); err == nil || (text != "" && strings.Contains(err.Error(), text)) {
			t.Errorf("Hash of %d bytes returned %v, want an error without the password", len(text), err)
		}
	}
}

// A user who may write a hash must not decide how much memory and time the manager needs.
func TestHashOutsideOfTheBoundsIsNotComputed(t *testing.T) {
	const tail = "$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	for name, text := range map[string]string{
		"empty": "", "plain text": "hunter2hunter2", "argon2i": "$argon2i$v=19$m=19456,t=2,p=1" + tail,
		"another version": "$argon2id$v=16$m=19456,t=2,p=1" + tail, "4 GiB": "$argon2id$v=19$m=4194304,t=2,p=1" + tail,
		"many passes": "$argon2id$v=19$m=19456,t=1000,p=1" + tail, "many lanes": "$argon2id$v=19$m=19456,t=2,p=200" + tail,
		"no lane": "$argon2id$v=19$m=19456,t=2,p=0" + tail, "no pass": "$argon2id$v=19$m=19456,t=0,p=1" + tail,
		"a number that overflows": "$argon2id$v=19$m=4294986752,t=2,p=1" + tail, "more parameters": "$argon2id$v=19$m=19456,t=2,p=1,x=1" + tail,
		"a short hash": "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAA", "no salt": "$argon2id$v=19$m=19456,t=2,p=1$$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Verify(text, "hunter2hunter2"); err == nil || got {
				t.Errorf("Verify returned %t and %v, want an error", got, err)
			}
			if Valid(text) == nil {
				t.Error("it is valid, want an error")
			}
		})
	}
}

func FuzzVerifyParsesAnyHash(f *testing.F) {
	f.Add(Nothing())
	f.Add("$argon2id$v=19$m=1,t=1,p=1$$")
	f.Fuzz(func(t *testing.T, text string) {
		if h, err := parse(text); err == nil &&
			(h.memory > maxMemory || h.passes > maxPasses || h.lanes > maxLanes || h.lanes == 0) {
			t.Errorf("%q is within the bounds as %+v", text, h)
		}
	})
}
