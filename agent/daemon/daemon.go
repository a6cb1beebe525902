// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package daemon connects the parts of the agent and runs them until it is stopped.
package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/direct"
	"github.com/drover-dev/drover/agent/forward"
	"github.com/drover-dev/drover/agent/identity"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/agent/leader"
	"github.com/drover-dev/drover/agent/link"
	"github.com/drover-dev/drover/agent/stream"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/memory"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/tracing"
	"github.com/drover-dev/drover/internal/tunnel"
)

// These constants control the shutdown. The pod's grace period must exceed StopTimeout by 10 s.
const (
	// StopTimeout is how long requests in progress, such as shells, may continue after the agent has been asked to
	// stop. The hub closes the agent's tunnels once no requests are in progress, so an idle agent exits immediately.
	StopTimeout = 2 * time.Minute

	watchTimeout   = 5 * time.Second // for watches of old hubs; newer hubs end watches themselves, between two events
	goodbyeTimeout = time.Second     // for requests that are still open after StopTimeout
)

// uidRetry is how long to wait before another request to an API server that did not respond.
const uidRetry = time.Second

// Options configure Run.
type Options struct {
	// Kubeconfig is the path of a kubeconfig file. If it is empty, the agent connects to the cluster in which its pod
	// runs.
	Kubeconfig string
	// Environ holds the settings from the manifest.
	Environ Environ
	// Version is the version of the agent.
	Version string
	Log     logr.Logger
	// Level is the level of Log.
	Level zap.AtomicLevel
	// Stop overrides StopTimeout if it is not 0.
	Stop time.Duration
	// Tracer traces requests. If it is nil, nothing is traced.
	Tracer *tracing.Tracer
}

// Run runs the agent until ctx is done or the hub has uninstalled the agent, and then returns nil.
func Run(ctx context.Context, o Options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	a, err := newAgent(o)
	if err != nil {
		return err
	}
	var listener net.Listener
	if !o.Environ.HostNetwork {
		if listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", o.Environ.Listen); err != nil {
			return fmt.Errorf("listen for probes: %w: set DROVER_LISTEN to a free address", err)
		}
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { memory.ReturnWhenCalm(ctx) })
	// While the agent is draining, it is alive but not ready.
	probed, stopProbes := context.WithCancel(context.WithoutCancel(ctx))
	defer stopProbes()
	running.Go(func() { a.serveSocket(probed) })
	probing := make(chan error, 1)
	running.Go(func() {
		defer cancel()
		if listener == nil {
			<-probed.Done()
			probing <- nil
			return
		}
		probing <- serveProbes(probed, listener, probes(a.alive, a.ready, http.HandlerFunc(a.serveMetrics)))
	})
	a.runAnew(ctx)
	stopProbes()
	return <-probing
}

// restorePause is how long the agent pauses after its cluster has been restored, so that the other replicas notice that
// the Lease comes from a backup. They read the Lease every 2 s.
const restorePause = 5 * time.Second

// runAnew runs the agent, and restarts it whenever its cluster is restored from a backup, because the data that the
// agent read before the restore is out of date. The process does not exit, because some agents have no kubelet that
// would restart them, and because restarting the process takes time. Users' requests in progress continue through the
// old tunnel.
func (a *agent) runAnew(ctx context.Context) {
	defer a.links.Wait()
	for a.run(ctx) {
		a.restored = time.Now()
		a.options.Log.Info("the cluster was restored from a backup: reading everything again",
			"in", restorePause.String())
		await.Time(ctx, restorePause)
	}
}

// agent holds the parts of the agent that depend on each other.
type agent struct {
	options   Options
	client    *kube.Client
	pod       string   // UID of the agent's own pod; empty outside a pod
	base      *url.URL // URL of the API server
	transport http.RoundTripper
	reported  atomic.Pointer[stream.Topic]    // set before link
	direct    atomic.Pointer[direct.Endpoint] // set before link
	link      atomic.Pointer[link.Link]       // nil until the cluster's UID has been read

	// The fields below keep their values when the cluster is restored.
	links    sync.WaitGroup   // counts the links whose tunnels the hub has not closed yet
	restored time.Time        // when a restore was last detected; zero if none was detected
	uid      string           // UID of the cluster
	name     string           // name of this process in the Lease
	identity *identity.Keeper // identity of the last run; nil before the first run
}

func newAgent(o Options) (*agent, error) {
	cfg, err := kube.Config(o.Kubeconfig, fmt.Sprintf("drover-agent/%s (%s/%s)", o.Version, runtime.GOOS, runtime.GOARCH))
	if err != nil {
		return nil, err
	}
	client, err := kube.New(cfg)
	if err != nil {
		return nil, err
	}
	a := &agent{options: o, client: client, pod: kube.PodUID(cfg, o.Kubeconfig)}
	if a.base, err = forward.BaseURL(cfg); err != nil {
		return nil, err
	}
	a.transport, err = forward.Transport(cfg)
	return a, err
}

// errRestored is the cause of cancellation when the cluster has been restored from a backup.
var errRestored = errors.New("the cluster was restored from a backup")

// run sends reports and maintains the link until ctx is done, the agent is uninstalled, or the cluster is restored. It
// reports whether the cluster was restored.
func (a *agent) run(ctx context.Context) (restored bool) {
	uid, ok := a.awaitUID(ctx)
	if !ok {
		return false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	log, env := a.options.Log, a.options.Environ
	keeper := a.newIdentity(uid, false)
	if a.identity != nil && a.uid == uid {
		keeper.Succeed(ctx, a.identity)
	}
	a.uid, a.identity, a.name = uid, keeper, cmp.Or(a.name, a.pod, keeper.Instance())
	watches, endWatches := whileWatched(ctx)
	duties := a.newDuties(watches, keeper, func() { cancel(errRestored) })
	remover := deployment.NewUninstaller(deployment.UninstallOptions{
		Client: a.client.REST, Namespace: env.Namespace, Sets: duties.removeDelivered, Log: log.WithName("uninstall"),
	})
	routes := routes{
		protocol.PathKubernetes + "/": a.options.Tracer.Continue(a.forward(watches), describe),
		protocol.PathReport:           duties.stream,
		protocol.PathDeployment: &deployment.Handler{
			Secrets: a.client.Secrets(env.Namespace), Log: log.WithName("deployment"),
			Setup: deployment.Setup{Namespace: env.Namespace, Profile: env.Profile, HostNetwork: env.HostNetwork},
		},
		protocol.PathUninstall:  remover,
		protocol.PathSets + "/": duties.sets,
		protocol.PathTerm:       a.term(),
		protocol.PathSettings:   keeper.Settings(duties.reporter.Touch),
	}
	l := a.newLink(keeper, duties.failures.tell, routes)
	a.reported.Store(duties.stream.Topic(protocol.SubjectReport))
	a.link.Store(l)

	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { duties.run(ctx) })
	a.links.Go(func() {
		defer endWatches()
		l.Run(ctx)
	})
	select {
	case <-ctx.Done():
	case <-remover.Done():
	}
	cancel(nil)
	return errors.Is(context.Cause(ctx), errRestored)
}

// term returns a handler that responds with the current leadership term of the replicas.
func (a *agent) term() http.Handler {
	lease := a.client.Lease(a.options.Environ.Namespace, protocol.LeaderLease)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		term, err := leader.Term(r.Context(), lease)
		if err != nil {
			http.Error(w, "the Lease of the agent cannot be read", http.StatusBadGateway)
			return
		}
		_ = json.NewEncoder(w).Encode(term) // the hub notices an incomplete response
	})
}

func (a *agent) newIdentity(uid string, nodeAgent bool) *identity.Keeper {
	env := a.options.Environ
	return identity.New(identity.Options{
		Secrets:    a.client.Secrets(env.Namespace),
		Namespace:  env.Namespace,
		Manifest:   identity.Manifest{Mode: env.Trust, Servers: env.Servers, Checksums: env.Checksums},
		ClusterUID: uid,
		Tunnel:     a.tunnelConfig(),
		NodeAgent:  nodeAgent,
		Log:        a.options.Log.WithName("identity"),
	})
}

// newLink returns the agent's link to the hub. The told function is called with the reasons why the link cannot
// connect. It is nil in a node agent, because the replicas report these reasons.
func (a *agent) newLink(keeper *identity.Keeper, told func(string), h http.Handler) *link.Link {
	return link.New(link.Options{
		Target: keeper.Target, Changed: keeper.Changed, Told: told, Handler: h, Patient: told == nil,
		Drain: cmp.Or(a.options.Stop, StopTimeout), Log: a.options.Log.WithName("link"),
	})
}

// whileWatched returns the context for forwarded watches. This context is canceled watchTimeout after ctx is done.
func whileWatched(ctx context.Context) (context.Context, context.CancelFunc) {
	watches, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(watchTimeout, end) })
	return watches, func() { stop(); end() }
}

// forward returns the handler for requests to the API server. The handler impersonates the user of each request. In a
// read-only agent, it impersonates a single user for all requests.
func (a *agent) forward(watches context.Context) *forward.Handler {
	log := a.options.Log.WithName("forward")
	if a.options.Environ.Profile == v1.ProfileReadOnly {
		return forward.NewReadOnly(watches, a.base, a.transport, log)
	}
	h := forward.New(watches, a.base, a.transport, log)
	h.Namespace = a.options.Environ.Namespace
	return h
}

// describe returns the attributes of a span for a request to the API server.
func describe(r *http.Request) tracing.About {
	return tracing.Kubernetes(r, strings.TrimPrefix(r.URL.Path, protocol.PathKubernetes), "agent", "")
}

// awaitUID reads the cluster's UID from the API server, and retries until it succeeds. It returns false if ctx is done
// first.
func (a *agent) awaitUID(ctx context.Context) (uid string, ok bool) {
	err := wait.PollUntilContextCancel(ctx, uidRetry, true, func(ctx context.Context) (bool, error) {
		var err error
		if uid, err = a.client.ClusterUID(ctx); err != nil {
			a.options.Log.Error(err, "cannot read the UID of the cluster from the API server; retrying")
		}
		return err == nil, nil
	})
	return uid, err == nil
}

// serveSocket serves probes and the log level on the socket. If this fails, the agent runs without the socket.
func (a *agent) serveSocket(ctx context.Context) {
	mux := probes(a.alive, a.ready, http.HandlerFunc(a.serveMetrics))
	mux.Handle("/", a.options.Level)
	listener, err := listenSocket(ctx, a.options.Environ.Socket)
	if err == nil {
		err = serveSocket(ctx, listener, a.options.Environ.Socket, mux)
	}
	if err != nil {
		a.options.Log.Error(err, "cannot serve the socket: the log level cannot be changed while the agent runs, and "+
			"\"drover-agent probe\" fails")
	}
}

// serveMetrics serves the metrics of direct access. A read-only agent has no such metrics. Other agents have none
// until they have read the cluster's UID.
func (a *agent) serveMetrics(w http.ResponseWriter, r *http.Request) {
	if e := a.direct.Load(); e != nil {
		e.Metrics().ServeHTTP(w, r)
	}
}

// alive reports whether the link is alive. It also returns true if there is no link yet, because the agent is waiting
// for its API server.
func (a *agent) alive() bool {
	l := a.link.Load()
	return l == nil || l.Alive()
}

// ready reports whether the hub can reach the member through this replica and has read this replica's report. During
// an update, Kubernetes stops an old replica only after a new replica has become ready.
func (a *agent) ready() bool {
	l, reported := a.link.Load(), a.reported.Load()
	if l == nil || reported == nil || !l.Connected() {
		return false
	}
	select {
	case <-reported.Read():
		return true
	default:
		return false
	}
}

func (a *agent) tunnelConfig() tunnel.Config {
	cfg := tunnel.Config{DrainTimeout: goodbyeTimeout, HandshakeTimeout: protocol.AttemptTime, Memory: &tunnel.Memory{}}
	if a.options.Environ.TunnelDataDebug {
		log := a.options.Log.WithName("tunnel")
		cfg.Observer.Frame = func(f tunnel.Frame) { log.Info("frame", "frame", fmt.Sprintf("%+v", f)) }
	}
	return cfg
}

// routes maps paths to the handlers for the hub's requests. A path that ends in a slash stands for all paths under it.
// routes is not an http.ServeMux, because a ServeMux cleans paths, and the paths of requests to the API server must
// remain unchanged.
type routes map[string]http.Handler

// ServeHTTP passes a request to the handler for its path.
func (r routes) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	for path, handler := range r {
		if req.URL.Path == path || strings.HasSuffix(path, "/") && strings.HasPrefix(req.URL.Path, path) {
			handler.ServeHTTP(w, req)
			return
		}
	}
	http.Error(w, "this agent does not know the path: hub and agent may differ in version", http.StatusNotFound)
}
