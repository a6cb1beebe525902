// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/traffic"
)

const (
	// settleLimit is how long the system may take to recover. An agent that has failed often waits for up to 30 s.
	settleLimit = 90 * time.Second
	// calm is how long the system must remain in that state.
	calm = 15 * time.Second
	// noticeLimit is how long a Cluster may take to show that its agent is gone.
	noticeLimit = 30 * time.Second
)

// settle waits until every Cluster is Ready and every replica serves every member, and checks that they remain so. All
// agents must be running.
func (s *system) settle(ctx context.Context, readiness *traffic.ReadinessWatch, loads []*traffic.Load) error {
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, settleLimit)
	defer cancel()
	for _, k := range s.keepers {
		if _, err := k.up(limited); err != nil {
			return err
		}
	}
	if err := s.hub.AwaitBalanced(limited); err != nil {
		return err
	}
	for _, cluster := range s.clusters.all() {
		if _, err := s.hub.AwaitCluster(limited, cluster, framework.Ready); err != nil {
			return err
		}
	}
	for _, replica := range s.hub.Replicas {
		for _, cluster := range s.clusters.all() {
			if err := s.hub.AwaitServed(limited, replica, cluster, userToken); err != nil {
				return fmt.Errorf("%s does not serve %s: %w", replica.Name, cluster, err)
			}
		}
	}
	s.journal.note("settled after %s", time.Since(began).Round(time.Millisecond))
	return s.stayCalm(ctx, readiness, loads)
}

func (s *system) stayCalm(ctx context.Context, readiness *traffic.ReadinessWatch, loads []*traffic.Load) error {
	readiness.Reset()
	for _, load := range loads {
		load.Reset()
	}
	if !pause(ctx, calm) {
		return ctx.Err()
	}
	for _, outage := range readiness.Outages() {
		return fmt.Errorf("not Ready though nothing happens: %s", outage)
	}
	for _, load := range loads {
		r := load.Result()
		if len(r.Failures) > 0 {
			return fmt.Errorf("%d of %d requests failed though nothing happens, for example: %s", len(r.Failures), r.Requests, r.Failures[0])
		}
		s.journal.note("calm for %s: %d requests, p50 %s, p99 %s", calm, r.Requests, r.P50, r.P99)
	}
	return nil
}

// loseAgents stops all agents of one Cluster, and one of two agents of another. Only the first Cluster must show it.
func (s *system) loseAgents(ctx context.Context, readiness *traffic.ReadinessWatch) error {
	s.journal.note("the only agent of one Cluster ends, and one of two of another")
	readiness.Reset()
	lost := make(chan error, 2)
	over, done := context.WithCancel(ctx)
	for _, name := range []string{"alone-0", "pair-0"} {
		go func() { lost <- s.keepers[name].down(over, noticeLimit+10*time.Second, (*lab.Process).Kill) }()
	}
	limited, cancel := context.WithTimeout(ctx, noticeLimit)
	defer cancel()
	began := time.Now()
	_, err := s.hub.AwaitCluster(limited, s.clusters.real[0], framework.NotReady(v1.ReasonTunnelLost))
	if err == nil {
		s.journal.note("it shows after %s", time.Since(began).Round(time.Millisecond))
		pause(ctx, calm)
		for _, outage := range readiness.Outages() {
			if outage.Cluster != s.clusters.real[0] {
				err = errors.Join(err, fmt.Errorf("a Cluster whose agent is there was shown as not Ready: %s", outage))
			}
		}
	}
	done()
	return errors.Join(err, <-lost, <-lost)
}
