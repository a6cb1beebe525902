// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/framework"
)

// objectLimit is how long an object may take to appear or disappear. Deleting a Cluster may take 30 s.
const objectLimit = 45 * time.Second

// managed is a plane that is a member of the hub.
type managed struct {
	name  types.NamespacedName // name of the Cluster on the hub
	plane *plane
	// agent is the name of the agent's process, if the agent is not a pod. port is the port for its probes.
	agent string
	port  *int
}

// clusterName returns the name of the member's Cluster on the hub.
func clusterName() types.NamespacedName {
	return types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: member}
}

// managed returns the member and the hub, because the hub is a member of itself.
func (d *demo) managed() []managed {
	return []managed{
		{clusterName(), d.member, agent, &d.state.AgentPort},
		{types.NamespacedName{Namespace: "platform", Name: hub}, d.hub, hubAgent, &d.state.HubAgentPort},
	}
}

// eachManaged calls do for all managed clusters at the same time.
func (d *demo) eachManaged(ctx context.Context, do func(context.Context, managed) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range d.managed() {
		group.Go(func() error {
			if err := do(ctx, m); err != nil {
				return fmt.Errorf("cluster %s: %w", m.name.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// applyClusters applies the Clusters and the team's objects. It returns when each Cluster has a registration.
func (d *demo) applyClusters(ctx context.Context) (string, error) {
	err := d.eachManaged(ctx, func(ctx context.Context, m managed) error {
		cluster := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: m.name.Namespace, Name: m.name.Name}}
		return awaitNotDeleting(ctx, d.hub, cluster)
	})
	if err != nil {
		return "", err
	}
	manifests, err := d.readSources("hack/demo/clusters.yaml", "hack/demo/team.yaml")
	if err != nil {
		return "", err
	}
	if err := d.hub.apply(ctx, manifests); err != nil {
		return "", err
	}
	return "", d.eachManaged(ctx, func(ctx context.Context, m managed) error {
		_, err := d.manifest(ctx, m)
		return err
	})
}

// awaitNotDeleting waits while an object is being deleted, because objects that are created for it in the meantime
// would be deleted too.
func awaitNotDeleting(ctx context.Context, p *plane, object client.Object) error {
	return await(ctx, objectLimit, func(ctx context.Context) error {
		err := p.client.Get(ctx, client.ObjectKeyFromObject(object), object)
		if err == nil && object.GetDeletionTimestamp() != nil {
			return fmt.Errorf("%s is still being deleted", client.ObjectKeyFromObject(object))
		}
		return client.IgnoreNotFound(err)
	})
}

// manifest waits for a manifest that matches the Cluster's current spec, the hub's current address and the current
// image of the agent.
func (d *demo) manifest(ctx context.Context, m managed) ([]byte, error) {
	image, err := d.agentImage()
	if err != nil {
		return nil, err
	}
	var manifest []byte
	err = await(ctx, objectLimit, func(ctx context.Context) error {
		cluster, secret := &v1.Cluster{}, &corev1.Secret{}
		if err := d.hub.client.Get(ctx, m.name, cluster); err != nil {
			return err
		}
		key := registration.RegistrationSecret(m.name)
		err := d.hub.client.Get(ctx, key, secret)
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("the manager has not made Secret %s yet: see %s", key, d.files.short(d.files.log(manager)))
		}
		if err != nil {
			return err
		}
		ours := func(owner metav1.OwnerReference) bool { return owner.UID == cluster.UID }
		manifest = secret.Data[registration.KeyManifest]
		current := bytes.Contains(manifest, []byte(d.agentURL())) && bytes.Contains(manifest, []byte(image))
		if !current || !slices.ContainsFunc(secret.OwnerReferences, ours) {
			return fmt.Errorf("the manager has not renewed Secret %s yet: see %s", key, d.files.short(d.files.log(manager)))
		}
		return nil
	})
	return manifest, err
}

// applyManifests has the same effect as the commands in the registration Secrets. It does not run them, because they
// require curl.
func (d *demo) applyManifests(ctx context.Context) (string, error) {
	return "", d.eachManaged(ctx, func(ctx context.Context, m managed) error {
		manifest, err := d.manifest(ctx, m)
		if err != nil {
			return err
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: protocol.AgentNamespace}}
		if err := awaitNotDeleting(ctx, m.plane, namespace); err != nil {
			return err
		}
		if d.state.Nodes == simulatedNodes {
			if manifest, err = withoutDeployment(manifest); err != nil {
				return err
			}
		}
		return m.plane.apply(ctx, manifest)
	})
}

// withoutDeployment returns a manifest without the agent's Deployment. Simulated nodes do not run the Deployment's
// pods, and the hub would report pods that are not ready although the agent is connected.
func withoutDeployment(manifest []byte) ([]byte, error) {
	var kept bytes.Buffer
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		raw, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return kept.Bytes(), nil
		}
		var object metav1.TypeMeta
		if err == nil {
			err = yaml.Unmarshal(raw, &object)
		}
		if err != nil {
			return nil, fmt.Errorf("read the agent's manifest: %w", err)
		}
		if object.Kind != "Deployment" {
			kept.WriteString("---\n")
			kept.Write(raw)
		}
	}
}

// startAgents runs the agents as processes, because there are no nodes for their Deployments.
func (d *demo) startAgents(ctx context.Context) (string, error) {
	var remarks []string
	for _, m := range d.managed() {
		remark, err := d.startAgent(ctx, m)
		if err != nil {
			return "", fmt.Errorf("cluster %s: %w", m.name.Name, err)
		}
		remarks = append(remarks, remark)
	}
	return strings.Join(remarks, ", "), nil
}

func (d *demo) startAgent(ctx context.Context, m managed) (string, error) {
	if err := d.state.keepPort(m.port, d.running(m.agent)); err != nil {
		return "", err
	}
	manifest, err := d.manifest(ctx, m)
	if err != nil {
		return "", err
	}
	env, err := framework.DeploymentEnv(manifest)
	if err != nil {
		return "", err
	}
	kubeconfig, probes := d.files.kubeconfig(m.agent), address(*m.port)
	return d.keepOrStart(ctx, program{
		name: m.agent, binary: agent,
		args: []string{"--kubeconfig=" + kubeconfig},
		// The path of a socket may be at most 107 characters long, and the path of the source tree may be long.
		env: append(env, protocol.EnvListen+"="+probes, protocol.EnvSocket+"="+d.files.short(d.files.file(m.agent+".sock"))),
		credential: func(ctx context.Context) error {
			return d.writeAccountKubeconfig(ctx, m.plane, protocol.AgentNamespace, protocol.AgentName, kubeconfig)
		},
		healthy: func(ctx context.Context) error {
			probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
			return errors.Join(answers(ctx, kubeconfig, "/version"), get(ctx, probe, "http://"+probes+"/healthz"))
		},
	})
}

func (d *demo) grantMember(ctx context.Context) (string, error) {
	rights, err := d.readSources("hack/demo/rights/member.yaml")
	if err != nil {
		return "", err
	}
	return "", d.member.apply(ctx, rights)
}
