// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// probe measures a manager and its hub from outside.
type probe struct {
	hub  string
	http *http.Client
	api  rest.Interface // the hub's API server, as its administrator
	// usage returns the resource usage of the hub's API server.
	usage func() (lab.Usage, error)
}

func newProbe(ctx context.Context, hub *framework.Hub) (*probe, error) {
	bundle, err := hub.Bundle(ctx)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	clients, err := kubernetes.NewForConfig(hub.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true}
	return &probe{hub: hub.URL(), http: &http.Client{Transport: transport, Timeout: time.Minute}, api: clients.RESTClient(),
		usage: hub.Process(lab.APIServer).Usage}, nil
}

// footprint is the resource usage and the activity of all managers during a period.
type footprint struct {
	usage      lab.Usage
	cpu        float64 // share of one core
	goroutines float64
	heap       float64 // bytes of live and not yet collected objects
	stacks     float64 // bytes
	writes     counts
	window     time.Duration
}

// footprint measures the managers for the given time.
func (p *probe) footprint(ctx context.Context, managers []*framework.Replica, window time.Duration) (footprint, error) {
	before, err := usage(managers)
	if err != nil {
		return footprint{}, err
	}
	written, err := p.writes(ctx)
	if err != nil {
		return footprint{}, err
	}
	start := time.Now()
	if !pause(ctx, window) {
		return footprint{}, ctx.Err()
	}
	f := footprint{window: time.Since(start)}
	if f.usage, err = usage(managers); err != nil {
		return f, err
	}
	f.cpu = (f.usage.CPU - before.CPU).Seconds() / f.window.Seconds()
	after, err := p.writes(ctx)
	if err != nil {
		return f, err
	}
	f.writes = after.minus(written)
	for _, manager := range managers {
		if err := p.runtime(ctx, manager, &f); err != nil {
			return f, err
		}
	}
	return f, nil
}

// usage returns the resource usage of all managers together.
func usage(managers []*framework.Replica) (lab.Usage, error) {
	var sum lab.Usage
	for _, manager := range managers {
		u, err := manager.Process.Usage()
		if err != nil {
			return sum, err
		}
		sum.RSS, sum.Anonymous, sum.CPU = sum.RSS+u.RSS, sum.Anonymous+u.Anonymous, sum.CPU+u.CPU
	}
	return sum, nil
}

// runtime adds the runtime metrics of one manager.
func (p *probe) runtime(ctx context.Context, manager *framework.Replica, f *footprint) error {
	for metric, sum := range map[string]*float64{
		"go_goroutines": &f.goroutines, "go_memstats_heap_alloc_bytes": &f.heap, "go_memstats_stack_inuse_bytes": &f.stacks,
	} {
		value, err := p.metric(ctx, manager, metric)
		if err != nil {
			return err
		}
		*sum += value
	}
	return nil
}

// tunnels returns the number of tunnels to one manager.
func (p *probe) tunnels(ctx context.Context, manager *framework.Replica) (int, error) {
	n, err := p.metric(ctx, manager, "drover_tunnels")
	return int(n), err
}

// metric returns the value of a metric without labels.
func (p *probe) metric(ctx context.Context, manager *framework.Replica, name string) (float64, error) {
	body, status, err := p.get(ctx, "https://"+manager.Metrics+"/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("it answers %d", status)
	}
	if err != nil {
		return 0, fmt.Errorf("read the metrics of %s: %w", manager.Name, err)
	}
	for line := range strings.Lines(string(body)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("read the metrics of %s: there is no %s", manager.Name, name)
}

// get sends a GET request as the user.
func (p *probe) get(ctx context.Context, url string) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, 0, err
	}
	request.Header.Set("Authorization", "Bearer "+userToken)
	response, err := p.http.Do(request)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = response.Body.Close() }()
	body, err = io.ReadAll(response.Body)
	return body, response.StatusCode, err
}

// counts contains numbers of requests, by "VERB resource".
type counts map[string]int

// work is the work that the hub's API server has done since its start.
type work struct {
	writes, reads counts // reviews are reads
	cpu           time.Duration
}

func (p *probe) work(ctx context.Context) (work, error) {
	usage, err := p.usage()
	if err != nil {
		return work{}, err
	}
	raw, err := p.api.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return work{}, fmt.Errorf("read the API server's metrics: %w", err)
	}
	w := work{writes: counts{}, reads: counts{}, cpu: usage.CPU}
	for line := range bytes.Lines(raw) {
		labels, value, ok := sample(string(line), "apiserver_request_total")
		if !ok {
			continue
		}
		verb, resource := labels["verb"], labels["resource"]
		if sub := labels["subresource"]; sub != "" {
			resource += "/" + sub
		}
		if changes(verb, resource) {
			w.writes[verb+" "+resource] += int(value)
		} else if resource != "" {
			w.reads[verb+" "+resource] += int(value)
		}
	}
	return w, nil
}

// writes returns the writes that the hub's API server has counted since its start.
func (p *probe) writes(ctx context.Context) (counts, error) {
	w, err := p.work(ctx)
	return w.writes, err
}

// sample parses one line of the text format. It returns false for other metrics and for lines without labels. The
// values of the requested labels contain no quotes.
func sample(line, metric string) (labels map[string]string, value float64, ok bool) {
	rest, ok := strings.CutPrefix(line, metric+"{")
	end := strings.LastIndexByte(rest, '}')
	if !ok || end < 0 {
		return nil, 0, false
	}
	value, err := strconv.ParseFloat(strings.TrimSpace(rest[end+1:]), 64)
	if err != nil {
		return nil, 0, false
	}
	labels = map[string]string{}
	for name, rest := "", rest[:end]; rest != ""; {
		name, rest, _ = strings.Cut(rest, `="`)
		labels[name], rest, _ = strings.Cut(rest, `"`)
		rest = strings.TrimPrefix(rest, ",")
	}
	return labels, value, true
}

// changes reports whether a request changes a stored object. Reviews are POST requests that do not.
func changes(verb, resource string) bool {
	return slices.Contains([]string{"POST", "PUT", "PATCH", "DELETE", "APPLY"}, verb) && !strings.HasSuffix(resource, "reviews")
}

func (w counts) minus(before counts) counts {
	difference := counts{}
	for key, n := range w {
		if n -= before[key]; n > 0 {
			difference[key] = n
		}
	}
	return difference
}

// total returns the sum of either the writes of leases or all other writes.
func (w counts) total(leases bool) int {
	sum := 0
	for key, n := range w {
		if strings.HasSuffix(key, " leases") == leases {
			sum += n
		}
	}
	return sum
}

// String lists all writes except writes of leases.
func (w counts) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(w)) {
		if !strings.HasSuffix(key, " leases") {
			parts = append(parts, fmt.Sprintf("%d %s", w[key], key))
		}
	}
	return strings.Join(parts, ", ")
}

// peakResident returns the peak resident memory of a process, in bytes.
func peakResident(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read peak memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("read peak memory of process %d: no VmHWM", pid)
}
