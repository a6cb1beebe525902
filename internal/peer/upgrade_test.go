// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/drover-dev/drover/test/testkit"
)

func TestUpgradedConnectionThatTheMemberHasClosedIsReadToItsEnd(t *testing.T) {
	const upgrade = "GET / HTTP/1.1\r\nHost: member\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"
	testkit.ReadUpgradeToEnd(t, upgrade, func(transport http.RoundTripper) string {
		forwarder := newForwarder()
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			to := &target{member: member, path: "/v1/k8s/exec", transport: transport}
			forwarder.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), targetKey{}, to)))
		}))
		t.Cleanup(front.Close)
		return front.Listener.Addr().String()
	})
}
