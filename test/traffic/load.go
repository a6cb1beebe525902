// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// One in patchEach requests is a PATCH, and the others are GETs. Over HTTP/1.1, all of them are GETs: a server that
// closes an idle connection cannot know that a request is on its way, and a client must not repeat a request that
// changes an object (RFC 9112, sections 9.3.1 and 9.5). In HTTP/2, GOAWAY solves this.
const patchEach = 5

// Load sends requests to members. A request that a Kubernetes client would retry counts as failed. A request that
// net/http itself repeats, because the server has not received it, does not.
type Load struct {
	// Ways and Clusters are the ways and Clusters to choose from at random.
	Ways     []*Way
	Clusters []types.NamespacedName
	// Namespace and ConfigMap identify the object that is read and changed in every member.
	Namespace, ConfigMap string
	// ReadOnly must be set for members that cannot be changed.
	ReadOnly bool
	// PerSecond is the number of requests that are started per second, as long as no more than AtOnce are in progress. On
	// a machine that is too slow for this rate, requests would otherwise accumulate until the hub's limits refused them.
	PerSecond, AtOnce int
	// Seed is the seed of the random choices.
	Seed uint64

	mu       sync.Mutex // guards what follows
	requests int
	failures []Failure
	took     []time.Duration
	lapses   map[types.NamespacedName]outage
}

// Failure is a request that was not served.
type Failure struct {
	At      time.Time
	Took    time.Duration
	Cluster types.NamespacedName
	// Request is the way and the method, and Cause is the error or the response.
	Request, Cause string
}

func (f Failure) String() string {
	return fmt.Sprintf("%s %s %s after %s: %s", f.At.Format("15:04:05.000"), f.Request, f.Cluster, f.Took.Round(time.Millisecond), f.Cause)
}

// outage is a time during which no request to a member was served. It contains the start, if the outage continues, and
// the longest duration.
type outage struct {
	since   time.Time
	longest time.Duration
}

// Result is the result of a Load.
type Result struct {
	Requests int
	Failures []Failure
	// P50, P99 and Longest are latencies of the requests that were served.
	P50, P99, Longest time.Duration
}

// Run sends requests until ctx ends, and returns when all of them have ended.
func (l *Load) Run(ctx context.Context) {
	random := rand.New(rand.NewPCG(l.Seed, 0))
	tick := time.NewTicker(time.Second / time.Duration(l.PerSecond))
	defer tick.Stop()
	seats := make(chan struct{}, l.AtOnce)
	var asking sync.WaitGroup
	defer asking.Wait()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case seats <- struct{}{}:
		}
		way, cluster := l.Ways[random.IntN(len(l.Ways))], l.Clusters[random.IntN(len(l.Clusters))]
		asking.Go(func() {
			defer func() { <-seats }()
			l.ask(context.WithoutCancel(ctx), way, cluster, n)
		})
	}
}

// Result returns the result so far. Reset resets it.
func (l *Load) Result() Result {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := Result{Requests: l.requests, Failures: slices.Clone(l.failures)}
	if n := len(l.took); n > 0 {
		took := slices.Sorted(slices.Values(l.took))
		r.P50, r.P99, r.Longest = took[n/2], took[n*99/100], took[n-1]
	}
	return r
}

// Reset resets the result.
func (l *Load) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.requests, l.failures, l.took, l.lapses = 0, nil, nil, nil
}

// Lapse returns the longest time from a failed request to a member to the next successful one.
func (l *Load) Lapse(cluster types.NamespacedName) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	lapse := l.lapses[cluster]
	if !lapse.since.IsZero() {
		return max(lapse.longest, time.Since(lapse.since))
	}
	return lapse.longest
}

func (l *Load) ask(ctx context.Context, way *Way, cluster types.NamespacedName, n int) {
	method, body := http.MethodGet, ""
	if n%patchEach == 0 && way.http2 && !l.ReadOnly {
		method, body = http.MethodPatch, fmt.Sprintf(`{"data":{"n":"%d"}}`, n)
	}
	began := time.Now()
	cause := way.request(ctx, method, memberPath(cluster)+"/api/v1/namespaces/"+l.Namespace+"/configmaps/"+l.ConfigMap, body)
	l.note(Failure{At: began, Took: time.Since(began), Cluster: cluster, Request: way.String() + " " + method, Cause: cause})
}

// note records a request. A request that was served has no cause.
func (l *Load) note(f Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lapses == nil {
		l.lapses = map[types.NamespacedName]outage{}
	}
	l.requests++
	state := l.lapses[f.Cluster]
	switch served := f.Cause == ""; {
	case !served:
		l.failures = append(l.failures, f)
		if state.since.IsZero() {
			state.since = f.At
		}
	case !state.since.IsZero() && f.At.After(state.since):
		l.took = append(l.took, f.Took)
		state = outage{longest: max(state.longest, time.Since(state.since))}
	default:
		l.took = append(l.took, f.Took)
	}
	l.lapses[f.Cluster] = state
}

// request sends a request, and returns the reason why it was not served. The reason is empty if it was served.
func (w *Way) request(ctx context.Context, method, path, body string) string {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, w.hub.URL+path, strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	request.Header.Set("Content-Type", "application/merge-patch+json")
	response, err := w.client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return "read the answer: " + err.Error()
	case response.StatusCode != http.StatusOK:
		return fmt.Sprintf("%s: %.300s", response.Status, answer)
	}
	return ""
}
