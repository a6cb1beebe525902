// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/internal/protocol"
)

// Publisher writes a ConfigMap that contains the hub's addresses and the certificates that clients of the hub must
// trust. Clients such as Prometheus and the provisioner read the ConfigMap, so they do not need access to the Secret
// with the authority's keys.
type Publisher struct {
	Client client.Client
	// ConfigMap is the ConfigMap to write. It contains the certificates under the key ca.crt and the addresses, one per
	// line, under the key servers.
	ConfigMap types.NamespacedName
	// Settings returns the settings that agents should have.
	Settings func() protocol.Settings
}

// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,verbs=create
// +kubebuilder:rbac:groups="",namespace=drover-system,resources=configmaps,resourceNames=drover-ca,verbs=get;list;watch;patch

// Reconcile writes the ConfigMap unless it is up to date.
func (p *Publisher) Reconcile(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
	settings := p.Settings()
	if settings.CABundle == "" {
		return ctrl.Result{}, nil // nothing is loaded yet
	}
	data := map[string]string{
		protocol.KeyCABundle: settings.CABundle, protocol.KeyServers: strings.Join(settings.Servers, "\n"),
	}
	found := &corev1.ConfigMap{}
	if err := p.Client.Get(ctx, p.ConfigMap, found); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("read ConfigMap %s: %w", p.ConfigMap, err)
	} else if err == nil && maps.Equal(found.Data, data) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, p.publish(ctx, data)
}

func (p *Publisher) publish(ctx context.Context, data map[string]string) error {
	want := corev1ac.ConfigMap(p.ConfigMap.Name, p.ConfigMap.Namespace).
		WithLabels(map[string]string{"app.kubernetes.io/part-of": "drover"}).
		WithData(data)
	if err := p.Client.Apply(ctx, want, owned.FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("publish the hub's CA in ConfigMap %s: %w", p.ConfigMap, err)
	}
	return nil
}
