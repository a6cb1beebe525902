// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"net/http"
	"testing"
)

// TestCheck covers four vulnerabilities. In CVE-2022-23652, Connection removes the user. In CVE-2026-17107, a user is
// added. In CVE-2026-23990, the user is empty, so the agent acts as itself. In GHSA-c7xh-gjv4-4jgv, a user gets a group
// of the system.
func TestCheck(t *testing.T) {
	t.Parallel()
	alice := func(more ...string) http.Header {
		h := http.Header{"Impersonate-User": {"hub:alice"}}
		for i := 0; i < len(more); i += 2 {
			h[more[i]] = append(h[more[i]], more[i+1])
		}
		return h
	}
	for name, tc := range map[string]struct {
		header http.Header
		want   int // 0 if the request passes
	}{
		"a user passes": {alice(), 0},
		"a user with groups, UID and extra passes": {alice("Impersonate-Group", "hub:dev", "Impersonate-Group",
			"system:authenticated", "Impersonate-Uid", "1", "Impersonate-Extra-Scopes", "a"), 0},
		"a ServiceAccount beside the user is looked at later": {alice("Impersonate-Drover-Serviceaccount",
			"system:serviceaccount:web:x"), 0},
		"a ServiceAccount without a user is denied": {
			http.Header{"Impersonate-Drover-Serviceaccount": {"system:serviceaccount:web:x"}}, http.StatusForbidden},
		"a hub's ServiceAccount passes, it has a prefix": {
			http.Header{"Impersonate-User": {"hub:system:serviceaccount:ci:deployer"}}, 0},
		"no user is denied": {http.Header{}, http.StatusForbidden},
		"groups without a user are denied": {http.Header{"Impersonate-Group": {"hub:dev"}},
			http.StatusForbidden},
		"two users are denied": {alice("Impersonate-User", "hub:bob"), http.StatusForbidden},
		"two UIDs are denied": {alice("Impersonate-Uid", "1", "Impersonate-Uid", "2"),
			http.StatusForbidden},
		"an empty user is denied": {http.Header{"Impersonate-User": {""}}, http.StatusBadRequest},
		"system:admin is denied": {http.Header{"Impersonate-User": {"system:admin"}},
			http.StatusForbidden},
		"a ServiceAccount of the member is denied": {http.Header{"Impersonate-User": {"system:serviceaccount:kube-system:x"}},
			http.StatusForbidden},
		"the user of a Baseline is denied": {http.Header{"Impersonate-User": {"drover:baseline:cni"}},
			http.StatusForbidden},
		"system:masters is denied": {alice("Impersonate-Group", "system:masters"), http.StatusForbidden},
		"system:masters after an honest group is denied": {alice("Impersonate-Group", "dev", "Impersonate-Group",
			"system:masters"), http.StatusForbidden},
		"system:nodes is denied":                    {alice("Impersonate-Group", "system:nodes"), http.StatusForbidden},
		"blanks that the way would trim are denied": {alice("Impersonate-Group", " system:masters"), http.StatusBadRequest},
		"a tab before a system user is denied": {http.Header{"Impersonate-User": {"\tsystem:admin"}},
			http.StatusBadRequest},
		"an unknown impersonation header is denied":  {alice("Impersonate-Everyone", "true"), http.StatusBadRequest},
		"an extra without a key is denied":           {alice("Impersonate-Extra-", "true"), http.StatusBadRequest},
		"a header that is not canonical is denied":   {alice("impersonate-group", "system:masters"), http.StatusBadRequest},
		"CVE-2021-31999: Connection naming the user": {alice("Connection", "Impersonate-User"), http.StatusBadRequest},
		"CVE-2021-31999: in odd case, in a list": {alice("Connection", "keep-alive, iMPERSONATE-group"),
			http.StatusBadRequest},
		"CVE-2021-31999: in a second line": {alice("Connection", "close", "Connection", "impersonate-uid"),
			http.StatusBadRequest},
		"Connection naming Authorization is denied":       {alice("Connection", "authorization"), http.StatusBadRequest},
		"Connection naming something else passes":         {alice("Connection", "Upgrade"), 0},
		"CVE-2021-36776: a user beside the hub's is none": {alice("Impersonate-User", "admin"), http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := 0
			if d := check(tc.header); d != nil {
				got = d.status
			}
			if got != tc.want {
				t.Errorf("status %d, want %d", got, tc.want)
			}
		})
	}
}

func FuzzCheckNeverLetsASystemIdentityPass(f *testing.F) {
	f.Add("hub:alice", "system:authenticated", "Upgrade")
	f.Add(" system:admin", "system:masters", "Impersonate-User")
	f.Add("alice", "system:masters ", "close, impersonate-group")
	f.Fuzz(func(t *testing.T, user, group, connection string) {
		h := http.Header{"Impersonate-User": {user}, "Impersonate-Group": {group}, "Connection": {connection}}
		if check(h) != nil {
			return
		}
		// The API server sees these values, which net/http trims on the way.
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header = h
		for _, v := range arrives(t, req) {
			if len(v) >= len(systemPrefix) && v[:len(systemPrefix)] == systemPrefix && v != groupAuthenticated {
				t.Errorf("%q passed", v)
			}
		}
	})
}
