// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hub reads the objects that Drover's manager publishes.
//
// These objects contain the addresses of the hub, and the state that Hosts have reported to the current leader.
package hub

import (
	"context"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/trust"
)

// ManagerLease is the name of the Lease of Drover's manager. Every authenticated user of the hub can read the Lease.
const ManagerLease = "drover-manager"

// Hub reads the objects that the manager publishes. Client reads from a cache, and Live reads from the API server.
type Hub struct {
	Client, Live client.Reader
	// Namespace is the manager's namespace.
	Namespace string
	Now       func() time.Time
}

// ConfigMap returns the name of the ConfigMap with the hub's addresses and CA.
func (h Hub) ConfigMap() types.NamespacedName {
	return types.NamespacedName{Namespace: h.Namespace, Name: trust.AuthorityConfigMap}
}

// Settings returns the hub's addresses and its CA. The preferred address comes first.
func (h Hub) Settings(ctx context.Context) (protocol.Settings, error) {
	published := &corev1.ConfigMap{}
	if err := h.Client.Get(ctx, h.ConfigMap(), published); err != nil {
		return protocol.Settings{}, fmt.Errorf("read where the hub is from ConfigMap %s: %w", h.ConfigMap(), err)
	}
	return protocol.Settings{
		Servers: strings.Fields(published.Data[protocol.KeyServers]), CABundle: published.Data[protocol.KeyCABundle],
	}, nil
}

// NotCurrent returns the reason why the status of a Host may be out of date. It returns "" if the agent reported the
// status to the current leader. An outdated status may have been written by a previous leader, or may come from the
// backup that the hub was restored from.
//
// A manager without leader election has no Lease, and does not record a term in the status of a Host. NotCurrent cannot
// detect a restored hub in that case.
func (h Hub) NotCurrent(ctx context.Context, host *v1.Host) (string, error) {
	lease := &coordinationv1.Lease{}
	name := types.NamespacedName{Namespace: h.Namespace, Name: ManagerLease}
	err := h.Live.Get(ctx, name, lease)
	switch {
	case apierrors.IsNotFound(err) && host.Status.ReportedTo == "":
		return "", nil
	case apierrors.IsNotFound(err):
		return "the manager's Lease " + name.String() + " is missing: the manager creates it when it elects a leader", nil
	case err != nil:
		return "", fmt.Errorf("read the manager's Lease %s: %w", name, err)
	}
	switch term := checkpoint.Term(lease); {
	case !h.renewed(lease):
		return "no manager leads: Lease " + name.String() + " was not renewed lately", nil
	case term == "" || host.Status.ReportedTo != term:
		return "its agent has not reported yet to the manager that leads now", nil
	}
	return "", nil
}

// renewed reports whether a Lease has been renewed recently. It returns false for a Lease from an old backup. The
// clocks of the manager and this process must not differ by more than the duration of the Lease.
func (h Hub) renewed(lease *coordinationv1.Lease) bool {
	spec, holder := lease.Spec, lease.Spec.HolderIdentity
	if holder == nil || *holder == "" || spec.RenewTime == nil || spec.LeaseDurationSeconds == nil {
		return false
	}
	held := time.Duration(*spec.LeaseDurationSeconds) * time.Second
	return h.Now().Sub(spec.RenewTime.Time) < 2*held
}
