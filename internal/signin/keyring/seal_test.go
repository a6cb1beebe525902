// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package keyring

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func sealerWith(t testing.TB, keys ...byte) *sealer {
	t.Helper()
	var all [][]byte
	for _, key := range keys {
		all = append(all, bytes.Repeat([]byte{key}, 32))
	}
	s, err := newSealer(all...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSealedValueOpensForItsPurposeOnly(t *testing.T) {
	old, rotated, other := sealerWith(t, 1), sealerWith(t, 2, 1), sealerWith(t, 3)
	sealed, err := old.Seal("code", map[string]string{"user": "alice"})
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := old.Seal("code", map[string]string{"user": "alice"}); again == sealed ||
		strings.Contains(sealed, "alice") {
		t.Errorf("sealed twice: %q and %q, want two that differ and cannot be read", sealed, again)
	}
	changed := []byte(sealed)
	changed[20] ^= 1
	for name, tt := range map[string]struct {
		s       *sealer
		purpose string
		sealed  string
		opens   bool
	}{
		"as it was":               {old, "code", sealed, true},
		"after the key changed":   {rotated, "code", sealed, true},
		"for another purpose":     {old, "login", sealed, false},
		"with another key":        {other, "code", sealed, false},
		"changed":                 {old, "code", string(changed), false},
		"cut":                     {old, "code", sealed[:len(sealed)-4], false},
		"empty":                   {old, "code", "", false},
		"another encoding":        {old, "code", sealed + "=", false},
		"with a line break in it": {old, "code", sealed[:8] + "\n" + sealed[8:], false},
		"too long":                {old, "code", strings.Repeat("A", maxSealed+1), false},
	} {
		t.Run(name, func(t *testing.T) {
			var got map[string]string
			err := tt.s.Open(tt.purpose, tt.sealed, &got)
			if (err == nil) != tt.opens || tt.opens && got["user"] != "alice" || !tt.opens && !errors.Is(err, errSealed) {
				t.Errorf("Open returned %v and %v, want it to open: %t", got, err, tt.opens)
			}
		})
	}
}

func TestSealerNeedsAKeyOf32Bytes(t *testing.T) {
	for _, keys := range [][][]byte{nil, {nil}, {make([]byte, 16)}} {
		if _, err := newSealer(keys...); err == nil {
			t.Errorf("newSealer(%v) succeeded", keys)
		}
	}
}

func FuzzOpenAnything(f *testing.F) {
	f.Add("AAAA")
	f.Fuzz(func(t *testing.T, sealed string) {
		var into map[string]any
		if err := sealerWith(t, 1).Open("code", sealed, &into); err == nil {
			t.Errorf("%q was opened", sealed)
		}
	})
}
