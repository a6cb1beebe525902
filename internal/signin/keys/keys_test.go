// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package keys

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func key(t testing.TB, age time.Duration) Key {
	t.Helper()
	k, err := New(start.Add(-age))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestNext(t *testing.T) {
	const day = 24 * time.Hour
	for name, tt := range map[string]struct {
		ages []time.Duration // the oldest first
		want Step
	}{
		"the first key is made":             {nil, Step{Add: true, Again: start}},
		"a young key stays":                 {[]time.Duration{day}, Step{Again: start.Add(29 * day)}},
		"an old key is followed by another": {[]time.Duration{30 * day}, Step{Add: true, Again: start}},
		"both stay while the new one is only known": {
			[]time.Duration{30 * day, time.Minute}, Step{Again: start.Add(Lead + Overlap - time.Minute)},
		},
		"both stay while tokens of the old one live": {
			[]time.Duration{30 * day, Lead + time.Minute}, Step{Again: start.Add(Overlap - time.Minute)},
		},
		"the old one goes when no token of it is left": {
			[]time.Duration{30 * day, Lead + Overlap}, Step{Remove: 1, Again: start.Add(30*day - Lead - Overlap)},
		},
		"a hub that was off for months catches up": {
			[]time.Duration{200 * day, 100 * day}, Step{Add: true, Remove: 1, Again: start.Add(-70 * day)},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var s Set
			for _, age := range tt.ages {
				s = append(s, key(t, age))
			}
			if got := Next(s, start); got != tt.want {
				t.Errorf("Next returned %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestKeySignsOnceItWasPublishedForAnHour(t *testing.T) {
	old, young := key(t, 30*24*time.Hour), key(t, Lead-time.Second)
	if got, err := (Set{old, young}).Active(start); err != nil || got.ID != old.ID {
		t.Errorf("the key %s signs (%v), want the old one, %s", got.ID, err, old.ID)
	}
	if got, err := (Set{old, young}).Active(start.Add(time.Second)); err != nil || got.ID != young.ID {
		t.Errorf("the key %s signs (%v), want the new one, %s", got.ID, err, young.ID)
	}
	if got, err := (Set{young}).Active(start); err != nil || got.ID != young.ID {
		t.Errorf("the key %s signs (%v), want the only one, %s", got.ID, err, young.ID)
	}
	if _, err := (Set{}).Active(start); err == nil {
		t.Error("an empty set has a key that signs")
	}
}

func TestDecodeReturnsTheEncodedSet(t *testing.T) {
	s := Set{key(t, time.Hour), key(t, time.Minute)}
	raw, err := Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Decode(raw)
	if err != nil || len(got) != 2 || got[0].ID != s[0].ID || got[1].ID != s[1].ID ||
		!got[0].Created.Equal(s[0].Created) || !got[1].Private.Equal(s[1].Private) {
		t.Errorf("Decode returned %d keys and %v, want the two that were encoded", len(got), err)
	}
	before, _ := s.Sealing(s[0])
	after, err := got.Sealing(got[0])
	if err != nil || len(after) != 2 || !bytes.Equal(before[0], after[0]) || bytes.Equal(after[0], after[1]) {
		t.Errorf("the sealing keys differ after decoding, or are equal to each other (%v)", err)
	}
	published, err := json.Marshal(got.JWKS())
	if err != nil || strings.Contains(string(published), `"d"`) || strings.Count(string(published), s[0].ID) != 1 {
		t.Errorf("the published set is %s (%v), want public keys only", published, err)
	}
}

func TestDecodeRefusesInvalidSets(t *testing.T) {
	secret := "c2VjcmV0LXNlY3JldC1zZWNyZXQ="
	for name, raw := range map[string]string{
		"text": secret, "an object": `{}`, "a key of another length": `[{"private":"` + secret + `"}]`,
		"the key zero": `[{"private":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}]`, "too many": "[" + strings.Repeat("{},", maxKeys) + "{}]",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Decode([]byte(raw)); err == nil || got != nil || strings.Contains(err.Error(), secret) {
				t.Errorf("Decode returned %v and %v, want an error that holds nothing of the key", got, err)
			}
		})
	}
}
