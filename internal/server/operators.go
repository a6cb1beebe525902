// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"

	"golang.org/x/net/netutil"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/drover-dev/drover/internal/config"
)

// Limits on the connections to each of the operators' ports, in total and per address. The ports serve a kubelet and a
// few scrapers.
const (
	operatorConnections      = 512
	operatorConnectionsShare = 32
)

// addOperators adds the ports for probes and for metrics to the manager. Their connections and handshakes are counted
// separately from connections to the port for agents and users. As a result, probes and scrapes are served regardless
// of the load on that port. Both operator ports open before the port for agents and users, and close after it.
func (s *Server) addOperators(ctx context.Context, mgr ctrl.Manager, cfg config.Config, metrics http.Handler) error {
	probes, scrapes := http.NewServeMux(), http.NewServeMux()
	s.probes(ctx, probes)
	scrapes.Handle("GET /metrics", metrics)
	secured := &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: s.Trust.GetCertificate,
		NextProtos: []string{"http/1.1"}}
	return errors.Join(
		s.addOperator(ctx, mgr, operatorPort{name: "health", address: cfg.Health.Listen, handler: probes}),
		s.addOperator(ctx, mgr, operatorPort{"metrics", cfg.Metrics.Listen, s.Audit.Wrap(scrapes), secured}),
	)
}

// operatorPort is a port for operators. It uses TLS if secured is not nil.
type operatorPort struct {
	name, address string
	handler       http.Handler
	secured       *tls.Config
}

// addOperator adds a port for operators to the manager.
func (s *Server) addOperator(ctx context.Context, mgr ctrl.Manager, port operatorPort) error {
	if port.address == config.ListenNowhere {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", port.address)
	if err != nil {
		return fmt.Errorf("listen on %s for %s: %w", port.address, port.name, err)
	}
	listener = newConnections(operatorConnectionsShare,
		s.telemetry.turnedAway.Inc).listener(netutil.LimitListener(listener, operatorConnections))
	if port.secured != nil {
		listener = tls.NewListener(listener, port.secured)
	}
	s.Log.Info("serving operators", "port", port.name, "address", listener.Addr().String())
	server := &http.Server{
		Handler: port.handler, ReadHeaderTimeout: headerTimeout, ReadTimeout: exchangeTimeout,
		WriteTimeout: exchangeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes, ErrorLog: quietLog(s.Log),
	}
	return mgr.Add(&manager.Server{
		Name: port.name, Listener: listener, ShutdownTimeout: new(lastWords), Server: server,
	})
}

func (s *Server) probes(ctx context.Context, mux *http.ServeMux) {
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeOK(w) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := s.readiness(ctx); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeOK(w)
	})
}
