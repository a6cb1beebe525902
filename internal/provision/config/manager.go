// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"crypto/tls"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/kinds"
	"github.com/drover-dev/drover/internal/provision/clusterapi"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/internal/untrusted"
)

// leaseName is the name of the Lease that the replicas use for leader election.
const leaseName = "drover-provisioner"

// ManagerOptions returns the options for the controller manager. Secrets are never cached, because the provisioner must
// not list them. The only cached ConfigMap is drover-ca. Drover's manager publishes it.
func (c Config) ManagerOptions() (ctrl.Options, error) {
	scheme := runtime.NewScheme()
	kinds := runtime.NewSchemeBuilder(corev1.AddToScheme, coordinationv1.AddToScheme, v1.AddToScheme, infrav1.AddToScheme,
		provisionv1.AddToScheme)
	if err := kinds.AddToScheme(scheme); err != nil {
		return ctrl.Options{}, err
	}
	election := c.LeaderElection
	options := ctrl.Options{
		Scheme: scheme,
		Cache: cache.Options{
			DefaultTransform: trim,
			ByObject: map[client.Object]cache.ByObject{
				&corev1.ConfigMap{}: {Namespaces: map[string]cache.Config{
					c.Namespace: {FieldSelector: fields.OneTermEqualSelector("metadata.name", trust.AuthorityConfigMap)},
				}},
			},
		},
		Client: client.Options{Cache: &client.CacheOptions{
			DisableFor: []client.Object{&corev1.Secret{}, &coordinationv1.Lease{}},
		}},
		LeaderElection: *election.Enabled, LeaderElectionID: leaseName, LeaderElectionNamespace: c.Namespace,
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &election.LeaseDuration.Duration,
		RenewDeadline:                 &election.RenewDeadline.Duration,
		RetryPeriod:                   &election.RetryPeriod.Duration,
		HealthProbeBindAddress:        c.Health.Listen,
		Metrics: server.Options{
			BindAddress: c.Metrics.Listen, SecureServing: true, FilterProvider: protect,
		},
	}
	if c.ClusterAPI.InPlaceUpdates {
		host, port, err := c.ClusterAPI.Hooks.address()
		if err != nil {
			return ctrl.Options{}, err
		}
		options.WebhookServer = webhook.NewServer(webhook.Options{
			Host: host, Port: port, CertDir: c.ClusterAPI.Hooks.CertDir,
			TLSOpts: []func(*tls.Config){func(t *tls.Config) { t.NextProtos = []string{"http/1.1"} }},
		})
	}
	return options, nil
}

// maxMark is the maximum size, in bytes, of an annotation whose value is a time.
const maxMark = 64

// trim is a cache transform. It removes managed fields and all metadata that the provisioner does not read, because
// users can add more than a megabyte of metadata to an object.
func trim(object any) (any, error) {
	object, err := cache.TransformStripManagedFields()(object)
	if err != nil {
		return object, err
	}
	if o, ok := object.(client.Object); ok {
		if kept, known := metadata(o); known {
			kept.Trim(o)
		}
	}
	return object, nil
}

// metadata returns the metadata to keep for an object. It reports false for kinds that exist only in Drover's own
// namespace.
func metadata(o client.Object) (kept untrusted.Metadata, known bool) {
	switch o.(type) {
	case *v1.Cluster:
		return untrusted.Metadata{Labels: []string{v1.LabelImport}}, true
	case *v1.Host: // as in the manager's cache
		host, _ := kinds.Of(o)
		return *host.Metadata, true
	case *infrav1.DroverMachine, *infrav1.DroverCluster:
		return clusterapi.Metadata(), true
	case *provisionv1.ClusterInstallation, *provisionv1.EtcdRestore:
		return untrusted.Metadata{Finalizers: true}, true
	case *provisionv1.EtcdSnapshot:
		return untrusted.Metadata{
			Annotations: map[string]int{provisionv1.AnnotationScheduledFor: maxMark},
			Labels:      []string{provisionv1.LabelScheduled}, Owners: []string{infrav1.Group},
		}, true
	case *metav1.PartialObjectMetadata: // a Cluster API Cluster
		return untrusted.Metadata{Labels: []string{v1.LabelImport}}, true
	}
	return kept, false
}
