// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/index"
)

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters;clusterroletemplatebindings;projectroletemplatebindings;projects,verbs=get;list;watch

// grants knows who is bound to which Cluster. *index.Grants is one.
type grants interface {
	Bound(ctx context.Context, who index.Principals, cluster types.NamespacedName, now time.Time) (bool, error)
}

// bound is the Way of those for whom a binding is that has not expired. Every replica looks into its own cache; what cannot be read opens
// nothing. Nor does a binding open a member that serves everybody with the same rights: they are more than the binding may grant.
func bound(grants grants, alike func(context.Context, types.NamespacedName) (bool, error), now func() time.Time) identity.Way {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) (bool, error) {
		if !id.Valid() {
			return false, nil
		}
		if is, err := grants.Bound(ctx, index.Principals{User: id.User, Groups: id.Groups}, cluster, now()); err != nil || !is {
			return false, err
		}
		same, err := alike(ctx, cluster)
		return err == nil && !same, err
	}
}

// errSilent means that the user as which an agent asks its API server is not known yet.
var errSilent = errors.New("the agent has not said yet what its profile is")

// alike reports whether a member serves everybody with the same rights: the spec of the Cluster says ReadOnly, or its agent does.
func (m transports) alike(ctx context.Context, name types.NamespacedName) (bool, error) {
	cluster := &v1.Cluster{}
	if err := m.clusters.Get(ctx, name, cluster, client.UnsafeDisableDeepCopy); client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("read cluster %s: %w", name, err)
	}
	if cluster.Spec.Agent.Profile == v1.ProfileReadOnly {
		return true, nil
	}
	state := m.registry.State(name)
	switch {
	case state.Report != nil:
		return state.Report.Profile == string(v1.ProfileReadOnly), nil
	case state.Connected() && state.ReportErr == nil:
		return false, errSilent
	}
	return false, nil
}
