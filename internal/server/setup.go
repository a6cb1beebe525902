// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	admission "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/policies"
	"github.com/drover-dev/drover/internal/portal/catalog"
	"github.com/drover-dev/drover/internal/portal/subscribe"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/request"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
	"github.com/drover-dev/drover/internal/wiring"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// New creates the server for the hub's port and adds it to the manager. The controllers also use the server. led
// reports whether any replica is the leader.
func New(
	ctx context.Context, mgr ctrl.Manager, cfg config.Config, holder *trust.Holder, led func() bool,
) (*Server, error) {
	logger := mgr.GetLogger().WithName("hub")
	clients, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("create client: %w", err)
	}
	grants, err := addIndexes(ctx, mgr)
	if err != nil {
		return nil, err
	}
	registry, bounds := members.New(logger.WithName("members"), time.Now), cfg.Limits.Workspace
	registry.Bound(members.Bounds{ClusterTunnels: bounds.ClusterTunnels, WorkspaceTunnels: bounds.Tunnels})
	connected := transports{agents: registry.Transports, states: registry.States, clusters: mgr.GetClient()}
	observed, err := newTelemetry(ctx, cfg.Tracing, mgr.GetConfig().UserAgent, registry.States, logger)
	if err != nil {
		return nil, err
	}
	access := identity.NewAccess(clients.AuthorizationV1().SubjectAccessReviews())
	bindings := bound(grants.Bound, connected.alike, time.Now)
	audiences := identity.Audiences{Hub: cfg.Server.URLs, Clusters: proxy.PathClusters, Member: proxy.MemberOf}
	users := newUsers(clients, audiences, identity.Chain{bindings, access.ClusterProxy})
	issuer, err := users.signIn(ctx, mgr, cfg, grants, logger.WithName("sign-in"))
	if err != nil {
		return nil, err
	}
	ways := catalog.Ways{Workspaces: grants.Workspaces, Bound: bindings, Proxy: access.ClusterProxy}
	limits := cfg.Limits.Settings()
	limiter := limit.New(limits, observed.proxy.limits())
	handler, err := users.proxy(mgr, connected, observed, limiter, logger)
	if err != nil {
		return nil, err
	}
	server := &Server{
		Port:         Port{Listen: cfg.Server.Listen, Connections: cfg.Limits.Connections, Audiences: audiences},
		Trust:        holder,
		Registration: newRegistration(mgr, cfg.AgentSettings(holder.Bundle), holder.Identity, registry.Admission, observed),
		Members:      registry,
		Tunnel: observed.tunnels.observe(tunnel.Config{Memory: &tunnel.Memory{}, Repeatable: request.Repeatable,
			ErrorLog: quietLog(logger)}),
		Proxy: handler, SignIn: issuer,
		Catalog: users.catalog(mgr, ways),
		Changes: users.changes(mgr, access, ways, observed, unmanaged(led, access, cfg.Namespace)),
		Ready:   func() error { return cachesSynced(mgr, cfg) },
		Stop:    Stop{Delay: cfg.Drain.Delay.Duration, Sessions: cfg.Drain.Sessions.Duration, Calls: request.NewGroup()},
		Log:     logger, telemetry: observed, pace: newPace(observed.turnedAway.Inc),
	}
	if server.Audit, err = observed.openAudit(cfg.Audit, logger.WithName("audit")); err != nil {
		return nil, err
	}
	server.join(mgr, cfg, hopLimits(limiter, limits, observed.proxy.limits()),
		func(result string) { observed.tunnels.hops.WithLabelValues(result).Inc() })
	if err := observed.watchPolicies(mgr, clients.AdmissionregistrationV1(), logger.WithName("policies")); err != nil {
		return nil, err
	}
	observed.watchServer(func() error { return server.readiness(ctx) }, holder, mgr.GetClient())
	return server, server.addOperators(ctx, mgr, cfg, identity.Protect(observed.scrapes(), users.authenticate,
		access.Metrics))
}

// newUsers returns the authentication and authorization of users whose tokens the API server verifies. A user is
// admitted to a member if at least one of the given ways allows it.
func newUsers(clients kubernetes.Interface, audiences identity.Audiences, ways identity.Chain) users {
	authenticator := identity.NewAuthenticator(clients.AuthenticationV1().TokenReviews(), withStreams(audiences))
	return users{authenticate: authenticator.Authenticate, authorize: ways.Authorize, audiences: audiences}
}

func (t *telemetry) scrapes() http.Handler {
	return promhttp.HandlerFor(prometheus.Gatherers{metrics.Registry, t.registry}, promhttp.HandlerOpts{})
}

// unmanaged returns a function that reports whether no replica is the leader and the user may get the Lease. If this
// right cannot be checked, the function returns false.
func unmanaged(
	led func() bool, access *identity.Access, namespace string,
) func(ctx context.Context, id identity.Identity) bool {
	lease := types.NamespacedName{Namespace: namespace, Name: leaseName}
	return func(ctx context.Context, id identity.Identity) bool {
		if led() {
			return false
		}
		sees, err := access.Lease(ctx, id, lease)
		return err == nil && sees
	}
}

func (u *users) catalog(mgr ctrl.Manager, ways catalog.Ways) *catalog.Catalog {
	return catalog.New(catalog.Catalog{
		Authenticate: heldByUser(u.authenticate), Ways: ways, Clusters: mgr.GetClient(),
	})
}

func (u *users) changes(mgr ctrl.Manager, access *identity.Access, ways catalog.Ways, observed *telemetry,
	unmanaged func(context.Context, identity.Identity) bool) *subscribe.Server {
	return subscribe.New(subscribe.Options{
		Authenticate: heldByUser(u.authenticate), Watch: access.Watch, Reach: ways, Unmanaged: unmanaged,
		Informers: mgr.GetCache(), Live: mgr.GetAPIReader(), Now: time.Now, Observer: observed.subscriptions(),
	})
}

func (u *users) proxy(mgr ctrl.Manager, connected transports, observed *telemetry, limiter *limit.Limiter,
	log logr.Logger) (*proxy.Handler, error) {
	return proxy.New(proxy.Options{
		Authenticate: heldByUser(u.authenticate),
		Authorize:    u.authorize,
		Transport:    connected.Transport,
		Hub:          mgr.GetConfig(),
		Observer:     observed.proxy.observer(),
		Limiter:      limiter,
		Log:          log.WithName("proxy"),
	})
}

// newRegistration returns the part of the server that lets agents join. Rejected agents are reported on their Clusters.
func newRegistration(
	mgr ctrl.Manager, settings func() protocol.Settings, audience func() string,
	admission *members.Admission, observed *telemetry,
) *registration.Server {
	reject := refused(mgr, admission, observed.tunnels.refused)
	admission.OnRefused(reject)
	return &registration.Server{
		Cache: mgr.GetClient(), Live: mgr.GetAPIReader(), Writer: mgr.GetClient(),
		Settings: settings, Audience: audience,
		Refused: reject,
		Unproven: func(name types.NamespacedName, reason, message string) {
			observed.tunnels.refused.WithLabelValues(reason).Inc()
			admission.Unproven(name, reason, message)
		},
		Now: time.Now, Log: mgr.GetLogger().WithName("hub").WithName("registration"),
	}
}

// addIndexes adds the lookup indexes to the caches. It returns the index of grants. This index finds a principal's
// bindings.
func addIndexes(ctx context.Context, mgr ctrl.Manager) (*index.Grants, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Secret{}, registration.TokenHashIndex,
		registration.IndexTokenHash); err != nil {
		return nil, fmt.Errorf("index join tokens: %w", err)
	}
	if err := index.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	return index.NewGrants(ctx, mgr.GetCache(), mgr.GetClient())
}

// refused returns a function that is called when a client that claims to be a Cluster's agent is refused. The function
// counts the refusal and emits an event for the Cluster.
func refused(
	mgr ctrl.Manager, admission *members.Admission, count *prometheus.CounterVec,
) func(types.NamespacedName, string, string) {
	recorder := mgr.GetEventRecorder("drover-registration")
	return func(name types.NamespacedName, reason, message string) {
		count.WithLabelValues(reason).Inc()
		if !admission.Refused(name, reason, message) {
			return
		}
		cluster := &v1.Cluster{}
		if err := mgr.GetClient().Get(context.Background(), name, cluster); err != nil {
			return // the Cluster no longer exists or is not in the cache yet, so the refusal cannot be shown
		}
		recorder.Eventf(cluster, nil, corev1.EventTypeWarning, reason, "RefuseAgent", "%s", message)
	}
}

// watchPolicies checks continuously, on every replica, whether the hub's admission policies are in force.
func (t *telemetry) watchPolicies(
	mgr ctrl.Manager, client admission.AdmissionregistrationV1Interface, log logr.Logger,
) error {
	watch, err := policies.New(policies.Manifests{
		Files: []string{"policy/*.yaml"}, Policies: "config/policy", Rights: "config/rbac",
	}, client, log)
	if err != nil {
		return err
	}
	t.registry.MustRegister(watch)
	return mgr.Add(watch)
}

// cachesSynced reports whether the caches from which requests are served have synced. It does not wait for them.
func cachesSynced(mgr ctrl.Manager, cfg config.Config) error {
	kinds := []client.Object{&v1.Cluster{}, &corev1.Secret{}, &v1.ClusterRoleTemplateBinding{}, &v1.ProjectRoleTemplateBinding{}, &v1.Project{}}
	if cfg.SignIn.On() {
		kinds = append(kinds, &v1.User{}, &v1.AuthProvider{})
	}
	return wiring.CachesFilled(mgr.GetCache(), kinds...)
}

// quietLog passes net/http's log lines to a logger at debug level, because handshakes that scanners abort do not need
// to be logged.
func quietLog(logger logr.Logger) *log.Logger {
	return slog.NewLogLogger(logr.ToSlogHandler(logger.V(1)), slog.LevelInfo)
}
