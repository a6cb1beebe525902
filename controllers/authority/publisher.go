// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Publisher writes the certificates that clients of the hub are to trust into a ConfigMap, so that Prometheus and others need no right to
// read the Secret with the authority's keys.
type Publisher struct {
	Client client.Client
	// ConfigMap has the certificates, with the key ca.crt.
	ConfigMap types.NamespacedName
	// Settings that agents are to have: their bundle is what is published.
	Settings func() protocol.Settings

	published string // bundle that was written last; of the one worker alone
}

// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,verbs=create;patch

// Reconcile writes the bundle if it is another than the one written last.
func (p *Publisher) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	bundle := p.Settings().CABundle
	if bundle == "" || bundle == p.published {
		return ctrl.Result{}, nil // nothing is loaded yet, or nothing has changed
	}
	want := corev1ac.ConfigMap(p.ConfigMap.Name, p.ConfigMap.Namespace).
		WithLabels(map[string]string{"app.kubernetes.io/part-of": "drover"}).
		WithData(map[string]string{protocol.KeyCABundle: bundle})
	if err := p.Client.Apply(ctx, want, client.FieldOwner(v1.ManagedBy), client.ForceOwnership); err != nil {
		return ctrl.Result{}, fmt.Errorf("publish the hub's CA in ConfigMap %s: %w", p.ConfigMap, err)
	}
	p.published = bundle
	return ctrl.Result{}, nil
}

// Register adds the publisher to a manager. It is called with a function to call when another authority was loaded.
func (p *Publisher) Register(mgr ctrl.Manager, onTrust func(func())) error {
	request := reconcile.Request{NamespacedName: p.ConfigMap}
	return ctrl.NewControllerManagedBy(mgr).
		Named("authority-publisher").
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			q.Add(request)
			onTrust(func() { q.Add(request) })
			return nil
		})).
		Complete(p)
}
