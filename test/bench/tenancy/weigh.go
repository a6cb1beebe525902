// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// restTime is how long the processes are idle before memory is measured.
const restTime = 15 * time.Second

// size is the memory usage of the agent and the manager.
type size struct {
	when           string
	agent, manager lab.Usage
}

// weigh measures the memory usage of the idle agent and manager.
func (p *processes) weigh(ctx context.Context, when string) error {
	select {
	case <-time.After(restTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	agent, err := p.agent.Process.Usage()
	if err != nil {
		return err
	}
	manager, err := p.hub.Manager.Usage()
	if err != nil {
		return err
	}
	p.sizes = append(p.sizes, size{when: when, agent: agent, manager: manager})
	return nil
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
