// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/internal/protocol"
)

// TestReadOnlyAgentImpersonatesOnlyTheViewer covers CVE-2021-36782: objects that the agent's own account may read, such
// as its private key, must not be readable through the hub. A read-only agent acts as one user, who has only the rights
// to view.
func TestReadOnlyAgentImpersonatesOnlyTheViewer(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]http.Header{
		"for a user": alice(),
		"for a user with groups and extras": {"Impersonate-User": {"hub:alice"}, "Impersonate-Group": {"hub:ops"},
			"Impersonate-Uid": {"7"}, "Impersonate-Extra-Scopes": {"a"}},
		"for a user who calls itself so": {"Impersonate-User": {protocol.Viewer}, "Impersonate-Group": {"hub:ops"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got http.Header
			backend := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter,
				r *http.Request) {
				got = r.Header.Clone()
			}))
			t.Cleanup(backend.Close)
			front := serveBy(t, &rest.Config{Host: backend.URL, BearerToken: "agents-own"}, NewReadOnly)
			send(t, front, "/v1/k8s/api/v1/namespaces/drover-agent/secrets/drover-agent-identity", header)
			maps.DeleteFunc(got, func(name string, _ []string) bool { return !isImpersonation(name) })
			if len(got) != 1 || !slices.Equal(got[impersonateUser], []string{protocol.Viewer}) {
				t.Errorf("the API server was asked as %v", got)
			}
		})
	}
}

// TestNoRequestIsForwardedAsTheAgent checks that the transport denies requests even if they passed the checks.
func TestNoRequestIsForwardedAsTheAgent(t *testing.T) {
	t.Parallel()
	sent := 0
	transport := asUser{roundTripper(func(*http.Request) (*http.Response, error) { sent++; return &http.Response{}, nil })}
	for name, tc := range map[string]struct {
		header http.Header
		passes bool
	}{
		"one user":                           {alice(), true},
		"no user":                            {http.Header{}, false},
		"an empty user":                      {http.Header{"Impersonate-User": {""}}, false},
		"two users":                          {http.Header{"Impersonate-User": {"a", "b"}}, false},
		"a group alone":                      {http.Header{"Impersonate-Group": {"a"}}, false},
		"a user by a name that no one reads": {http.Header{"impersonate-user": {"a"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			before := sent
			resp, err := transport.RoundTrip(&http.Request{Header: tc.header})
			if err == nil && resp.Body != nil {
				_ = resp.Body.Close()
			}
			if tc.passes != (sent > before) || tc.passes != (err == nil) || !tc.passes && !errors.Is(err, errNoUser) {
				t.Errorf("sent: %t, %v", sent > before, err)
			}
		})
	}
}
