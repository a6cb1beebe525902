// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fleetsim connects many simulated members to a hub, for load tests.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/fleetsim/sim"
)

type flags struct {
	kubeconfig, server, bundle, control string
	through                             string
	join, hosts                         bool
	clusters, workspaces                int
	latency, apiLatency                 time.Duration
	rates                               sim.Rates
}

func main() {
	debug.SetGCPercent(400) // real agents have machines of their own, so their share is subtracted from the measurement
	f := flags{}
	set := flag.NewFlagSet("fleetsim", flag.ExitOnError) // a library has put a flag into the global one
	set.StringVar(&f.kubeconfig, "kubeconfig", "", "of the hub's administrator; Clusters are made with it")
	set.StringVar(&f.server, "server", "", "base URL of the hub, https://host:port")
	set.StringVar(&f.through, "through", "", "comma-separated host:port to connect to in place of the server's, each tunnel to the next one")
	set.StringVar(&f.bundle, "ca", "", "file with the CA bundle of the hub")
	set.StringVar(&f.control, "control", "", "unix socket to answer GET /state, POST /cut?spare=N and POST /rates?churn=R&changes=R on")
	set.IntVar(&f.clusters, "clusters", 100, "members to simulate")
	set.IntVar(&f.workspaces, "workspaces", 10, "namespaces to spread them over: fleet-00, fleet-01, …")
	set.BoolVar(&f.hosts, "hosts", false, "make the members Hosts without plans in place of Clusters")
	set.BoolVar(&f.join, "join", false, "join with the token of each Cluster, which takes a running manager; otherwise the agents' Secrets are written directly")
	set.DurationVar(&f.latency, "latency", 0, "of the way from each member to the hub, and of the way back")
	set.DurationVar(&f.apiLatency, "api-latency", 0, "of each answer of a simulated API server")
	set.Float64Var(&f.rates.Churn, "churn", 0, "share of the tunnels to cut each minute, 0.1 for a tenth; their agents come back")
	set.Float64Var(&f.rates.Changes, "changes", 0, "share of the members to report something new each minute")
	_ = set.Parse(os.Args[1:]) // it exits when it fails
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, f); err != nil {
		fmt.Fprintln(os.Stderr, "fleetsim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, f flags) error {
	if err := checkFileLimit(f.clusters); err != nil {
		return err
	}
	bundle, err := os.ReadFile(f.bundle)
	if err != nil {
		return fmt.Errorf("read the hub's CA bundle: %w", err)
	}
	members, err := enrol(ctx, f, bundle)
	if err != nil {
		return err
	}
	fleet, err := sim.New(sim.Options{
		Server: f.server, Bundle: bundle, Through: strings.FieldsFunc(f.through, func(c rune) bool { return c == ',' }),
		Members: members, Latency: f.latency, APILatency: f.apiLatency, Rates: f.rates,
	})
	if err != nil {
		return err
	}
	if f.control != "" {
		server := &http.Server{Handler: fleet.Handler(), ReadHeaderTimeout: time.Minute}
		listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", f.control)
		if err != nil {
			return fmt.Errorf("listen for control: %w", err)
		}
		served := make(chan struct{})
		go func() { defer close(served); _ = server.Serve(listener) }()
		defer func() { _ = server.Close(); <-served }()
	}
	fmt.Fprintf(os.Stderr, "fleetsim: %d members connect to %s\n", len(members), f.server)
	fleet.Run(ctx)
	return nil
}

func enrol(ctx context.Context, f flags, bundle []byte) ([]sim.Member, error) {
	config, err := clientcmd.BuildConfigFromFlags("", f.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read kubeconfig: %w", err)
	}
	config.QPS = -1
	kinds := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(kinds), v1.AddToScheme(kinds)); err != nil {
		return nil, err
	}
	hubClient, err := client.New(config, client.Options{Scheme: kinds})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return sim.Enrolment{
		Hub: hubClient, Server: f.server, Bundle: bundle,
		Clusters: f.clusters, Workspaces: f.workspaces, Join: f.join, Hosts: f.hosts,
	}.Do(ctx)
}

// checkFileLimit checks the limit on open files, because each member needs one socket. The Go runtime has already
// raised the soft limit to the hard limit.
func checkFileLimit(members int) error {
	const spare = 200
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	if limit.Cur < uint64(members)+spare {
		return fmt.Errorf("%d members need %d open files and the limit is %d; raise it with ulimit -Hn", members, members+spare, limit.Cur)
	}
	return nil
}
