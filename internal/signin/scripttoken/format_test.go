// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package scripttoken

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"
)

var (
	key  = bytes.Repeat([]byte{1}, 32)
	when = time.Unix(1_800_000_000, 0)
)

func made(t testing.TB) (Token, string) {
	t.Helper()
	token, raw, err := Generate(key, when)
	if err != nil {
		t.Fatal(err)
	}
	return token, raw
}

func TestTokenHasOneEncodingOnly(t *testing.T) {
	token, raw := made(t)
	again, ok := Parse(raw)
	if !ok || again != token || !Is(raw) || !again.Made().Equal(when) || !IsID(token.ID) {
		t.Fatalf("%q is read as %+v", raw, again)
	}
	id, secret, _ := strings.Cut(raw, ":")
	last := "AB"
	if strings.HasSuffix(secret, "A") {
		last = "B"
	} else {
		last = last[:1]
	}
	for name, other := range map[string]string{
		"empty": "", "the ID alone": id, "no secret": id + ":", "cut": raw[:len(raw)-1], "longer": raw + "A", "upper case": strings.ToUpper(id) + ":" + secret,
		"another prefix": "tokem" + raw[5:], "Rancher's": "token-abcde:" + secret, "a line break in it": raw[:60] + "\n" + raw[60:], "one in place of a character": raw[:60] + "\n" + raw[61:],
		"padded": raw + "=", "not base64url": raw[:len(raw)-2] + "+/", "two separators": id + "::" + secret[1:], "spaces": " " + raw,
	} {
		if got, ok := Parse(other); ok {
			t.Errorf("%s: %q is read as %+v", name, other, got)
		}
	}
	for name, other := range map[string]string{"cut": raw[:len(raw)-1], "longer": raw + "A", "no secret": id + ":"} {
		if !Is(other) {
			t.Errorf("%s: it would be sent to the hub's API server", name)
		}
	}
	if changed := raw[:len(raw)-1] + last; changed != raw {
		if other, ok := Parse(changed); ok && other.Matches(token.Hash()) {
			t.Error("another secret matches")
		}
	}
}

func TestHashOfATokenMatchesOnlyItsSecret(t *testing.T) {
	token, raw := made(t)
	other, _ := made(t)
	_, secret, _ := strings.Cut(raw, ":")
	moved, ok := Parse("token-" + other.ID + ":" + secret)
	if !ok || moved.Matches(token.Hash()) {
		t.Errorf("a hash counts under another ID (%t)", ok)
	}
	if !token.Matches(token.Hash()) || token.Matches(other.Hash()) || token.Matches(nil) ||
		token.Matches(token.Hash()[:10]) {
		t.Error("a token matches another hash than its own")
	}
	if strings.Contains(string(token.Hash()), secret) ||
		strings.Contains(fmt.Sprintf("%+v %v %s", token, token, token.Hash()), secret) {
		t.Error("the secret is in what is kept or printed")
	}
}

func TestIDsOfTokensAreAuthenticated(t *testing.T) {
	token, raw := made(t)
	if !token.Ours(bytes.Repeat([]byte{2}, 32), key) || token.Ours() || token.Ours(bytes.Repeat([]byte{2}, 32)) {
		t.Error("an ID is not known by its key alone")
	}
	id, err := hex.DecodeString(token.ID)
	if err != nil {
		t.Fatal(err)
	}
	for n := range id {
		id[n] ^= 1
		forged, ok := Parse("token-" + hex.EncodeToString(id) + raw[strings.Index(raw, ":"):])
		if !ok || forged.Ours(key) {
			t.Errorf("an ID with another byte %d is one of the hub (%t)", n, ok)
		}
		id[n] ^= 1
	}
}

func FuzzParse(f *testing.F) {
	_, raw := made(f)
	for _, seed := range []string{"", raw, raw[:50], "token-:",
		"token-" + strings.Repeat("0", idLength) + ":" + strings.Repeat("A", 43), "token-abcde:secret",
		strings.Repeat("token-", 40)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		token, ok := Parse(raw)
		if !ok {
			return
		}
		if !Is(raw) || !IsID(token.ID) || !strings.HasPrefix(raw, "token-"+token.ID+":") ||
			len(raw) != len("token-")+idLength+1+43 || !token.Matches(token.Hash()) {
			t.Errorf("%q is read as %+v", raw, token)
		}
		_ = token.Ours(key)
		_ = token.Made()
	})
}
