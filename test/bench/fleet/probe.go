// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
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

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/hack/lab"
	"github.com/drover-dev/drover/hack/stage"
)

// probe looks at a manager and its hub from outside.
type probe struct {
	hub  string
	http *http.Client
	api  rest.Interface // the hub's API server, as its administrator
}

func newProbe(ctx context.Context, hub *stage.Hub) (*probe, error) {
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
	return &probe{hub: hub.URL(), http: &http.Client{Transport: transport, Timeout: time.Minute}, api: clients.RESTClient()}, nil
}

// footprint is what the manager uses and does over a while.
type footprint struct {
	usage      lab.Usage
	cpu        float64 // share of one core
	goroutines float64
	heap       float64 // bytes of live and not yet collected objects
	stacks     float64 // bytes
	writes     writes
	window     time.Duration
}

// footprint watches the manager for so long.
func (p *probe) footprint(ctx context.Context, manager *lab.Process, window time.Duration) (footprint, error) {
	before, err := manager.Usage()
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
	if f.usage, err = manager.Usage(); err != nil {
		return f, err
	}
	f.cpu = (f.usage.CPU - before.CPU).Seconds() / f.window.Seconds()
	after, err := p.writes(ctx)
	if err != nil {
		return f, err
	}
	f.writes = after.minus(written)
	return f, p.runtime(ctx, &f)
}

// runtime reads the manager's own metrics.
func (p *probe) runtime(ctx context.Context, f *footprint) error {
	body, status, err := p.get(ctx, "/metrics")
	if err != nil {
		return fmt.Errorf("read the manager's metrics: %w", err)
	}
	if status != http.StatusOK {
		return fmt.Errorf("read the manager's metrics: it answers %d", status)
	}
	for line := range bytes.Lines(body) {
		name, value, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			continue // a comment, or a metric with blanks in its labels
		}
		switch name {
		case "go_goroutines":
			f.goroutines = number
		case "go_memstats_heap_alloc_bytes":
			f.heap = number
		case "go_memstats_stack_inuse_bytes":
			f.stacks = number
		}
	}
	return nil
}

// get asks the hub as the user.
func (p *probe) get(ctx context.Context, path string) (body []byte, status int, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.hub+path, nil)
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

// writes counts requests that change something, by "VERB resource".
type writes map[string]int

// writes reads what the hub's API server has counted since its start.
func (p *probe) writes(ctx context.Context) (writes, error) {
	raw, err := p.api.Get().AbsPath("/metrics").Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	const metric = "apiserver_request_total"
	var text bytes.Buffer
	lines := bufio.NewScanner(bytes.NewReader(raw))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if bytes.HasPrefix(lines.Bytes(), []byte(metric+"{")) {
			text.Write(lines.Bytes())
			text.WriteByte('\n')
		}
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(&text)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	counts := writes{}
	for _, sample := range families[metric].GetMetric() {
		labels := map[string]string{}
		for _, pair := range sample.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		verb, resource := labels["verb"], labels["resource"]
		if sub := labels["subresource"]; sub != "" {
			resource += "/" + sub
		}
		if changes(verb, resource) {
			counts[verb+" "+resource] += int(sample.GetUntyped().GetValue())
		}
	}
	return counts, nil
}

// changes is whether a request is one that is stored. Reviews are questions by POST.
func changes(verb, resource string) bool {
	return slices.Contains([]string{"POST", "PUT", "PATCH", "DELETE", "APPLY"}, verb) && !strings.HasSuffix(resource, "reviews")
}

func (w writes) minus(before writes) writes {
	difference := writes{}
	for key, n := range w {
		if n -= before[key]; n > 0 {
			difference[key] = n
		}
	}
	return difference
}

// total adds up, either leases alone or all but leases.
func (w writes) total(leases bool) int {
	sum := 0
	for key, n := range w {
		if strings.HasSuffix(key, " leases") == leases {
			sum += n
		}
	}
	return sum
}

// String lists what there is but leases.
func (w writes) String() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(w)) {
		if !strings.HasSuffix(key, " leases") {
			parts = append(parts, fmt.Sprintf("%d %s", w[key], key))
		}
	}
	return strings.Join(parts, ", ")
}

// peakResident is the most memory that a process ever had resident, in bytes.
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
