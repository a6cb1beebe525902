// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/footprint"
	"github.com/drover-dev/drover/internal/protocol"
)

// Lease reads and writes one Lease. Errors are those of the API server, wrapped.
type Lease struct {
	client          *Client
	namespace, name string
}

// Lease of a namespace.
func (c *Client) Lease(namespace, name string) *Lease {
	return &Lease{client: c, namespace: namespace, name: name}
}

// Get reads the Lease.
func (l *Lease) Get(ctx context.Context) (*coordinationv1.Lease, error) {
	return l.do(ctx, "read", l.client.REST.Get().AbsPath(l.collection(), l.name))
}

// Create makes the Lease.
func (l *Lease) Create(ctx context.Context, spec coordinationv1.LeaseSpec) (*coordinationv1.Lease, error) {
	return l.write(ctx, "create", l.client.REST.Post().AbsPath(l.collection()), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.namespace, Name: l.name,
			Labels: map[string]string{footprint.LabelName: protocol.AgentName, v1.LabelManagedBy: v1.ManagedBy},
		},
		Spec: spec,
	})
}

// Update replaces the Lease, unless it has changed since it was read.
func (l *Lease) Update(ctx context.Context, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	return l.write(ctx, "update", l.client.REST.Put().AbsPath(l.collection(), l.name), lease)
}

func (l *Lease) collection() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + l.namespace + "/leases"
}

func (l *Lease) write(ctx context.Context, operation string, req *rest.Request, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	lease.APIVersion, lease.Kind = "coordination.k8s.io/v1", "Lease"
	raw, err := json.Marshal(lease)
	if err != nil {
		return nil, fmt.Errorf("%s Lease %s/%s: %w", operation, l.namespace, l.name, err)
	}
	return l.do(ctx, operation, req.SetHeader("Content-Type", "application/json").Body(raw))
}

func (l *Lease) do(ctx context.Context, operation string, req *rest.Request) (*coordinationv1.Lease, error) {
	lease := &coordinationv1.Lease{}
	result := req.SetHeader("Accept", "application/json").Do(ctx)
	err := result.Error() // Raw's own does not have what the API server says
	if err == nil {
		var raw []byte
		if raw, err = result.Raw(); err == nil {
			err = json.Unmarshal(raw, lease)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%s Lease %s/%s: %w", operation, l.namespace, l.name, err)
	}
	return lease, nil
}
