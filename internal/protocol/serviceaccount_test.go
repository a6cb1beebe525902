// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"net/http"
	"strings"
	"testing"
)

func TestParseServiceAccount(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]ServiceAccount{
		"system:serviceaccount:web:deployer":        {"web", "deployer"},
		"system:serviceaccount:web:a.b-c":           {"web", "a.b-c"},
		"system:serviceaccount:drover-agent:drover": {"drover-agent", "drover"},
		"system:serviceaccount:web":                 {},
		"system:serviceaccount:web:":                {},
		"system:serviceaccount::x":                  {},
		"system:serviceaccount:web:x:y":             {},
		"system:serviceaccount:we.b:x":              {},
		"system:serviceaccount:web:X":               {},
		"system:serviceaccount:web:x ":              {},
		"system:serviceaccount:web:x/y":             {},
		"system:serviceaccounts:web:x":              {},
		"hub:system:serviceaccount:web:x":           {},
		"system:admin":                              {},
		"":                                          {},
	} {
		got, is := ParseServiceAccount(user)
		if is != (want != ServiceAccount{}) || is && (got != want || got.User() != user) {
			t.Errorf("got %[2]v, %[3]t for %[1]q, want %[4]v", user, got, is, want)
		}
	}
	for namespace, want := range map[string]bool{
		"drover-agent": true, "drover-plans": true, "drover-system": true, "drover": true,
		"drovers": false, "web": false, "a-drover-b": false,
	} {
		if got := (ServiceAccount{Namespace: namespace}).Reserved(); got != want {
			t.Errorf("namespace %s belongs to Drover: %t, want %t", namespace, got, want)
		}
	}
	canonical := http.CanonicalHeaderKey(HeaderServiceAccount) == HeaderServiceAccount
	if !canonical || !strings.HasPrefix(HeaderServiceAccount, "Impersonate-") {
		t.Errorf("the header is %s, want a canonical header that begins with Impersonate-, which other agents refuse",
			HeaderServiceAccount)
	}
}
