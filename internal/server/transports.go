// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
	"github.com/drover-dev/drover/internal/index"
	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/proxy"
	"github.com/drover-dev/drover/internal/tunnel"
)

// clonesPatience is the value of Retry-After for requests to a member whose identity is shared by two clusters. The
// problem requires manual action.
const clonesPatience = time.Minute

// transports provides the proxy with transports to members. It looks up a Cluster only if the member is not connected.
type transports struct {
	agents   *members.Transports
	states   *members.States
	clusters client.Reader
}

// Transport implements proxy.Members.
func (m transports) Transport(ctx context.Context, name types.NamespacedName) (http.RoundTripper, error) {
	transport, err := m.agents.Transport(name)
	if err == nil {
		return retryUnprocessed{transport}, nil
	}
	if errors.Is(err, members.ErrClones) {
		return nil, clonesRefusal(name)
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
	return nil, &proxy.NotConnectedError{LastSeen: lastSeen(m.states.State(name), cluster)}
}

func clonesRefusal(name types.NamespacedName) error {
	return refusal.Unavailable(fmt.Sprintf("two clusters have the identity of cluster %q, for example because etcd or "+
		"a machine was copied, "+
		"so the hub serves neither; kubectl describe cluster %s -n %s on the hub says what to do",
		name, name.Name, name.Namespace)).About(name).RetryAt(time.Now().Add(clonesPatience))
}

func lastSeen(state members.State, cluster *v1.Cluster) time.Time {
	if state.LastSeen.IsZero() && cluster.Status.LastSeen != nil {
		return cluster.Status.LastSeen.Time
	}
	return state.LastSeen
}

// retryUnprocessed converts the errors of tunnels to errors of the proxy. If a tunnel ended before the agent processed
// the request, and there is no other tunnel, the error asks the caller to retry.
type retryUnprocessed struct{ http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (u retryUnprocessed) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := u.RoundTripper.RoundTrip(r)
	if errors.Is(err, tunnel.ErrNotProcessed) || errors.Is(err, members.ErrNotConnected) {
		return nil, &proxy.NotConnectedError{LastSeen: time.Now()}
	}
	if errors.Is(err, tunnel.ErrHeaderTooLarge) {
		return nil, fmt.Errorf("%w: %w", proxy.ErrHeaderTooLarge, err)
	}
	return response, err
}

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters;clusterroletemplatebindings;projectroletemplatebindings;projects,verbs=get;list;watch

// bound returns the Way for users who have an unexpired binding, according to granted. Every replica reads its own
// cache, and a failed read grants no access. If a member serves all users with the same rights, a binding alone does
// not grant access, because these rights may exceed the rights in the binding.
func bound(
	granted func(context.Context, index.Principals, types.NamespacedName, time.Time) (bool, error),
	alike func(context.Context, types.NamespacedName) (bool, error), now func() time.Time,
) identity.Way {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) (bool, error) {
		if !id.Valid() {
			return false, nil
		}
		if is, err := granted(ctx, index.Principals{User: id.User, Groups: id.Groups}, cluster, now()); err != nil || !is {
			return false, err
		}
		same, err := alike(ctx, cluster)
		return err == nil && !same, err
	}
}

// errSilent is returned until it is known which user an agent impersonates in its requests to the API server.
var errSilent = errors.New("the agent has not reported its profile yet")

// alike reports whether a member serves all users with the same rights. This is the case if the Cluster's spec or its
// agent has the ReadOnly profile.
func (m transports) alike(ctx context.Context, name types.NamespacedName) (bool, error) {
	cluster := &v1.Cluster{}
	if err := m.clusters.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read cluster %s: %w", name, err)
	}
	if cluster.Spec.Agent.Profile == v1.ProfileReadOnly {
		return true, nil
	}
	state := m.states.State(name)
	switch {
	case state.Report != nil:
		return state.Report.Profile == string(v1.ProfileReadOnly), nil
	case state.Connected() && state.ReportErr == nil:
		return false, errSilent
	}
	return false, nil
}
