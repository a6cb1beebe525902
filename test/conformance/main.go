// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Command conformance runs Kubernetes' own end-to-end tests against a member with real nodes, first directly at its API
// server and then on the ways that Drover provides, and compares the results.
package main

import (
	"context"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-dev/drover/test/lab/nodes"
)

// The ways to reach the member. On each way after the first, the tests that passed on the first way are run.
const (
	wayDirect  = "direct"
	wayHub     = "hub"
	wayReplica = "replica"
	// wayAgent is Drover's direct access: the user connects to the member's agent at its own address.
	wayAgent = "agent"
)

// ways returns all ways, in the order in which they are tested.
func ways() []string { return []string{wayDirect, wayHub, wayReplica, wayAgent} }

// options are the options of a run.
type options struct {
	ways  []string
	focus string
	tests []string
	procs int
	limit time.Duration
	dir   string
	page  string
}

//go:embed tests.txt
var chosen string

func main() {
	if known, err := nodes.RunProcess(os.Args[1:]); known {
		exit(err)
	}
	log.SetLogger(logr.Discard())
	o, err := parse(os.Args[1:])
	if err != nil {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err = start(ctx, o)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func parse(args []string) (options, error) {
	o := options{}
	set := flag.NewFlagSet("conformance", flag.ExitOnError) // libraries have put their flags into the global one
	chosenWays := set.String("ways", strings.Join(ways(), ","), "the ways to the member, in order: direct (its API server), "+
		"hub, replica (a manager to which no agent is connected), agent (its own address, without the hub)")
	set.StringVar(&o.focus, "focus", "", "run only tests whose name contains this text")
	set.IntVar(&o.procs, "procs", 8, "tests at a time")
	set.DurationVar(&o.limit, "limit", time.Hour, "the longest time for one way")
	set.StringVar(&o.dir, "dir", "", "keep logs, reports and images in this folder; empty for a temporary one")
	set.StringVar(&o.page, "page", "", "write the result to this Markdown file")
	_ = set.Parse(args) // it exits when it fails
	o.ways = strings.Split(*chosenWays, ",")
	for _, way := range o.ways {
		if !slices.Contains(ways(), way) {
			return o, fmt.Errorf("-ways %s: want some of %s", *chosenWays, strings.Join(ways(), ", "))
		}
	}
	for name := range strings.Lines(chosen) {
		if name = strings.TrimSuffix(name, "\n"); strings.Contains(name, o.focus) {
			o.tests = append(o.tests, name)
		}
	}
	if len(o.tests) == 0 {
		return o, fmt.Errorf("-focus %s: no test of tests.txt contains it", o.focus)
	}
	return o, nil
}

// start brings everything up, runs the tests on each way, and removes everything that it created.
func start(ctx context.Context, o options) (err error) {
	if err := errors.Join(nodes.Check(), checkPrograms()); err != nil {
		return err
	}
	if o.dir == "" {
		if o.dir, err = os.MkdirTemp("", "drover-conf-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.dir)) }()
	} else if err := os.MkdirAll(o.dir, 0o700); err != nil {
		return err
	}
	if o.dir, err = filepath.Abs(o.dir); err != nil {
		return err
	}
	f, err := bringUp(ctx, o.dir)
	defer func() { err = errors.Join(err, f.down()) }()
	if err != nil {
		return err
	}
	all, err := f.runAll(ctx, o)
	if err != nil {
		return err
	}
	report(os.Stdout, all)
	if o.page != "" {
		if err := writePage(o.page, f.suite.version, o, all); err != nil {
			return err
		}
	}
	return all.verdict()
}

// runAll runs the tests on each way. On each later way, it runs the tests that passed on the first.
func (f *fixture) runAll(ctx context.Context, o options) (outcomes, error) {
	var all outcomes
	tests := o.tests
	for _, way := range o.ways {
		before, err := f.footprint()
		if err != nil {
			return nil, err
		}
		begin := time.Now()
		results, err := f.runWay(ctx, f.run(way, o), way, tests)
		if err != nil {
			return nil, err
		}
		after, err := f.footprint()
		if err != nil {
			return nil, err
		}
		all = append(all, outcome{way: way, took: time.Since(begin), results: results, before: before, after: after})
		if len(all) == 1 {
			tests = results.passed()
		}
	}
	return all, nil
}

// runWay runs tests on a way. A test that passed directly and fails on another way is run once more, alone, because
// many of Kubernetes' tests have time limits that a busy machine exceeds. A test that fails directly is not run on
// other ways, so it is not repeated. Most of these tests wait for minutes for something that the lab does not have.
func (f *fixture) runWay(ctx context.Context, r run, way string, tests []string) (results, error) {
	say("%s: %d tests, %d at a time", way, len(tests), r.procs)
	first, err := f.suite.run(ctx, r, tests)
	failed := first.failed()
	if err != nil || len(failed) == 0 || way == wayDirect {
		return first, err
	}
	say("%s: %d tests failed, and run again, one at a time", way, len(failed))
	r.dir, r.procs = filepath.Join(r.dir, "again"), 1
	second, err := f.suite.run(ctx, r, failed)
	return first.amended(second), err
}

// say prints a line of progress with the time.
func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}
