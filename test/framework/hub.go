// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/internal/trust"
	"github.com/drover-dev/drover/test/balancer"
	"github.com/drover-dev/drover/test/lab"
)

// The manager's namespace and ServiceAccount, as defined in config/.
const (
	managerNamespace = "drover-system"
	managerAccount   = "drover-manager"
)

// Hub is a control plane on which Drover is installed. Its managers run as processes.
type Hub struct {
	*Plane
	// Manager is the running process of the first manager.
	Manager *lab.Process
	// Replicas are all managers. Balancer distributes connections among them if there are several.
	Replicas []*Replica
	Balancer *balancer.Balancer
	// Provisioner is nil if the hub has none.
	Provisioner *Provisioner
	// Address is the address of the only manager or of the balancer. It is part of URL.
	Address string
	// Announced contains the base URLs that the managers announce to agents after their next start. If it is empty,
	// they announce only URL.
	Announced []string

	layout Layout
}

// InstallHub applies the same objects as "make deploy", except the Deployment, and starts one manager with the rights
// of its ServiceAccount.
func InstallHub(ctx context.Context, plane *Plane) (*Hub, error) {
	return InstallReplicas(ctx, plane, Layout{Replicas: 1})
}

// InstallReplicas is like InstallHub, but supports any layout of managers. If it fails, StopManagers of the returned
// Hub ends the processes that are running.
func InstallReplicas(ctx context.Context, plane *Plane, layout Layout) (*Hub, error) {
	if err := plane.applyHub(ctx); err != nil {
		return &Hub{Plane: plane}, err
	}
	return StartReplicas(ctx, plane, layout)
}

// StartReplicas is like InstallReplicas, but for a control plane in which Drover's objects are already installed.
func StartReplicas(ctx context.Context, plane *Plane, layout Layout) (*Hub, error) {
	h := &Hub{Plane: plane, Announced: layout.URLs, Provisioner: layout.Provisioner, layout: layout}
	if err := h.layOut(ctx); err != nil {
		return h, err
	}
	started := make(chan error, len(h.Replicas))
	for _, replica := range h.Replicas {
		// Start all of them at the same time, because each one waits for the others before it becomes ready.
		go func() { started <- replica.Start(ctx) }()
	}
	var errs []error
	for range h.Replicas {
		errs = append(errs, <-started)
	}
	if err := errors.Join(errs...); err != nil {
		return h, err
	}
	if h.Provisioner != nil {
		h.Provisioner.hub = h
		if err := h.Provisioner.install(ctx); err != nil {
			return h, err
		}
		if err := h.Provisioner.Start(ctx); err != nil {
			return h, err
		}
	}
	return h, h.AwaitBalanced(ctx)
}

// URL returns the hub's base URL.
func (h *Hub) URL() string { return "https://" + h.Address }

// StartManager starts or restarts the first manager. It returns when the manager's port is ready.
func (h *Hub) StartManager(ctx context.Context, moreURLs ...string) error {
	return h.Replicas[0].Start(ctx, moreURLs...)
}

// StopManagers ends the balancer, and kills all managers and the provisioner.
func (h *Hub) StopManagers() error {
	var errs []error
	if h.Provisioner != nil && h.Provisioner.Process != nil {
		errs = append(errs, h.Provisioner.Process.Kill())
	}
	for _, replica := range h.Replicas {
		if replica.Process != nil {
			errs = append(errs, replica.Process.Kill())
		}
	}
	if h.Balancer != nil {
		errs = append(errs, h.Balancer.Close())
	}
	return errors.Join(errs...)
}

// Bundle returns the CA bundle that agents and users pin, as PEM.
func (h *Hub) Bundle(ctx context.Context) ([]byte, error) {
	secret := &corev1.Secret{}
	if err := h.Client.Get(ctx, types.NamespacedName{Namespace: managerNamespace, Name: trust.AuthoritySecret}, secret); err != nil {
		return nil, fmt.Errorf("read the hub's CA: %w", err)
	}
	return secret.Data["ca.crt"], nil
}

// CreateCluster creates a Cluster and returns the agent's manifest that the manager creates for it.
func (h *Hub) CreateCluster(ctx context.Context, name types.NamespacedName) ([]byte, error) {
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := h.Client.Create(ctx, cluster); err != nil {
		return nil, fmt.Errorf("create cluster %s: %w", name, err)
	}
	return h.Manifest(ctx, name, cluster.UID)
}

// Manifest waits for the agent's manifest for one Cluster object, and returns it.
func (h *Hub) Manifest(ctx context.Context, name types.NamespacedName, uid types.UID) ([]byte, error) {
	secret := &corev1.Secret{}
	err := Await(ctx, func(ctx context.Context) error {
		if err := h.Client.Get(ctx, registration.RegistrationSecret(name), secret); err != nil {
			return err
		}
		for _, owner := range secret.OwnerReferences {
			if owner.UID == uid {
				return nil
			}
		}
		return errors.New("the registration Secret is that of a former Cluster")
	})
	return secret.Data[registration.KeyManifest], err
}

// AwaitCluster watches a Cluster until wanted returns true, and returns the Cluster.
func (h *Hub) AwaitCluster(ctx context.Context, name types.NamespacedName, wanted func(*v1.Cluster) bool) (*v1.Cluster, error) {
	for {
		watch, err := h.Client.Watch(ctx, &v1.ClusterList{}, client.InNamespace(name.Namespace), client.MatchingFields{"metadata.name": name.Name})
		if err != nil {
			return nil, fmt.Errorf("watch cluster %s: %w", name, err)
		}
		last := &v1.Cluster{}
		for event := range watch.ResultChan() {
			if cluster, ok := event.Object.(*v1.Cluster); ok {
				if last = cluster; wanted(cluster) {
					watch.Stop()
					return cluster, nil
				}
			}
		}
		if ctx.Err() != nil {
			return last, fmt.Errorf("cluster %s: %w; last seen: %+v", name, ctx.Err(), last.Status.Conditions)
		}
	}
}

// Ready reports whether the Cluster is Ready. It is for use with AwaitCluster.
func Ready(c *v1.Cluster) bool {
	return meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionReady)
}

// NotReady returns a function that reports whether a Cluster is not Ready for the given reason. It is for use with
// AwaitCluster.
func NotReady(reason string) func(*v1.Cluster) bool {
	return func(c *v1.Cluster) bool {
		condition := meta.FindStatusCondition(c.Status.Conditions, v1.ConditionReady)
		return condition != nil && condition.Status == metav1.ConditionFalse && condition.Reason == reason
	}
}

// AwaitGone waits until an object no longer exists.
func (p *Plane) AwaitGone(ctx context.Context, object client.Object) error {
	return Await(ctx, func(ctx context.Context) error {
		switch err := p.Client.Get(ctx, client.ObjectKeyFromObject(object), object); {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%T %s is still there", object, client.ObjectKeyFromObject(object))
	})
}

// ProxyKubeconfig writes a kubeconfig with a token for access to a member through the hub, and returns its path.
func (h *Hub) ProxyKubeconfig(ctx context.Context, name types.NamespacedName, token, file string) (string, error) {
	bundle, err := h.Bundle(ctx)
	if err != nil {
		return "", err
	}
	return file, WriteKubeconfig(file, h.URL()+"/k8s/clusters/"+name.String(), bundle, token)
}
