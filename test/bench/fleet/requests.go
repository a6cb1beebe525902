// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/drover-dev/drover/test/fleetsim/sim"
)

// requestInterval is the interval between requests. It does not depend on the responses, so that a slow hub does not
// slow down its own measurement.
const requestInterval = 10 * time.Millisecond

// latencies are the latencies of requests.
type latencies struct {
	answered []time.Duration // with 200, sorted
	away     int             // 503: the member is not connected
	failed   int             // anything else
}

// at returns the smallest latency that the share q of the responses did not exceed.
func (l latencies) at(q float64) time.Duration {
	if len(l.answered) == 0 {
		return 0
	}
	rank := int(q*float64(len(l.answered)) + 0.9999999)
	return l.answered[max(rank, 1)-1]
}

// requests gets a ConfigMap from random members until ctx ends.
func (p *probe) requests(ctx context.Context, members, workspaces int) latencies {
	var (
		mu     sync.Mutex // guards found
		found  latencies
		asking sync.WaitGroup
	)
	ticker := time.NewTicker(requestInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			asking.Wait()
			slices.Sort(found.answered)
			return found
		case <-ticker.C:
		}
		asking.Go(func() {
			name := sim.ClusterName(rand.N(members), workspaces)
			start := time.Now()
			_, status, err := p.get(context.WithoutCancel(ctx), p.hub+"/k8s/clusters/"+name.String()+"/api/v1/namespaces/default/configmaps/settings")
			took := time.Since(start)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && status == http.StatusOK:
				found.answered = append(found.answered, took)
			case err == nil && status == http.StatusServiceUnavailable:
				found.away++
			default:
				found.failed++
			}
		})
	}
}
