// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fleet measures one manager, and then several managers, with many members, and compares the results with the
// goals.
//
// It starts a hub's control plane and the managers as processes. The members are agents of test/fleetsim in a separate
// process: their tunnels and TLS are real, but their clusters are simulated. Agents are enrolled by writing their
// Secrets rather than by joining with tokens.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
)

// settings are the settings of a run.
type settings struct {
	last          size // members and managers of it
	workspaces    int
	only, starts  bool
	hosts         bool
	idle          time.Duration
	latency       time.Duration
	rates         sim.Rates
	manager, keep string
	limit         time.Duration
}

func main() {
	s := settings{}
	flag.IntVar(&s.last.members, "n", 1000, "members in the last step; the steps before are 100, 1000, … below it")
	flag.IntVar(&s.last.managers, "managers", 2, "managers in one more step with as many members as the last; 1 for no such step")
	flag.BoolVar(&s.only, "only", false, "run the last step alone")
	flag.BoolVar(&s.starts, "starts", false, "measure the first start and the start after an outage alone")
	flag.BoolVar(&s.hosts, "hosts", false, "measure idle Hosts in place of Clusters: no user's request reaches one, so storm and churn are left out")
	flag.IntVar(&s.workspaces, "workspaces", 10, "namespaces to spread the Clusters over")
	flag.DurationVar(&s.idle, "idle", time.Minute, "how long to watch the idle fleet")
	flag.DurationVar(&s.latency, "latency", 0, "of the way from each member to the hub, and of the way back")
	flag.Float64Var(&s.rates.Churn, "churn", 0.1, "share of the tunnels that end each minute, and whose agents come back, while churn is measured")
	flag.Float64Var(&s.rates.Changes, "changes", 0.1, "share of the members that report something new each minute, while churn is measured")
	flag.StringVar(&s.manager, "manager", "", "manager binary to measure; by default the one of these sources")
	flag.StringVar(&s.keep, "keep", "", "folder to keep logs in; by default a temporary one that is removed")
	flag.DurationVar(&s.limit, "limit", 90*time.Minute, "end the run after this time")
	flag.Parse()
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench-fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) error {
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	if err := raiseFileLimit(); err != nil {
		return err
	}
	dir, done, err := folder(s.keep)
	if err != nil {
		return err
	}
	defer done()
	root, err := os.Getwd()
	if err != nil {
		return err
	}
	programs, err := framework.Build(ctx, root, dir)
	if err != nil {
		return err
	}
	if s.manager != "" {
		programs.Manager = s.manager
	}
	simulator := filepath.Join(dir, "fleetsim")
	build := exec.CommandContext(ctx, "go", "build", "-o", simulator, "./test/fleetsim")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the fleet simulator: %w\n%s", err, out)
	}
	var results []result
	var failure error
	for _, size := range steps(s) {
		step := &step{settings: s, size: size, programs: programs, simulator: simulator, begun: time.Now(),
			dir: filepath.Join(dir, fmt.Sprintf("%d-%d", size.members, size.managers))}
		if err := os.Mkdir(step.dir, 0o700); err != nil {
			return err
		}
		r, err := step.run(ctx)
		if err != nil {
			failure = fmt.Errorf("step with %s: %w", size, err)
			break
		}
		results = append(results, r)
	}
	if len(results) == 0 {
		return failure
	}
	return errors.Join(failure, write(context.WithoutCancel(ctx), os.Stdout, results, s.hosts))
}

// steps returns the powers of ten from 100 on that are less than the number of members, then that number, and then that
// number with several managers.
func steps(s settings) []size {
	var list []size
	for n := 100; n < s.last.members; n *= 10 {
		list = append(list, size{n, 1})
	}
	list = append(list, size{s.last.members, 1})
	if s.last.managers > 1 {
		list = append(list, s.last)
	}
	if s.only {
		return list[len(list)-1:]
	}
	return list
}

func folder(keep string) (dir string, done func(), err error) {
	if keep != "" {
		dir, err := filepath.Abs(keep)
		if err != nil {
			return "", nil, err
		}
		return dir, func() {}, os.MkdirAll(dir, 0o700)
	}
	dir, err = os.MkdirTemp("", "drover-bench-fleet-")
	return dir, func() { _ = os.RemoveAll(dir) }, err
}

// raiseFileLimit raises the limit on open files for child processes. Without it, the Go runtime would give them the
// limit with which this process was started.
func raiseFileLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit.Cur, Max: limit.Max}); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	return nil
}
