// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon connects the parts of the agent and runs them until it is stopped.
package daemon

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/zap"

	"github.com/drover-dev/drover/agent/credential"
	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/environ"
	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/agent/loglevel"
	"github.com/drover-dev/drover/agent/probes"
	"github.com/drover-dev/drover/agent/report"
	"github.com/drover-dev/drover/agent/settings"
	"github.com/drover-dev/drover/agent/trust"
	"github.com/drover-dev/drover/agent/uninstall"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tracing"
	"github.com/drover-dev/drover/internal/tunnel"
)

// Timing of the end. The pod's grace period must exceed StopTimeout by 10 s.
const (
	// StopTimeout is how long the hub may use the agent's tunnels after the agent was asked to stop: for shells, mostly. The hub
	// closes them when no request is under way, so an idle agent ends at once.
	StopTimeout = 2 * time.Minute

	watchTimeout   = 5 * time.Second // the hub ends watches by itself between two events, unless it is an old one
	goodbyeTimeout = time.Second     // for requests that are still there when the time is over
)

// uidRetry is how long to wait before asking an API server again that did not answer.
const uidRetry = time.Second

// Options of Run.
type Options struct {
	// Kubeconfig is the path of one; empty for the cluster that the agent's pod runs in.
	Kubeconfig string
	// Environ is what the manifest says.
	Environ environ.Environ
	// Version of the agent.
	Version string
	Log     logr.Logger
	// Level of Log.
	Level zap.AtomicLevel
	// Stop is StopTimeout if it is 0.
	Stop time.Duration
	// Tracer of requests, nil for none.
	Tracer *tracing.Tracer
}

// Run runs the agent until ctx ends or the hub has uninstalled it. Neither is an error.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cfg, err := kube.Config(o.Kubeconfig, fmt.Sprintf("drover-agent/%s (%s/%s)", o.Version, runtime.GOOS, runtime.GOARCH))
	if err != nil {
		return err
	}
	client, err := kube.New(cfg)
	if err != nil {
		return err
	}
	a := &agent{options: o, client: client, pod: kube.PodUID(cfg, o.Kubeconfig)}
	if a.base, err = forward.BaseURL(cfg); err != nil {
		return err
	}
	if a.transport, err = forward.Transport(cfg); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.Environ.Listen)
	if err != nil {
		return fmt.Errorf("listen for probes: %w: set DROVER_LISTEN to a free address", err)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { a.serveLevel(ctx) })
	probed, stopProbes := context.WithCancel(context.WithoutCancel(ctx)) // while the agent drains it is alive and not ready
	defer stopProbes()
	probing := make(chan error, 1)
	running.Go(func() { defer cancel(); probing <- probes.Serve(probed, listener, probes.Handler(a.alive, a.ready)) })
	a.run(ctx)
	stopProbes()
	return <-probing
}

// agent is the parts that depend on each other.
type agent struct {
	options   Options
	client    *kube.Client
	pod       string   // UID of the pod that this is, empty outside of one
	base      *url.URL // of the API server
	transport http.RoundTripper
	reporter  *report.Reporter          // set before link
	link      atomic.Pointer[link.Link] // nil until the API server has said which cluster it is
}

// run reports and keeps the link until ctx ends or the agent is uninstalled.
func (a *agent) run(ctx context.Context) {
	uid, ok := a.awaitUID(ctx)
	if !ok {
		return
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	log, env := a.options.Log, a.options.Environ
	keeper := credential.New(credential.Options{
		Secrets:    a.client.Secrets(env.Namespace),
		Namespace:  env.Namespace,
		Manifest:   trust.Manifest{Mode: env.Trust, Servers: env.Servers, Checksums: env.Checksums},
		ClusterUID: uid,
		Tunnel:     a.tunnelConfig(),
		Log:        log.WithName("credential"),
	})
	duties := a.newDuties(uid, keeper)
	reporter := duties.reporter
	watches, endWatches := context.WithCancel(context.WithoutCancel(ctx))
	defer endWatches()
	dismissed := context.AfterFunc(ctx, func() { time.AfterFunc(watchTimeout, endWatches) })
	defer dismissed()
	remover := uninstall.New(uninstall.Options{
		Client: a.client.REST, Namespace: env.Namespace, Sets: duties.removeDelivered, Log: log.WithName("uninstall"),
	})
	routes := routes{
		kubernetes: a.options.Tracer.Continue(a.forward(watches), describe),
		report:     reporter,
		deployment: &deployment.Handler{
			Secrets: a.client.Secrets(env.Namespace), Setup: deployment.Setup{Namespace: env.Namespace, Profile: env.Profile}, Log: log.WithName("deployment"),
		},
		uninstall: remover,
		sets:      duties.sets,
		plans:     duties.plans,
		settings:  &settings.Handler{Log: log.WithName("settings"), Store: announce(keeper, reporter)},
	}
	l := link.New(link.Options{Identity: keeper, Handler: routes, Drain: cmp.Or(a.options.Stop, StopTimeout), Log: log.WithName("link")})
	a.reporter = reporter
	a.link.Store(l)

	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { duties.run(ctx) })
	running.Go(func() { l.Run(ctx) })
	select {
	case <-ctx.Done():
	case <-remover.Done():
	}
	cancel()
}

// forward serves the API: to users as themselves, or to all as one user who only reads.
func (a *agent) forward(watches context.Context) *forward.Handler {
	log := a.options.Log.WithName("forward")
	if a.options.Environ.Profile == v1.ProfileReadOnly {
		return forward.NewReadOnly(watches, a.base, a.transport, log)
	}
	return forward.New(watches, a.base, a.transport, log)
}

// describe returns the attributes of a span for a request to the API server.
func describe(r *http.Request) tracing.About {
	return tracing.Kubernetes(r, strings.TrimPrefix(r.URL.Path, protocol.PathKubernetes), "agent", "")
}

// awaitUID asks until the API server returns the cluster's UID. It returns false if ctx ends before.
func (a *agent) awaitUID(ctx context.Context) (string, bool) {
	for ctx.Err() == nil {
		uid, err := a.client.ClusterUID(ctx)
		if err == nil {
			return uid, true
		}
		a.options.Log.Error(err, "waiting for the API server")
		retry, cancel := context.WithTimeout(ctx, uidRetry)
		<-retry.Done()
		cancel()
	}
	return "", false
}

// serveLevel serves the log level. An agent that cannot serve it runs without.
func (a *agent) serveLevel(ctx context.Context) {
	listener, err := loglevel.Listen(ctx, a.options.Environ.Socket)
	if err == nil {
		err = loglevel.Serve(ctx, listener, a.options.Environ.Socket, a.options.Level)
	}
	if err != nil {
		a.options.Log.Error(err, "the log level cannot be changed while the agent runs")
	}
}

// alive reports whether the link is alive. Before there is one, the agent waits for its API server and counts as alive.
func (a *agent) alive() bool {
	l := a.link.Load()
	return l == nil || l.Alive()
}

// ready reports whether another replica may stop: the hub reaches the member through this one, and has read its report.
func (a *agent) ready() bool {
	l := a.link.Load()
	return l != nil && l.Connected() && a.reporter.Read()
}

func (a *agent) tunnelConfig() tunnel.Config {
	cfg := tunnel.Config{DrainTimeout: goodbyeTimeout, WriteBuffers: &tunnel.WriteBuffers{}}
	if a.options.Environ.TunnelDataDebug {
		log := a.options.Log.WithName("tunnel")
		cfg.Observer.Frame = func(f tunnel.Frame) { log.Info("frame", "frame", fmt.Sprintf("%+v", f)) }
	}
	return cfg
}
