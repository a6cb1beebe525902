// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/testkit"
)

// idleFor is the time during which nothing changes. It is longer than the intervals of the periodic checks of agent and
// manager.
const idleFor = 30 * time.Second

// testIdle counts requests to the hub's API server, which here is also the member's. Neither manager nor agent may
// write.
func testIdle(t *testing.T, s *system, cluster types.NamespacedName) {
	s.await(t, cluster, time.Minute, func(c *v1.Cluster) bool { // the last that a Cluster's status tells of a member that has joined
		return meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionGuardsApplied)
	})
	before := writesOfStart(t, s.hub.Plane)
	statuses := s.statuses(t)
	if len(before) == 0 {
		t.Fatal("the API server counts no writes at all")
	}
	<-time.After(idleFor)
	for kind, n := range writes(t, s.hub.Plane) {
		if more := n - before[kind]; more > 0 {
			t.Errorf("%s: %d in %s; Clusters before:\n%s\nand after:\n%s", kind, more, idleFor, statuses, s.statuses(t))
		}
	}
}

// statuses prints the status of all Clusters on the hub, and which component wrote it.
func (s *system) statuses(t *testing.T) string {
	t.Helper()
	out, err := s.hub.Kubectl(t.Context(), nil, "get", "clusters.cluster.drover.dev", "--all-namespaces", "--show-managed-fields", "--output", "yaml")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// writesOfStart waits until all writes of the start are complete, and counts them. The manager installs its role
// templates when it starts, and sends events later. The wait ends when nothing has been written for some seconds.
func writesOfStart(t *testing.T, plane *framework.Plane) map[string]int {
	t.Helper()
	const quiet = 3 * time.Second
	counts, since := writes(t, plane), time.Now()
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		if now := writes(t, plane); !maps.Equal(now, counts) {
			counts, since = now, time.Now()
		}
		if passed := time.Since(since); passed < quiet {
			return fmt.Errorf("got no writes for %s, want none for %s", passed.Round(time.Millisecond), quiet)
		}
		return nil
	})
	return counts
}

// writes counts the write requests that an API server has served, by verb and resource. It ignores Leases, because the
// control plane's Leases and the Leases of leader election are renewed all the time.
func writes(t *testing.T, plane *framework.Plane) map[string]int {
	t.Helper()
	metrics, err := plane.Kubectl(t.Context(), nil, "get", "--raw", "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	series := regexp.MustCompile(`(?m)^apiserver_request_total\{.*\} (\S+)$`)
	for _, match := range series.FindAllStringSubmatch(metrics, -1) {
		verb, resource := label(match[0], "verb"), label(match[0], "resource")
		value, err := strconv.ParseFloat(match[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		switch verb {
		case "GET", "LIST", "WATCH", "CONNECT":
			continue
		}
		if resource != "leases" {
			counts[verb+" "+resource+"/"+label(match[0], "subresource")] += int(value)
		}
	}
	return counts
}

func label(series, name string) string {
	match := regexp.MustCompile(`[{,]` + name + `="([^"]*)"`).FindStringSubmatch(series)
	if match == nil {
		return ""
	}
	return match[1]
}
