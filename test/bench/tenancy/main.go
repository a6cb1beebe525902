// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command tenancy measures how long a binding takes from the hub to the member, and compares each figure with a direct
// write to the member.
//
// The hub and the member are two control planes of test/lab. The manager and the agent are processes with the same
// rights as in real clusters.
//
//	go run ./test/bench/tenancy > docs/bench/tenancy.md      about three minutes on two cores
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
)

const (
	workspace = "default"
	member    = "member"
	// patience is the time limit for each wait that usually takes seconds.
	patience = time.Minute
)

func main() {
	samples := flag.Int("n", 200, "samples of each kind, and bindings that are made at once")
	members := flag.String("members", "100,1000", "sizes of simulated fleets to bring one binding to, comma-separated; empty for none")
	keep := flag.String("keep", "", "folder to keep logs and data of all processes in; by default a temporary one")
	flag.Parse()
	log.SetLogger(logr.Discard()) // of client libraries; errors are returned
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, *keep, *samples, strings.FieldsFunc(*members, func(c rune) bool { return c == ',' }))
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string, samples int, fleets []string) (err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "drover-bench-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}
	root, err := framework.Sources()
	if err != nil {
		return err
	}
	programs, err := framework.Build(ctx, root, dir)
	if err != nil {
		return err
	}
	rows, sizes, err := measureOne(ctx, programs, dir, samples)
	if err != nil {
		return err
	}
	for _, text := range fleets {
		members, err := strconv.Atoi(text)
		if err != nil || members < 1 {
			return fmt.Errorf("members: %q is no size of a fleet", text)
		}
		more, err := measureFan(ctx, programs, dir, members)
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	return report(os.Stdout, samples, rows, sizes)
}

// measureOne measures one member.
func measureOne(ctx context.Context, programs framework.Programs, dir string, samples int) (rows []row, sizes []size, err error) {
	p := &processes{}
	defer func() { err = errors.Join(err, p.stop()) }()
	if err := p.start(ctx, programs, dir); err != nil {
		return nil, nil, err
	}
	if err := p.weigh(ctx, "with only the guards"); err != nil {
		return nil, nil, err
	}
	rows, err = p.measure(ctx, samples)
	return rows, p.sizes, err
}

// processes contains all running processes.
type processes struct {
	hub    *framework.Hub
	member *framework.Plane
	agent  *framework.Agent
	sizes  []size
}

// start starts the hub and the member, and imports the member.
func (p *processes) start(ctx context.Context, programs framework.Programs, dir string) error {
	plane, err := framework.StartPlane(ctx, programs, "hub", dir)
	if err != nil {
		return err
	}
	p.hub = &framework.Hub{Plane: plane} // for stop, should InstallHub err
	if p.member, err = framework.StartPlane(ctx, programs, member, dir); err != nil {
		return err
	}
	installed, err := framework.InstallHub(ctx, plane)
	if err != nil {
		return err
	}
	p.hub = installed
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cluster := types.NamespacedName{Namespace: workspace, Name: member}
	manifest, err := p.hub.CreateCluster(ctx, cluster)
	if err != nil {
		return err
	}
	if p.agent, err = framework.InstallAgent(ctx, p.member, manifest, member, protocol.AgentNamespace); err != nil {
		return err
	}
	if err := p.agent.Start(); err != nil {
		return err
	}
	_, err = p.hub.AwaitCluster(ctx, cluster, framework.Ready)
	return err
}

func (p *processes) stop() error {
	var errs []error
	if p.agent != nil && p.agent.Process != nil {
		errs = append(errs, p.agent.Process.Kill())
	}
	if p.hub != nil {
		if p.hub.Manager != nil {
			errs = append(errs, p.hub.Manager.Kill())
		}
		errs = append(errs, p.hub.Kill())
	}
	if p.member != nil {
		errs = append(errs, p.member.Kill())
	}
	return errors.Join(errs...)
}

func object(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: workspace, Name: name}
}
