// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package members_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
)

// instant is a silent session that answers all requests except the one for its report at once.
type instant struct{ *silent }

func (s instant) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Path == protocol.PathReport {
		return s.silent.RoundTrip(r)
	}
	return &answer, nil
}

var answer = http.Response{StatusCode: http.StatusOK, Body: http.NoBody}

// BenchmarkTransport measures what the registry adds to a request: the choice of a tunnel among a thousand members.
func BenchmarkTransport(b *testing.B) {
	registry := members.New(logr.Discard(), time.Now)
	b.Cleanup(registry.Close)
	var reading sync.WaitGroup
	const many = 1000
	reading.Add(many)
	for i := range many {
		registry.Add(peer(fmt.Sprint("member-", i), "key"), instant{newSilent(&reading)})
	}
	reading.Wait()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://agent/", http.NoBody)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		transport, err := registry.Transport(name("member-500"))
		if err != nil {
			b.Fatal(err)
		}
		if _, err := transport.RoundTrip(req); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIdleMember measures the heap that the registry uses for a connected member that reports nothing new.
func BenchmarkIdleMember(b *testing.B) {
	for b.Loop() {
		registry := members.New(logr.Discard(), time.Now)
		before := heap()
		var reading sync.WaitGroup
		const many = 3000
		reading.Add(many)
		for i := range many {
			registry.Add(peer(fmt.Sprint("member-", i), "key"), newSilent(&reading))
		}
		reading.Wait()
		b.ReportMetric(float64(heap()-before)/many, "B/member")
		registry.Close()
	}
}
