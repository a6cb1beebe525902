// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"fmt"
	"log"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/limit"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/tunnel"
)

// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create

// New makes the server of the hub's port and adds it to the manager. What it returns is for the controllers to share.
func New(ctx context.Context, mgr ctrl.Manager, cfg config.Config, holder *trust.Holder) (*Server, error) {
	logger := mgr.GetLogger().WithName("hub")
	clients, err := kubernetes.NewForConfig(mgr.GetConfig())
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	grants, err := addIndexes(ctx, mgr)
	if err != nil {
		return nil, err
	}
	audience, err := Audience(ctx, clients)
	if err != nil {
		return nil, err
	}
	connected := transports{registry: members.New(logger.WithName("fleet"), time.Now), clusters: mgr.GetClient()}
	observed, err := newTelemetry(ctx, cfg.Tracing, mgr.GetConfig().UserAgent, connected.registry, logger)
	if err != nil {
		return nil, err
	}
	authenticator := identity.NewAuthenticator(clients.AuthenticationV1().TokenReviews())
	access := identity.NewAccess(clients.AuthorizationV1().SubjectAccessReviews())
	limits := cfg.Limits.Settings()
	limiter := limit.New(limits, observed.proxy.limits())
	handler, err := proxy.New(proxy.Options{
		Authenticate: heldByUser(authenticator.Authenticate),
		Authorize:    identity.Chain{bound(grants, connected.alike, time.Now), access.ClusterProxy}.Authorize,
		Members:      connected,
		Hub:          mgr.GetConfig(),
		Observer:     observed.proxy.observer(),
		Limiter:      limiter,
		Log:          logger.WithName("proxy"),
	})
	if err != nil {
		return nil, err
	}
	connected.registry.Bound(members.Bounds{ClusterTunnels: cfg.Limits.Workspace.ClusterTunnels, WorkspaceTunnels: cfg.Limits.Workspace.Tunnels})
	server := &Server{
		Listen: cfg.Server.Listen, Connections: cfg.Limits.Connections,
		Trust:        holder,
		Registration: newRegistration(mgr, holder, audience, connected.registry, observed),
		Members:      connected.registry,
		Tunnel:       observed.tunnels.observe(tunnel.Config{WriteBuffers: &tunnel.WriteBuffers{}, ErrorLog: quietLog(logger)}),
		Proxy:        observed.serve(handler),
		Metrics:      identity.Protect(promhttp.HandlerFor(prometheus.Gatherers{metrics.Registry, observed.registry}, promhttp.HandlerOpts{}), authenticator.Authenticate, access.NonResource("get", "/metrics")),
		Ready:        func() error { return cachesSynced(mgr) },
		Stop:         newStop(cfg.Drain),
		Log:          logger, telemetry: observed,
	}
	if server.Audit, err = observed.openAudit(cfg.Audit, logger.WithName("audit")); err != nil {
		return nil, err
	}
	server.join(mgr, cfg, hopLimits(limiter, limits, observed.proxy.limits()), func(result string) { observed.tunnels.hops.WithLabelValues(result).Inc() })
	observed.watchServer(func() error { return server.readiness(ctx) }, holder, mgr.GetClient())
	return server, nil
}

// newRegistration makes the part of the server that agents join by. A rejected agent shows on its Cluster.
func newRegistration(mgr ctrl.Manager, holder *trust.Holder, audience string, registry *members.Registry, observed *telemetry) *registration.Server {
	reject := refused(mgr, registry, observed.tunnels.refused)
	registry.OnRefused(reject)
	return &registration.Server{
		Cache: mgr.GetClient(), Live: mgr.GetAPIReader(), Writer: mgr.GetClient(),
		Settings: holder.Settings, Audience: audience,
		Refused: reject,
		Unproven: func(name types.NamespacedName, reason, message string) {
			observed.tunnels.refused.WithLabelValues(reason).Inc()
			registry.Unproven(name, reason, message)
		},
		Now: time.Now, Log: mgr.GetLogger().WithName("hub").WithName("registration"),
	}
}

// addIndexes adds to the caches what is looked up in them, and returns who is bound to what by one of the indexes.
func addIndexes(ctx context.Context, mgr ctrl.Manager) (*index.Grants, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Secret{}, registration.TokenHashIndex, registration.IndexTokenHash); err != nil {
		return nil, fmt.Errorf("index join tokens: %w", err)
	}
	if err := index.Index(ctx, mgr.GetFieldIndexer()); err != nil {
		return nil, err
	}
	return index.NewGrants(ctx, mgr.GetCache(), mgr.GetClient())
}

// Audience names this hub in connect tokens, whatever its addresses are: by the UID of its namespace kube-system.
func Audience(ctx context.Context, clients kubernetes.Interface) (string, error) {
	system, err := clients.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("identify the hub: %w", err)
	}
	return "drover-hub:" + string(system.UID), nil
}

// refused shows on a Cluster that a client that claimed to be its agent was turned away.
func refused(mgr ctrl.Manager, registry *members.Registry, count *prometheus.CounterVec) func(types.NamespacedName, string, string) {
	recorder := mgr.GetEventRecorder("drover-registration")
	return func(name types.NamespacedName, reason, message string) {
		count.WithLabelValues(reason).Inc()
		if !registry.Refused(name, reason, message) {
			return
		}
		cluster := &v1.Cluster{}
		if err := mgr.GetClient().Get(context.Background(), name, cluster); err != nil {
			return // gone, or not known yet: nothing to show it on
		}
		recorder.Eventf(cluster, nil, corev1.EventTypeWarning, reason, "RefuseAgent", "%s", message)
	}
}

// cachesSynced says whether the caches that requests are answered from are filled, without waiting for them.
func cachesSynced(mgr ctrl.Manager) error {
	now, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	for _, object := range []client.Object{&v1.Cluster{}, &corev1.Secret{}, &v1.ClusterRoleTemplateBinding{}, &v1.ProjectRoleTemplateBinding{}, &v1.Project{}} {
		informer, err := mgr.GetCache().GetInformer(now, object)
		if err != nil || !informer.HasSynced() {
			return fmt.Errorf("cache of %T is not filled yet", object)
		}
	}
	return nil
}

// quietLog passes what net/http logs to a logger at debug level: handshakes that scanners break off are no news.
func quietLog(logger logr.Logger) *log.Logger {
	return log.New(logWriter{logger}, "", 0)
}

type logWriter struct{ logr.Logger }

func (l logWriter) Write(line []byte) (int, error) {
	l.V(1).Info("http server", "message", strings.TrimSpace(string(line)))
	return len(line), nil
}
