// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

const (
	workspace = "default"
	user      = "bench"
	configMap = "bench"
	// patience is the time limit for each wait that usually takes seconds.
	patience = time.Minute
)

// processes contains all running processes. It is used by a single goroutine, unless the types of its fields allow
// otherwise.
type processes struct {
	dir      string
	token    string // of user, on hub and member
	hub      *framework.Hub
	member   *framework.Plane
	clusters *clusterWatch
	agents   []*agent
	// direct connects to the member's API server, copied connects to it through two processes that copy bytes, and through
	// connects to the hub's port.
	direct, copied, through *caller
	copying                 []*exec.Cmd
	// scraper connects to the manager's port for metrics.
	scraper *caller

	stopWatch func()
}

// agent is the agent of one Cluster.
type agent struct {
	*framework.Agent
	cluster types.NamespacedName
}

// start starts the hub and the member. No cluster has been imported yet.
func (p *processes) start(ctx context.Context) error {
	root, err := framework.Sources()
	if err != nil {
		return err
	}
	programs, err := framework.Build(ctx, root, p.dir)
	if err != nil {
		return err
	}
	p.token = rand.Text()
	hub, err := framework.StartPlane(ctx, programs, "hub", p.dir, lab.User{Name: user, Token: p.token})
	if err != nil {
		return err
	}
	p.hub = &framework.Hub{Plane: hub} // for stop, should InstallHub err
	if p.member, err = framework.StartPlane(ctx, programs, "member", p.dir, lab.User{Name: user, Token: p.token}); err != nil {
		return err
	}
	installed, err := framework.InstallHub(ctx, hub)
	if err != nil {
		return err
	}
	p.hub = installed
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.clusters, p.stopWatch = watchClusters(ctx, hub.Client)
	return p.connect(ctx)
}

// prepare creates the objects to read, and grants the user the rights to read them.
func (p *processes) prepare(ctx context.Context) error {
	object := metav1.ObjectMeta{Namespace: workspace, Name: user}
	subject := func(name string) []rbacv1.Subject {
		return []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}
	}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	for _, created := range []struct {
		on     *framework.Plane
		object client.Object
	}{
		{p.member, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: ref("ClusterRole", "cluster-admin"),
			Subjects: append(subject(user), subject("hub:"+user)...)}},
		{p.member, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: configMap}, Data: map[string]string{"n": "0"}}},
		{p.hub.Plane, &rbacv1.Role{ObjectMeta: object, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}}}}},
		{p.hub.Plane, &rbacv1.RoleBinding{ObjectMeta: object, RoleRef: ref("Role", user), Subjects: subject(user)}},
		{p.hub.Plane, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: user}, RoleRef: ref("ClusterRole", "drover-metrics-reader"),
			Subjects: subject(user)}},
	} {
		if err := created.on.Client.Create(ctx, created.object); err != nil {
			return fmt.Errorf("create %T on %s: %w", created.object, created.on.Name(), err)
		}
	}
	return nil
}

func (p *processes) connect(ctx context.Context) (err error) {
	bundle, err := p.hub.Bundle(ctx)
	if err != nil {
		return err
	}
	if p.through, err = newCaller(p.hub.URL(), bundle, p.token); err != nil {
		return err
	}
	if p.scraper, err = newCaller("https://"+p.hub.Replicas[0].Metrics, bundle, p.token); err != nil {
		return err
	}
	if p.direct, err = newCaller(p.member.URL(), p.member.CA(), p.token); err != nil {
		return err
	}
	first, err := p.startCopying()
	if err != nil {
		return err
	}
	p.copied, err = newCaller(first, p.member.CA(), p.token)
	return err
}

// stop stops everything that start and the steps have started.
func (p *processes) stop() error {
	errs := []error{p.stopCopying()}
	for _, a := range p.agents {
		errs = append(errs, a.kill())
	}
	if p.stopWatch != nil {
		p.stopWatch()
	}
	if p.hub != nil {
		if p.hub.Manager != nil {
			errs = append(errs, p.hub.Manager.Kill())
		}
		errs = append(errs, p.hub.Stop())
	}
	if p.member != nil {
		errs = append(errs, p.member.Stop())
	}
	return errors.Join(errs...)
}

// newAgent creates a Cluster, and installs its agent in the member without starting it. All agents of the benchmark are
// in the same member, each in its own namespace.
func (p *processes) newAgent(ctx context.Context, name string) (*agent, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	cluster := types.NamespacedName{Namespace: workspace, Name: name}
	manifest, err := p.hub.CreateCluster(ctx, cluster)
	if err != nil {
		return nil, err
	}
	if manifest, err = withoutPods(manifest); err != nil {
		return nil, err
	}
	installed, err := framework.InstallAgent(ctx, p.member, manifest, name, "agent-"+name)
	if err != nil {
		return nil, err
	}
	return &agent{Agent: installed, cluster: cluster}, nil
}

// withoutPods returns the manifest with a Deployment of no pods, because the agent runs as a process. Without nodes,
// pods would never run, and the controller manager would retry creating them. With thirty agents, this would cause most
// of the load on the member's API server.
func withoutPods(manifest []byte) ([]byte, error) {
	deadline := []byte("\n  progressDeadlineSeconds: ")
	if bytes.Count(manifest, deadline) != 1 || bytes.Contains(manifest, []byte("\n  replicas: ")) {
		return nil, errors.New("set the replicas in the manifest to 0: its Deployment does not look as expected")
	}
	return bytes.Replace(manifest, deadline, append([]byte("\n  replicas: 0"), deadline...), 1), nil
}

// start starts the agent's process. Its probes listen on any free port, because they are not used.
func (a *agent) start() error {
	return a.Start(protocol.EnvListen + "=127.0.0.1:0")
}

func (a *agent) kill() error {
	if a.Process == nil {
		return nil
	}
	return a.Process.Kill()
}

// path returns the path of a resource of the agent's member on the hub.
func (a *agent) path(rest string) string {
	return "/k8s/clusters/" + a.cluster.String() + rest
}
