// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package account

import (
	"slices"
	"strings"
	"testing"

	"github.com/drover-dev/drover/internal/identity"
)

func TestUnsafeUserNamesAreRefused(t *testing.T) {
	for _, good := range []string{"alice", "a", "0", "_svc", "alice.b-c_d", "alice@example.com", "alice+ci@example.com",
		"o'neil@example.com", strings.Repeat("a", maxName)} {
		if got, err := Principal("okta", good); err != nil || got != "okta:"+good {
			t.Errorf("%q is %q, %v", good, got, err)
		}
	}
	for name, bad := range map[string]string{
		"empty": "", "a colon": "system:masters", "of another provider": "ldap:alice", "a slash": "acme/alice", "a capital": "Alice", "a space": "a b", "space around": " alice", "a line": "alice\n",
		"NUL": "al\x00ice", "an escape": "\x1b[2Jalice", "Cyrillic": "аlice", "fullwidth": "ａlice", "a combining letter": "alicé", "a joiner": "al\u200dice", "right to left": "\u202ealice",
		"no UTF-8": "al\xffice", "a dash first": "-alice", "a dot first": ".alice", "a dot last": "alice.", "two dots": "..", "a pattern": "*", "a comma": "alice,bob", "a quote first": "'neil", "a quote last": "neil'", "a double quote": `o"neil`, "another quote": "o’neil", "a percent": "a%3ab",
		"a back slash": `acme\alice`, "an equals sign": "cn=alice", "too long": strings.Repeat("a", maxName+1),
	} {
		if got, err := Principal("okta", bad); err == nil || got != "" {
			t.Errorf("%s: %q is the principal %q", name, bad, got)
		} else if len(err.Error()) > 1024 || strings.ContainsAny(err.Error(), "\x00\x1b\n\u202e") {
			t.Errorf("%s: the error is %q", name, err)
		}
	}
}

func TestInvalidGroupNamesAreLeftOut(t *testing.T) {
	for name, bad := range map[string]string{
		"empty": "", "a colon": "system:masters", "space around": " ops", "a line": "ops\nadmins", "NUL": "o\x00ps", "Cyrillic": "оps", "a joiner": "o\u200dps", "no UTF-8": "o\xffps",
		"a tab": "o\tps", "delete": "ops\x7f", "too long": strings.Repeat("g", maxGroup+1),
	} {
		if got := Groups("okta", []string{bad, "ops"}); !slices.Equal(got, []string{"okta:ops"}) {
			t.Errorf("%s: of %q and ops are left %q", name, bad, got)
		}
	}
	good := []string{"ops", "Ops", "acme/web", "cn=ops people,ou=eu,dc=acme", "a b", strings.Repeat("g", maxGroup)}
	got := Groups("okta", good)
	if len(got) != len(good) {
		t.Fatalf("of %q are left %q", good, got)
	}
	for i, g := range good { // in order, and none is another's
		if got[i] != "okta:"+g {
			t.Errorf("%q is %q", g, got[i])
		}
	}
}

// FuzzNames checks that the proxy can send every accepted name, and that the name belongs to the provider.
func FuzzNames(f *testing.F) {
	for _, seed := range []string{"alice", "system:masters", "Alice", "аlice", "a\x00", "a b", "acme/web", "\xff", "a@b",
		"ops\r\nX: y"} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, name, group string) {
		groups := Groups("okta", []string{group})
		principal, err := Principal("okta", name)
		if err != nil {
			principal = "okta:alice"
		}
		if id, err := identity.Principal(principal, "1", groups...); err != nil {
			t.Errorf("the name %q with the group %q is taken as %q and %q, which no request can have: %v", name, group,
				principal, groups, err)
		} else if id.Hub.Groups[0] != "system:authenticated" ||
			slices.ContainsFunc(id.Hub.Groups[1:], func(g string) bool { return g != "okta:"+group }) {
			t.Errorf("on the hub %q has the groups %q", principal, id.Hub.Groups)
		}
	})
}
