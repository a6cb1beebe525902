// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hub measures a complete Drover installation on real control planes.
//
// It compares each figure with its lower bound, and prints a table with the goals.
//
// The hub and the member are two control planes of test/lab. The manager and the agents are processes with the same
// rights as in real clusters. The cost of a request is measured alternately, directly and through the hub, with the
// same client.
//
//	go run ./test/bench/hub > docs/bench/hub.md      about seven minutes on two cores
//	go run ./test/bench/hub -quick                   two minutes, to see that it works
//	go run ./test/bench/hub -steps 3                 what a request costs, and nothing else
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

func main() {
	quick := flag.Bool("quick", false, "measure little, to see that everything works; the figures mean nothing")
	large := flag.Bool("large", true, "measure an agent in a cluster of 5,000 nodes and 20,000 pods")
	keep := flag.String("keep", "", "folder to keep logs and data of all processes in; by default a temporary one")
	steps := flag.Int("steps", 0, "take only that many steps, from the first on")
	address := flag.String("copy-to", "", "copy bytes to and from this address, and measure nothing; the bench starts itself so")
	flag.Parse()
	log.SetLogger(logr.Discard()) // what client libraries have to say; errors come back as errors
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	if *address != "" {
		err := copyTo(ctx, os.Stdout, *address)
		stop()
		if err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	err := run(ctx, os.Stdout, *keep, newExtent(*quick, *large), *steps)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// extent determines how much is measured.
type extent struct {
	quick         bool
	warmUp, calls int // requests by each way, before and while it is measured
	events        int // watch events
	repeats       int // of what takes seconds, such as a start
	together      int // agents that are started at once
	settle        time.Duration
	window        time.Duration // for CPU
	writes        time.Duration // for writes
	nodes, pods   int
}

func newExtent(quick, large bool) extent {
	e := extent{
		warmUp: 2400, calls: 1920, events: 200, repeats: 5, together: 30,
		settle: 12 * time.Second, window: 20 * time.Second, writes: 60 * time.Second, nodes: 5000, pods: 20000,
	}
	if quick {
		e = extent{
			quick: true, warmUp: 160, calls: 320, events: 10, repeats: 2, together: 3,
			settle: time.Second, window: 2 * time.Second, writes: 5 * time.Second, nodes: 100, pods: 400,
		}
	}
	if !large {
		e.nodes, e.pods = 0, 0
	}
	return e
}

// bench runs the measurements.
type bench struct {
	extent
	*processes
	results *results
	alone   *writeCount // the writes of a control plane that has neither a manager nor agents
}

// step is one part of the run. It continues from the state that the previous steps left.
type step struct {
	what string
	take func(context.Context) error
}

// The writes of the member's control plane alone must be counted before its first agent joins.
const (
	stepAlone     = "the writes of a control plane alone"
	stepFirstJoin = "a first agent joins"
)

func (b *bench) steps() []step {
	list := []step{
		{stepAlone, b.writesAlone},
		{stepFirstJoin, b.firstJoin},
		{"GET, LIST and WATCH, directly and through the hub", b.requests},
		{"memory and CPU with one member", b.footprintOfOne},
		{"the agent is killed and started again", b.agentRestarts},
		{"more agents join, one after the other", b.moreJoins},
		{"an agent hangs; Clusters of dead agents are deleted", b.hangAndRemovals},
		{"many agents join at once", b.joinsTogether},
		{"memory, CPU and writes on the hub with many members", b.footprintOfMany},
		{"the manager is killed and started again", b.managerRestarts},
	}
	if b.nodes > 0 {
		list = append(list, step{fmt.Sprintf("an agent in a cluster of %d nodes and %d pods", b.nodes, b.pods), b.largeCluster})
	}
	return list
}

// run starts all processes, runs all steps and prints the table, even if an error ends the run.
func run(ctx context.Context, out io.Writer, dir string, e extent, first int) (err error) {
	begun := time.Now()
	progress := func(i, n int, what string) {
		fmt.Fprintf(os.Stderr, "[%4.0fs] %d/%d %s\n", time.Since(begun).Seconds(), i, n, what)
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "drover-bench-"); err != nil {
			return err
		}
		defer os.RemoveAll(dir)
	}
	b := &bench{extent: e, processes: &processes{dir: dir}, results: newResults()}
	steps := b.steps()
	if first > 0 {
		steps = steps[:min(first, len(steps))]
	}
	progress(0, len(steps), "building the programs, starting hub and member")
	defer func() { err = errors.Join(err, b.stop()) }()
	about := describe(ctx)
	if err := b.start(ctx); err != nil {
		return err
	}
	for i, s := range steps {
		progress(i+1, len(steps), s.what)
		if err = s.take(ctx); err != nil {
			err = fmt.Errorf("%s: %w: for the logs run it with -keep", s.what, err)
			break
		}
	}
	progress(len(steps), len(steps), "done")
	about.took = time.Since(begun)
	writeReport(out, about, b.results, e)
	return err
}

// pause waits for a time that is itself part of a measurement.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
