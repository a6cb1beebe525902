// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// Publisher writes the certificates that clients of the hub are to trust into a ConfigMap, so that Prometheus and others need no right
// to read the Secret with the authority's keys.
type Publisher struct {
	Client client.Client
	// ConfigMap has the certificates, with the key ca.crt.
	ConfigMap types.NamespacedName
	// Settings returns those that agents should have: their bundle is what is published.
	Settings func() protocol.Settings
}

// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,verbs=create;patch
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,resourceNames=drover-ca,verbs=get;list;watch

// Reconcile writes the bundle unless it is there.
func (p *Publisher) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	bundle := p.Settings().CABundle
	if bundle == "" {
		return ctrl.Result{}, nil // nothing is loaded yet
	}
	found := &corev1.ConfigMap{}
	if err := p.Client.Get(ctx, p.ConfigMap, found); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read ConfigMap %s: %w", p.ConfigMap, err)
	} else if err == nil && found.Data[protocol.KeyCABundle] == bundle {
		return ctrl.Result{}, nil
	}
	want := corev1ac.ConfigMap(p.ConfigMap.Name, p.ConfigMap.Namespace).
		WithLabels(map[string]string{"app.kubernetes.io/part-of": "drover"}).
		WithData(map[string]string{protocol.KeyCABundle: bundle})
	if err := p.Client.Apply(ctx, want, owned.FieldOwner, client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("publish the hub's CA in ConfigMap %s: %w", p.ConfigMap, err)
	}
	return ctrl.Result{}, nil
}
