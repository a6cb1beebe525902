// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/drover-dev/drover/internal/audit"
	"github.com/drover-dev/drover/internal/config"
)

// openAudit begins the audit log that the configuration asks for, with its metrics.
func (t *telemetry) openAudit(cfg config.Audit, logger logr.Logger) (*audit.Log, error) {
	counter := func(name, help string) func(int) {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		t.registry.MustRegister(c)
		return func(n int) { c.Add(float64(n)) }
	}
	return audit.Open(cfg.Settings(), audit.Observer{
		Written: counter("drover_audit_lines_total", "Lines of the audit log that were written."),
		Dropped: counter("drover_audit_dropped_total", "Lines of the audit log that are missing: there was no room, or they could not be written."),
	}, logger)
}
