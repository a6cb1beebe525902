// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command plans measures the overhead of Plans, in addition to the work that they wait for: for a node in one member,
// and for a fleet on its hub.
//
// Control planes come from test/lab. The manager and the agent are processes with the same rights as in real clusters.
// Nodes come from test/nodesim, in which every container succeeds immediately. The members of the fleet come from
// test/fleetsim.
//
//	go run ./test/bench/plans > docs/bench/plans.md      about five minutes on two cores
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-dev/drover/test/framework"
)

func main() {
	samples := flag.Int("n", 20, "Plans of each kind in one member, one after the other")
	members := flag.Int("members", 100, "simulated members of the fleet; 0 for no fleet")
	keep := flag.String("keep", "", "folder to keep logs and data of all processes in; by default a temporary one")
	flag.Parse()
	log.SetLogger(logr.Discard()) // of client libraries; errors are returned
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *keep, *samples, *members)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, samples, members int) (err error) {
	if samples < 1 || members < 0 {
		return fmt.Errorf("bench plans: %d samples and %d members make no bench", samples, members)
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "drover-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	root, err := output(ctx, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	programs, err := framework.Build(ctx, root, dir)
	if err != nil {
		return err
	}
	r := &results{commit: "unknown", machine: machine()}
	if commit, err := output(ctx, "git", "-C", root, "rev-parse", "--short", "HEAD"); err == nil {
		r.commit = commit
	}
	if err := measureMember(ctx, programs, dir, samples, r); err != nil {
		return fmt.Errorf("measure one member: %w", err)
	}
	if members > 0 {
		if r.fleet, err = measureFleet(ctx, programs, dir, members); err != nil {
			return fmt.Errorf("measure a fleet: %w", err)
		}
	}
	if r.planner, err = output(ctx, "go", "test", root+"/internal/rollout", "-run", "^$", "-bench", "^BenchmarkNext", "-count", "3"); err != nil {
		return fmt.Errorf("measure the planner: %w", err)
	}
	return r.write(os.Stdout)
}

// output returns the output of a command.
func output(ctx context.Context, name string, args ...string) (string, error) {
	raw, err := exec.CommandContext(ctx, name, args...).Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(raw)), nil
}
