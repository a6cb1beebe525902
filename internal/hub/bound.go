// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/reference"
)

// +kubebuilder:rbac:groups=cluster.drover.dev,resources=clusters;clusterroletemplatebindings;projectroletemplatebindings;projects,verbs=get;list;watch

// bound is the Way of those for whom a binding is that has not expired. Every replica looks into its own cache; what cannot be read opens
// nothing.
func bound(grants *reference.Grants, now func() time.Time) identity.Way {
	return func(ctx context.Context, id identity.Identity, cluster types.NamespacedName) (bool, error) {
		if !id.Valid() {
			return false, nil
		}
		return grants.Bound(ctx, reference.Principals{User: id.User, Groups: id.Groups}, cluster, now())
	}
}
