// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/controllers/host"
	"github.com/drover-dev/drover/internal/wiring"
)

// hosts lists the controllers for Hosts. They let machines join, send instructions from Secrets to machines, and close
// the tunnels of revoked agents.
func hosts(s shared) []wiring.Controller {
	revoker := &host.Revoker{Client: s.client, Live: s.live, Tunnels: s.Members.Tunnels}
	reconciler := &host.Reconciler{
		Output: s.output("drover-host"), Live: s.live, Members: s.Members.Reconciled(),
		Settings: s.settings, Trust: cmp.Or(s.Config.Agent.Defaults().Trust, v1.TrustPinned),
		Settled: s.settled(since(s.Started)),
		History: host.HistoryOf(s.Checkpoints),
	}
	return []wiring.Controller{
		{
			Name: "host-revocation", Reconciler: revoker, EveryReplica: true,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Host{}), wiring.OnOtherChange(&corev1.Secret{}, host.Handler()),
				wiring.OnCall(host.OfMembers(s.Members.OnHostOpen), 0),
			},
		},
		{
			Name: "host", Reconciler: reconciler, Workers: 8,
			Triggers: []wiring.Trigger{
				wiring.OnChange(&v1.Host{}), wiring.OnOtherChange(&corev1.Secret{}, host.Handler()),
				wiring.OnCall(host.OfMembers(s.Members.OnHostChange), 50*time.Millisecond),
				wiring.RequestAllOnCall(s.hostNames, s.Trust.OnChange),
			},
		},
	}
}
