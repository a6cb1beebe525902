// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/traffic"
)

const (
	// settleLimit is for everything to be as if nothing had happened. An agent that has failed often waits for up to 30 s.
	settleLimit = 90 * time.Second
	// calm is for how long it must stay so.
	calm = 15 * time.Second
	// noticeLimit is for a Cluster to show that its agent has gone.
	noticeLimit = 30 * time.Second
)

// settle waits until every Cluster is Ready, every replica serves every member, and it stays so. The agents all run.
func (s *stand) settle(ctx context.Context, truth *traffic.Truth, loads []*traffic.Load) error {
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
	return s.stayCalm(ctx, truth, loads)
}

func (s *stand) stayCalm(ctx context.Context, truth *traffic.Truth, loads []*traffic.Load) error {
	truth.Reset()
	for _, load := range loads {
		load.Reset()
	}
	if !pause(ctx, calm) {
		return ctx.Err()
	}
	for _, spell := range truth.Spells() {
		return fmt.Errorf("not Ready though nothing happens: %s", spell)
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

// loseAgents takes the agents of one Cluster and one of two of another down: the first must show it, the second must not.
func (s *stand) loseAgents(ctx context.Context, truth *traffic.Truth) error {
	s.journal.note("the only agent of one Cluster ends, and one of two of another")
	truth.Reset()
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
		for _, spell := range truth.Spells() {
			if spell.Cluster != s.clusters.real[0] {
				err = errors.Join(err, fmt.Errorf("a Cluster whose agent is there was shown as not Ready: %s", spell))
			}
		}
	}
	done()
	return errors.Join(err, <-lost, <-lost)
}
