// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/tunnel"
)

// transports yields the transports of members to the proxy. A connected member costs no look at the API; only for the others it is told apart
// whether they exist.
type transports struct {
	registry *members.Registry
	clusters client.Reader
}

// Transport implements proxy.Members.
func (m transports) Transport(ctx context.Context, name types.NamespacedName) (http.RoundTripper, error) {
	transport, err := m.registry.Transport(name)
	if err == nil {
		return untouched{transport}, nil
	}
	if !errors.Is(err, members.ErrNotConnected) {
		return nil, err
	}
	cluster := &v1.Cluster{}
	if err := m.clusters.Get(ctx, name, cluster); apierrors.IsNotFound(err) {
		return nil, proxy.ErrUnknownCluster
	} else if err != nil {
		return nil, err
	}
	return nil, &proxy.NotConnectedError{LastSeen: lastSeen(m.registry.State(name), cluster)}
}

func lastSeen(state members.State, cluster *v1.Cluster) time.Time {
	if state.LastSeen.IsZero() && cluster.Status.LastSeen != nil {
		return cluster.Status.LastSeen.Time
	}
	return state.LastSeen
}

// untouched asks the caller to retry when a tunnel ended before its agent looked at the request, and there was no other.
type untouched struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (u untouched) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := u.RoundTripper.RoundTrip(r)
	if errors.Is(err, tunnel.ErrNotProcessed) || errors.Is(err, members.ErrNotConnected) {
		return nil, &proxy.NotConnectedError{LastSeen: time.Now()}
	}
	return response, err
}
