// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
)

// objectLimit is the longest time that one object may take to appear or to disappear. Deletion of a Cluster may take 30
// s.
const objectLimit = 45 * time.Second

// clusterName is the member's Cluster on the hub.
func clusterName() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: member}
}

// applyCluster applies the Cluster and returns once its registration exists.
func (d *demo) applyCluster(ctx context.Context) (string, error) {
	name := clusterName()
	cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
	if err := awaitNotDeleting(ctx, d.hub, cluster); err != nil {
		return "", err
	}
	manifest, err := d.readSources("hack/demo/cluster.yaml")
	if err != nil {
		return "", err
	}
	if err := d.apply(ctx, d.hub, manifest); err != nil {
		return "", err
	}
	_, err = d.manifest(ctx)
	return "", err
}

// awaitNotDeleting waits while an object is being deleted. Objects created for it in the meantime would be deleted too.
func awaitNotDeleting(ctx context.Context, p *plane, object client.Object) error {
	return await(ctx, objectLimit, func(ctx context.Context) error {
		err := p.client.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err == nil && object.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is still being deleted", client.ObjectKeyFromObject(object))
		}
		return client.IgnoreNotFound(err)
	})
}

// manifest waits for a manifest that matches the Cluster's current spec, the hub's current address and the agent's
// current image.
func (d *demo) manifest(ctx context.Context) ([]byte, error) {
	image, err := d.agentImage()
	if err != nil {
		return nil, err
	}
	var manifest []byte
	err = await(ctx, objectLimit, func(ctx context.Context) error {
		cluster, secret := &v1.Cluster{}, &corev1.Secret{}
		if err := d.hub.client.Get(ctx, clusterName(), cluster); err != nil {
			return err
		}
		key := registration.RegistrationSecret(clusterName())
		err := d.hub.client.Get(ctx, key, secret)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("the manager has not made Secret %s yet: see %s", key, d.files.short(d.files.log(manager)))
		}
		if err != nil {
			return err
		}
		ours := func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID }
		manifest = secret.Data[registration.KeyManifest]
		if !slices.ContainsFunc(secret.OwnerReferences, ours) || !bytes.Contains(manifest, []byte(d.agentURL())) || !bytes.Contains(manifest, []byte(image)) {
			return fmt.Errorf("the manager has not renewed Secret %s yet: see %s", key, d.files.short(d.files.log(manager)))
		}
		return nil
	})
	return manifest, err
}

// applyManifest has the same effect as the command in the registration Secret, which needs curl.
func (d *demo) applyManifest(ctx context.Context) (string, error) {
	manifest, err := d.manifest(ctx)
	if err != nil {
		return "", err
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}}
	if err := awaitNotDeleting(ctx, d.member, namespace); err != nil {
		return "", err
	}
	return "", d.apply(ctx, d.member, manifest)
}

// startAgent runs the agent as a process, because the member has no node for the agent's Deployment.
func (d *demo) startAgent(ctx context.Context) (string, error) {
	if err := d.state.keepPort(&d.state.AgentPort, d.running(agent)); err != nil {
		return "", err
	}
	manifest, err := d.manifest(ctx)
	if err != nil {
		return "", err
	}
	env, err := framework.DeploymentEnv(manifest)
	if err != nil {
		return "", err
	}
	kubeconfig := d.files.kubeconfig(agent)
	return d.keepOrStart(ctx, program{
		name: agent,
		args: []string{"--kubeconfig=" + kubeconfig},
		// The path of a socket may have 107 characters at most, and the path of the tree may be long.
		env: append(env, protocol.EnvListen+"="+address(d.state.AgentPort), protocol.EnvSocket+"="+d.files.short(d.files.file("agent.sock"))),
		credential: func(ctx context.Context) error {
			return d.writeAccountKubeconfig(ctx, d.member, protocol.AgentNamespace, protocol.AgentName, kubeconfig)
		},
		healthy: func(ctx context.Context) error {
			return errors.Join(answers(ctx, kubeconfig, "/version"), get(ctx, &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, "http://"+address(d.state.AgentPort)+"/healthz"))
		},
	})
}

func (d *demo) grantMember(ctx context.Context) (string, error) {
	rights, err := d.readSources("hack/demo/rights/member.yaml")
	if err != nil {
		return "", err
	}
	return "", d.apply(ctx, d.member, rights)
}
