// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Lease reads, writes and deletes one Lease. It wraps the API server's errors.
type Lease struct{ object }

// Lease returns the Lease with the given namespace and name.
func (c *Client) Lease(namespace, name string) *Lease {
	return &Lease{c.object("Lease", "coordination.k8s.io", "leases", namespace, name)}
}

// Get reads the Lease.
func (l *Lease) Get(ctx context.Context) (*coordinationv1.Lease, error) {
	return l.do(ctx, "read", l.at(l.rest.Get()))
}

// Create creates the Lease.
func (l *Lease) Create(ctx context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	return l.do(ctx, "create", l.rest.Post().AbsPath(l.collection).Body(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: l.name,
			Labels: map[string]string{protocol.LabelName: protocol.AgentName, v1.LabelManagedBy: v1.ManagedBy},
		},
		Spec: spec,
	}))
}

// Update replaces the Lease, unless it has changed since it was read.
func (l *Lease) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.do(ctx, "update", l.at(l.rest.Put()).Body(lease))
}

// Delete deletes the Lease. A missing Lease is an error.
func (l *Lease) Delete(ctx context.Context) error {
	return l.wrap("delete", l.at(l.rest.Delete()).Do(ctx).Error())
}

func (l *Lease) do(ctx context.Context, operation string, req *rest.Request) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	if err := req.Do(ctx).Into(lease); err != nil {
		return nil, l.wrap(operation, err)
	}
	return lease, nil
}
