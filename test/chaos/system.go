// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/fleetsim/sim"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/relay"
	"github.com/drover-dev/drover/test/traffic"
)

const (
	user      = "chaos"
	userToken = "chaos-0123456789abcdef"
	// hubURL can be reached only through a proxy, so that each agent has its own link.
	hubURL     = "https://hub.drover.test"
	workspaces = 2
	drainDelay = time.Second
	// drainSessions is short, because there are no sessions, and a hanging link should not delay a shutdown for long.
	drainSessions = 10 * time.Second
)

// system is a hub with several managers, its members, and the links between them.
type system struct {
	options
	journal  *journal
	programs framework.Programs
	hub      *framework.Hub
	planes   []*framework.Plane
	links    map[string]*relay.Relay
	keepers  map[string]*keeper
	agents   []string // names of the keepers of real agents
	clusters members
	running  sync.WaitGroup
}

// members are the Clusters: some with a real API server, and some simulated.
type members struct{ real, simulated []types.NamespacedName }

func (m members) all() []types.NamespacedName {
	return append(append([]types.NamespacedName{}, m.real...), m.simulated...)
}

// setUp starts everything. The caller must call tearDown, even if setUp returns an error.
func (s *system) setUp(ctx context.Context) error {
	var err error
	if s.programs, err = framework.Build(ctx, ".", s.dir); err != nil {
		return err
	}
	if err := s.startHub(ctx); err != nil {
		return err
	}
	for _, replica := range s.hub.Replicas {
		k := newKeeper(s.journal, replica.Name, func(ctx context.Context) (*lab.Process, error) {
			err := replica.Start(ctx)
			return replica.Process, err
		})
		k.process = replica.Process
		s.keepers[replica.Name] = k
	}
	member, err := framework.StartPlane(ctx, s.programs, "member", s.dir)
	if err != nil {
		return err
	}
	s.planes = append(s.planes, member)
	if err := s.importReal(ctx, "alone", s.hub.Plane, 1); err != nil {
		return err
	}
	if err := s.importReal(ctx, "pair", member, 2); err != nil {
		return err
	}
	return s.startSimulator(ctx)
}

func (s *system) startHub(ctx context.Context) error {
	plane, err := framework.StartPlane(ctx, s.programs, "hub", s.dir, lab.User{Name: user, Token: userToken})
	if err != nil {
		return err
	}
	s.planes = append(s.planes, plane)
	s.hub, err = framework.InstallReplicas(ctx, plane, framework.Layout{
		Replicas: s.replicas, URLs: []string{hubURL},
		Configure: func(c *config.Config) {
			c.Drain = config.Drain{Delay: &metav1.Duration{Duration: drainDelay}, Sessions: &metav1.Duration{Duration: drainSessions}}
		},
		Link: func(from, to, address string) (string, error) {
			return s.link(ctx, from+" to "+to, address, false)
		},
	})
	if err != nil {
		return err
	}
	role := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{v1.Group}, Resources: []string{"clusters/proxy"}, Verbs: []string{"get"}},
		{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}},
	}}
	role.Name = user
	return errors.Join(plane.Client.Create(ctx, role), plane.Client.Create(ctx, bindingTo(user, user)))
}

func bindingTo(role, user string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "chaos-is-" + role},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}
}

// link starts a relay in front of an address, and returns the relay's address.
func (s *system) link(ctx context.Context, name, address string, proxy bool) (string, error) {
	r, err := relay.Start(ctx, address, relay.Options{Proxy: proxy, Seed: s.seed})
	if err != nil {
		return "", err
	}
	s.links[name] = r
	return r.Address(), nil
}

// importReal imports a plane as a Cluster with the given number of agents, each with its own link.
func (s *system) importReal(ctx context.Context, name string, plane *framework.Plane, agents int) error {
	cluster := types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: name}
	s.clusters.real = append(s.clusters.real, cluster)
	manifest, err := s.hub.CreateCluster(ctx, cluster)
	if err != nil {
		return err
	}
	settings := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "settings"}}
	if err := errors.Join(plane.Client.Create(ctx, bindingTo("cluster-admin", "hub:"+user)), plane.Client.Create(ctx, settings)); err != nil {
		return fmt.Errorf("prepare member %s: %w", name, err)
	}
	for i := range agents {
		name := name + "-" + strconv.Itoa(i)
		agent, err := framework.InstallAgent(ctx, plane, manifest, name, protocol.AgentNamespace)
		if err != nil {
			return err
		}
		proxy, err := s.link(ctx, name+" to balancer", s.hub.Address, true)
		if err != nil {
			return err
		}
		s.agents = append(s.agents, name)
		s.keepers[name] = newKeeper(s.journal, name, func(context.Context) (*lab.Process, error) {
			err := agent.Start("HTTPS_PROXY=http://" + proxy)
			return agent.Process, err
		})
	}
	return nil
}

// startSimulator creates the simulated members.
func (s *system) startSimulator(ctx context.Context) error {
	for i := range s.simulated {
		s.clusters.simulated = append(s.clusters.simulated, sim.ClusterName(i, workspaces))
	}
	binary := filepath.Join(s.dir, "fleetsim")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, "./test/fleetsim").CombinedOutput(); err != nil {
		return fmt.Errorf("build fleetsim: %w\n%s", err, out)
	}
	bundle, err := s.hub.Bundle(ctx)
	if err != nil {
		return err
	}
	bundleFile, kubeconfig := filepath.Join(s.dir, "ca.crt"), filepath.Join(s.dir, "admin.kubeconfig")
	if err := errors.Join(os.WriteFile(bundleFile, bundle, 0o600), s.hub.WriteKubeconfig(kubeconfig)); err != nil {
		return err
	}
	server, err := s.link(ctx, simulatorName+" to balancer", s.hub.Address, false)
	if err != nil {
		return err
	}
	s.keepers[simulatorName] = newKeeper(s.journal, simulatorName, func(context.Context) (*lab.Process, error) {
		return lab.Command{
			Name: simulatorName, Path: binary, LogFile: filepath.Join(s.dir, "fleetsim.log"),
			Args: []string{"--kubeconfig=" + kubeconfig, "--server=https://" + server, "--ca=" + bundleFile, "--clusters=" + strconv.Itoa(s.simulated),
				"--workspaces=" + strconv.Itoa(workspaces), "--control=" + s.simulatorSocket(), "--changes=" + strconv.Itoa(changesEach)},
		}.Start()
	})
	return nil
}

const (
	simulatorName = "fleetsim"
	// changesEach is the number of changes that each simulated member reports per minute, and churnWhileHarmed is how
	// often its tunnel is cut per minute while faults occur.
	changesEach      = 5
	churnWhileHarmed = 1.0
)

func (s *system) simulatorSocket() string { return filepath.Join(s.dir, "fleetsim.sock") }

// churn sets how often the tunnel of each simulated member is cut per minute.
func (s *system) churn(ctx context.Context, share float64) error {
	return sim.NewClient(s.simulatorSocket()).Set(ctx, sim.Rates{Churn: share, Changes: changesEach})
}

// keep keeps all processes running until ctx ends. Afterward, the caller must wait for running.
func (s *system) keep(ctx context.Context) {
	for _, k := range s.keepers {
		s.running.Go(func() { k.run(ctx) })
	}
}

// loads returns requests to all members, which continue until ctx ends.
func (s *system) loads() ([]*traffic.Load, error) {
	bundle, err := os.ReadFile(filepath.Join(s.dir, "ca.crt"))
	if err != nil {
		return nil, err
	}
	ways, err := traffic.Ways(traffic.Hub{URL: s.hub.URL(), Bundle: bundle, Token: userToken}, 4, 2)
	if err != nil {
		return nil, err
	}
	var loads []*traffic.Load
	for _, clusters := range [][]types.NamespacedName{s.clusters.real, s.clusters.simulated} {
		loads = append(loads, &traffic.Load{Ways: ways, Clusters: clusters, Namespace: metav1.NamespaceDefault, ConfigMap: "settings",
			PerSecond: s.perSecond, AtOnce: s.perSecond, Seed: s.seed, ReadOnly: len(loads) > 0})
	}
	return loads, nil
}

// tearDown stops everything. The keepers must have ended.
func (s *system) tearDown() error {
	var errs []error
	for _, k := range s.keepers {
		if process, _, _ := k.state(); process != nil {
			errs = append(errs, process.Kill())
		}
	}
	if s.hub != nil {
		errs = append(errs, s.hub.StopManagers())
	}
	for _, r := range s.links {
		errs = append(errs, r.Close())
	}
	for _, plane := range s.planes {
		errs = append(errs, plane.Kill())
	}
	return errors.Join(errs...)
}
