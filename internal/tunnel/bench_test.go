// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tunnel

import (
	"io"
	"net/http"
	"testing"
)

// BenchmarkRequest measures requests through a tunnel over a pipe: both ends without WebSocket, TLS or a network.
func BenchmarkRequest(b *testing.B) {
	answer := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	send := func(b *testing.B, s *Session) {
		r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "https://member/api/v1/namespaces/default", nil)
		if err != nil {
			b.Fatal(err)
		}
		r.Header.Set("Accept", "application/json")
		r.Header.Set("Impersonate-User", "alice")
		if body, err := whole(s.RoundTrip(r)); err != nil || body != "fine" {
			b.Errorf("got %q, %v, want \"fine\"", body, err)
		}
	}
	b.Run("one at a time", func(b *testing.B) {
		p := overPipe(b, Config{}, answer)
		b.ReportAllocs()
		for b.Loop() {
			send(b, p.session)
		}
	})
	b.Run("16 at once", func(b *testing.B) {
		p := overPipe(b, Config{}, answer)
		b.ReportAllocs()
		b.SetParallelism(8)
		b.RunParallel(func(each *testing.PB) {
			for each.Next() {
				send(b, p.session)
			}
		})
	})
}
