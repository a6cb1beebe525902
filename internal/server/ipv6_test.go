// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/testkit"
)

// A hub and an agent with only IPv6.
func TestIPv6(t *testing.T) {
	t.Parallel()
	if listener, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("this machine has no IPv6: ", err)
	} else if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	ca, err := trust.NewAuthority(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	env := testkit.Shared(t)
	w := newReplica(t, env, env.Workspace(t), ca,
		`drain: {delay: 0s, sessions: 1s}, server: {listen: "[::1]:0", urls: ["https://[::1]"]}`)
	stop := w.start()
	if !strings.HasPrefix(w.base, "[::1]:") {
		t.Fatalf("the hub listens on %s, want an IPv6 address", w.base)
	}
	m, user := w.moves(t, "six"), w.reader("six-user")
	for _, h2 := range []bool{true, false} {
		if got := w.send(w.client(h2), http.MethodGet, m.path+"/api/v1/pods", user); got.body != "answer" {
			t.Errorf("HTTP/2 %t: %d %s, want the member's answer", h2, got.code, got.body)
		}
	}
	if err := w.shell(t, m.path, user).says("hello"); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
