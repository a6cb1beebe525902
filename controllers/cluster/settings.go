// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/drover-dev/drover/internal/fleet"
)

// announceTimeout bounds one announcement. An agent stores settings with one write to its own API server.
const announceTimeout = 15 * time.Second

// announce hands the hub's settings to a connected agent that reports others. The agent confirms by its next report.
func (r *Reconciler) announce(ctx context.Context, in *input) error {
	report := in.member.Report
	if report == nil || versionSkew(report) != "" || report.SettingsDigest == in.settings.Digest() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	err := r.Fleet.PutSettings(ctx, in.name, in.settings)
	if errors.Is(err, fleet.ErrNotConnected) {
		return nil // its return wakes us
	}
	return err
}
