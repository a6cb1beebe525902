// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package delivery_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/delivery"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// swift stands for members that are all connected and accept each set immediately.
type swift struct{ taken atomic.Int64 }

func (f *swift) State(types.NamespacedName) members.State {
	report := testkit.HealthyReport()
	return members.State{Peers: []members.Peer{{ID: "a"}}, Report: &report}
}
func (f *swift) TooFast(types.NamespacedName, string)                    {}
func (f *swift) Leading(types.NamespacedName) (http.RoundTripper, error) { return f, nil }

func (f *swift) RoundTrip(r *http.Request) (*http.Response, error) {
	var put struct {
		ID, Digest string
		Content    struct{ Baseline *set.BaselineContent }
	}
	if err := json.NewDecoder(r.Body).Decode(&put); err != nil {
		return nil, err
	}
	state := protocol.SetState{ID: put.ID, Digest: put.Digest, Phase: protocol.SetApplied}
	if c := put.Content.Baseline; c != nil {
		n := int32(len(c.Objects))
		state.Baseline = &protocol.BaselineState{Revision: c.Revision, Objects: n, Healthy: n}
	}
	answer, err := json.Marshal(state)
	f.taken.Add(1)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(bytes.NewReader(answer))}, err
}

// heap returns the bytes of the heap that are in use.
func heap() int64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc)
}

// BenchmarkThousandMembers measures the cost of a set in a member for the hub, without HTTP. Run it with -benchtime 3x.
func BenchmarkThousandMembers(b *testing.B) {
	b.Run("binding", func(b *testing.B) {
		benchmarkMembers(b, func(i int) *set.Set { return newSet(b, fmt.Sprintf("crtb/x%d", i), "1") })
	})
	b.Run("baseline", func(b *testing.B) {
		benchmarkMembers(b, func(i int) *set.Set {
			name := fmt.Sprintf("x%d", i)
			objects := slices.Repeat([]json.RawMessage{json.RawMessage(`{"a":"b"}`)}, 10)
			s, err := set.New(set.ID(set.Baseline, name), nil, set.Content{Baseline: &set.BaselineContent{
				Name: name, Revision: "0123456789abcdef", Objects: objects,
			}})
			if err != nil {
				b.Fatal(err)
			}
			return s
		})
	})
}

func benchmarkMembers(b *testing.B, made func(i int) *set.Set) {
	const count, each = 1000, 20
	b.ReportAllocs()
	for range b.N {
		b.StopTimer()
		f := &swift{}
		store := delivery.New(delivery.Options{State: f.State, Leading: f.Leading, Log: logr.Discard()})
		var names []types.NamespacedName
		for i := range count {
			names = append(names, types.NamespacedName{Namespace: "team-a", Name: fmt.Sprint("c", i)})
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan struct{})
		go func() { defer close(done); _ = store.Start(ctx) }()
		store.Replace(delivery.Key{Name: "first"}, to(newSet(b, "crtb/first", "1"), names...))
		for _, name := range names {
			store.Synced(name, nil)
		}
		arrived := func(want int64) {
			testkit.Eventually(b, time.Minute, func(context.Context) error {
				if got := f.taken.Load(); got != want {
					return fmt.Errorf("got %d sets, want %d", got, want)
				}
				return nil
			})
		}
		arrived(count)
		before := heap()
		for i := range each { // one after the other, because the queue never shrinks
			store.Replace(delivery.Key{Name: fmt.Sprint("first", i)}, to(made(each+i), names...))
			arrived(int64(count * (i + 2)))
		}
		b.ReportMetric(float64(heap()-before)/(count*each), "B-kept/set")
		b.StartTimer()
		for i := range each {
			store.Replace(delivery.Key{Name: fmt.Sprint(i)}, to(made(i), names...))
		}
		arrived(count * (2*each + 1))
		b.StopTimer()
		cancel()
		<-done
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*count*each), "µs/set")
}
