// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package usercode

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

var (
	start    = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	key, old = bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 32)
)

func made(t testing.TB, key []byte, now time.Time) string {
	t.Helper()
	code, err := New(key, now)
	if err != nil {
		t.Fatal(err)
	}
	return code
}

func TestParse(t *testing.T) {
	code := made(t, key, start)
	for name, tt := range map[string]struct {
		typed string
		at    time.Duration
		want  bool
	}{
		"as it is shown":                 {Format(code), 0, true},
		"without hyphens":                {code, 0, true},
		"in small letters with spaces":   {strings.ToLower(code[:4] + " " + code[4:] + " "), 0, true},
		"at the end of its time":         {code, Lifetime, true},
		"of a replica whose clock lags":  {made(t, key, start.Add(-time.Second)), 0, true},
		"by a key that was rotated":      {made(t, old, start), 0, true},
		"of half an hour ago":            {code, 30 * time.Minute, false},
		"of the future":                  {code, -30 * time.Minute, false},
		"cut":                            {code[:len(code)-1], 0, false},
		"longer":                         {code + "B", 0, false},
		"nothing":                        {"", 0, false},
		"with a vowel":                   {"A" + code[1:], 0, false},
		"a look-alike of another script": {"В" + code[1:], 0, false},
		"without bound":                  {code + strings.Repeat("-", maxTyped), 0, false},
	} {
		got, ok := Parse(tt.typed, start.Add(tt.at), key, old)
		if ok != tt.want || ok && len(got) != random+checked {
			t.Errorf("%s: %q is %q (%t), want %t", name, tt.typed, got, ok, tt.want)
		}
	}
}

func TestUserCodeOfAnotherHubIsDetected(t *testing.T) {
	taken := 0
	for range 1000 {
		if _, ok := Parse(made(t, bytes.Repeat([]byte{3}, 32), start), start, key, old); ok {
			taken++
		}
	}
	if taken > 10 { // with two keys and two slots one in 2,000 is expected
		t.Errorf("%d of 1000 codes of another hub are taken", taken)
	}
}

func TestTypingErrorsInAUserCodeAreDetected(t *testing.T) {
	wrong := 0
	const all = 2000
	for range all / 20 {
		code := []byte(made(t, key, start))
		for i := range 20 {
			one := bytes.Clone(code)
			at := i % len(one)
			one[at] = letters[(strings.IndexByte(letters, one[at])+1+i/len(one))%len(letters)]
			if _, ok := Parse(string(one), start, key); ok {
				wrong++
			}
		}
	}
	if wrong > 20 { // one in 4,000 is expected
		t.Errorf("of %d codes with one wrong letter %d are taken for right ones", all, wrong)
	}
}

func TestCodesAreSpreadOverAllLetters(t *testing.T) {
	seen, codes := map[rune]int{}, map[string]bool{}
	const all = 2000
	for range all {
		code := made(t, key, start)
		codes[code[:random]] = true
		for _, c := range code[:random] {
			seen[c]++
		}
	}
	if len(codes) != all || len(seen) != len(letters) {
		t.Errorf("%d codes are %d different ones of %d letters", all, len(codes), len(seen))
	}
	for c, n := range seen { // 900 each
		if n < 700 || n > 1100 {
			t.Errorf("the letter %c is there %d times, want about %d", c, n, all*random/len(letters))
		}
	}
}

func TestUserCodeLeadsToOneSession(t *testing.T) {
	a, b := Session("BCDFGHJKLMNP"), Session("BCDFGHJKLMNQ")
	if a == b || len(a) != 32 || a != Session("BCDFGHJKLMNP") {
		t.Errorf("the sessions are %s and %s", a, b)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("BCDF-GHJK-LMNP")
	f.Add("ſſſſ")
	f.Fuzz(func(t *testing.T, typed string) {
		code, ok := Parse(typed, start, key)
		if again, same := Parse(Format(code), start, key); ok && (!same || again != code) {
			t.Errorf("%q is read as %q, and that as %q", typed, code, again)
		}
	})
}
