// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// writeCount counts the writes that an API server serves, by resource.
type writeCount struct {
	caller     *caller
	begun      time.Time
	took       time.Duration
	byResource map[string]float64
}

// countWrites starts a count.
func countWrites(ctx context.Context, plane *lab.ControlPlane) (*writeCount, error) {
	caller, err := callerFor(plane.RESTConfig())
	if err != nil {
		return nil, err
	}
	metrics, err := caller.text(ctx, "/metrics")
	if err != nil {
		return nil, fmt.Errorf("read metrics of %s: %w", plane.Name(), err)
	}
	return &writeCount{caller: caller, begun: time.Now(), byResource: writesIn(metrics)}, nil
}

// stop stops the count.
func (c *writeCount) stop(ctx context.Context) error {
	c.took = time.Since(c.begun)
	metrics, err := c.caller.text(ctx, "/metrics")
	if err != nil {
		return err
	}
	before := c.byResource
	c.byResource = writesIn(metrics)
	for resource, n := range before {
		c.byResource[resource] -= n
	}
	return nil
}

// perMinute returns the writes of a resource per minute.
func (c *writeCount) perMinute(resource string) float64 {
	return c.byResource[resource] / c.took.Minutes()
}

// sum returns the writes of all resources except leases.
func (c *writeCount) sum() float64 {
	n := 0.0
	for resource, writes := range c.byResource {
		if resource != "leases" {
			n += writes
		}
	}
	return n
}

// total returns the writes per minute, without leases.
func (c *writeCount) total() float64 { return c.sum() / c.took.Minutes() }

// writesAlone counts the writes of a control plane without a manager and agents. The member is such a control plane
// only until its first agent joins, because each agent renews its own leases there.
func (b *bench) writesAlone(ctx context.Context) (err error) {
	if err := pause(ctx, b.settle); err != nil {
		return err
	}
	if b.alone, err = countWrites(ctx, b.member.ControlPlane); err != nil {
		return err
	}
	if err := pause(ctx, b.writes); err != nil {
		return err
	}
	return b.alone.stop(ctx)
}

// noteWrites records the hub's writes for each resource, minus the writes of a control plane alone.
func (b *bench) noteWrites(hub *writeCount) {
	beyond := 0.0
	for resource := range hub.byResource {
		if resource != "leases" {
			beyond += max(0, hub.perMinute(resource)-b.alone.perMinute(resource))
		}
	}
	b.results.add("writes", beyond)
	b.results.add("writes-alone", b.alone.total())
	b.results.add("leases", hub.perMinute("leases"))
	b.results.add("leases-alone", b.alone.perMinute("leases"))
	b.results.note("Writes per minute while idle, on the hub: %s; on a control plane alone, which is the floor: %s.",
		hub, b.alone)
}

// String lists the resources that were written.
func (c *writeCount) String() string {
	var named []string
	for _, resource := range slices.Sorted(maps.Keys(c.byResource)) {
		if c.byResource[resource] > 0 {
			named = append(named, fmt.Sprintf("%s %.1f", resource, c.perMinute(resource)))
		}
	}
	return strings.Join(named, ", ")
}

// writesIn returns the writes in the metrics of an API server, by resource.
func writesIn(metrics string) map[string]float64 {
	found := map[string]float64{}
	for _, s := range samples(metrics, "apiserver_request_total") {
		if slices.Contains([]string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"}, s.labels["verb"]) {
			found[s.labels["resource"]] += s.value
		}
	}
	return found
}

// sample is one line of metrics in the Prometheus text format.
type sample struct {
	labels map[string]string
	value  float64
}

// samples returns the samples with the given name.
func samples(metrics, name string) []sample {
	label := regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)
	var found []sample
	for line := range strings.Lines(metrics) {
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		end := strings.LastIndexByte(rest, ' ')
		value, err := strconv.ParseFloat(rest[end+1:], 64)
		if err != nil {
			continue
		}
		s := sample{labels: map[string]string{}, value: value}
		for _, pair := range label.FindAllStringSubmatch(rest[:end], -1) {
			s.labels[pair[1]] = pair[2]
		}
		found = append(found, s)
	}
	return found
}

// gauge returns the value of a metric that has only one sample, and reports whether there is one.
func gauge(metrics, name string) (float64, bool) {
	found := samples(metrics, name)
	if len(found) == 0 {
		return 0, false
	}
	return found[0].value, true
}
