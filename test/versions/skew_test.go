// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package versions

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
)

// These are the versions in the matrix.
const (
	older   = "old"
	newer   = "new"
	upMix   = "old leads, new"
	downMix = "new leads, old"
)

// situation is a row of the matrix: the versions that work together.
type situation struct {
	name               string
	hub, agent, plugin string
}

// situations are the states of one upgrade and one downgrade, in order.
func situations() []situation {
	return []situation{
		{"before the upgrade", older, older, older},
		{"the hub is being upgraded", upMix, older, older},
		{"the hub is upgraded", newer, older, older},
		{"the agents are upgraded", newer, newer, older},
		{"the hub is being downgraded", downMix, newer, newer},
		{"the hub is downgraded", older, newer, newer},
		{"the agents are downgraded", older, older, newer},
	}
}

// step is a column of the matrix.
type step struct {
	name string
	test func(*testing.T, *skew)
}

// steps are the functions that work in every situation.
func steps() []step {
	return []step{
		{"import", testImportByPlugin},
		{"sign-in", testSignIn},
		{"request", testRequests},
		{"binding", testBindingChanges},
		{"project", testAnotherProject},
		{"plan", testAnotherPlan},
		{"host", testHost},
		{"objects kept", testKept},
	}
}

// TestVersionsWorkTogether upgrades and downgrades a hub with two replicas and its agents, from the previous minor
// version to these sources and back. In each state it performs typical actions of users.
func TestVersionsWorkTogether(t *testing.T) {
	if os.Getenv(envRun) == "" {
		t.Skipf("it builds another version of Drover: make test-versions, or %s=1", envRun)
	}
	root, err := framework.Sources()
	if err != nil {
		t.Fatal(err)
	}
	revision, sources := former(t, root)
	before, err := build(t.Context(), sources, t.TempDir(), "v0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	after, err := build(t.Context(), root, t.TempDir(), "v0.0.2")
	if err != nil {
		t.Fatal(err)
	}
	s := startSkew(t, before, after)
	enter := []func(*testing.T){
		s.begin,
		func(t *testing.T) { s.mix(t, after) },
		func(t *testing.T) { s.replace(t); s.changeTemplate(t) },
		func(t *testing.T) { s.changeAgents(t, after) },
		func(t *testing.T) { s.mix(t, before); s.checkTemplate(t) },
		func(t *testing.T) { s.replace(t) },
		func(t *testing.T) { s.changeAgents(t, before) },
	}
	for i, now := range situations() {
		began := time.Now()
		if !t.Run(now.name, func(t *testing.T) { s.test(t, now, enter[i]) }) {
			s.logProcesses(t)
			return
		}
		t.Logf("%s: %s", now.name, time.Since(began).Round(time.Second))
	}
	writeMatrix(t, root, revision)
}

// skew is a hub with two replicas, a member that stays, and a member that is imported and removed in each situation.
type skew struct {
	*system
	before, after release
	guest         *framework.Plane

	now   situation
	round int
	// hubImage is the image that managers use for agents from their next start. If agentsStay is true, managers do not
	// upgrade agents.
	hubImage   string
	agentsStay bool
	// leader and other are the replicas. images contains the agent image with which each of them was started.
	leader, other *framework.Replica
	images        map[*framework.Replica]string
	agentNow      release

	admin    string // the kubeconfig of an administrator of the hub and the members
	home     string // of the user alice, who signed in before the upgrade
	password string
	kept     []keptObject
	machine  *machine
}

func startSkew(t *testing.T, before, after release) *skew {
	t.Helper()
	s := &skew{
		system: &system{programs: before.Programs, dir: t.TempDir()},
		before: before, after: after, agentNow: before, hubImage: before.image, agentsStay: true,
		home: t.TempDir(), machine: &machine{dir: t.TempDir()},
	}
	s.cluster = client.ObjectKey{Namespace: workspace, Name: "member"}
	users := []lab.User{{Name: "demo", Token: demoToken}, {Name: keptUser, Token: keptToken}}
	plane := startPlane(t, before.Programs, "hub", s.dir, users...)
	s.member = startPlane(t, before.Programs, "member", s.dir)
	s.guest = startPlane(t, before.Programs, "guest", s.dir)
	layout := framework.Layout{Replicas: 2, Configure: s.configure}
	var err error
	s.hub, err = framework.InstallReplicas(within(t, 2*time.Minute), plane, layout)
	t.Cleanup(func() { _ = s.hub.StopManagers() })
	if err != nil {
		t.Fatal(err)
	}
	s.leader, s.other = s.hub.Replicas[0], s.hub.Replicas[1]
	s.images = map[*framework.Replica]string{s.leader: before.image, s.other: before.image}
	t.Cleanup(func() {
		if s.machine.process != nil {
			_ = s.machine.process.Kill()
		}
	})
	s.admin = s.writeAdmin(t)
	s.startNode(t)
	return s
}

func (s *skew) configure(c *config.Config) {
	c.Agent.Image, c.Agent.Rollout.Paused = s.hubImage, s.agentsStay
	c.SignIn.Issuer = c.Server.URLs[0]
	c.Drain.Delay, c.Drain.Sessions = &metav1.Duration{Duration: time.Second}, &metav1.Duration{Duration: 20 * time.Second}
}

// test enters a situation, and performs typical actions of users in it.
func (s *skew) test(t *testing.T, now situation, enter func(*testing.T)) {
	s.now = now
	s.round++
	if !t.Run("enter", enter) {
		return
	}
	s.awaitAgent(t, s.agentNow)
	for _, step := range steps() {
		if !t.Run(step.name, func(t *testing.T) { step.test(t, s) }) {
			return
		}
	}
}

// release returns the programs of a version in the matrix.
func (s *skew) release(version string) release {
	if version == newer {
		return s.after
	}
	return s.before
}

// begin deploys the old version, imports the member, and creates the objects that stay.
func (s *skew) begin(t *testing.T) {
	s.deploy(t, s.before)
	s.restart(t, s.other) // then the first replica leads
	manifest, err := s.hub.CreateCluster(within(t, 20*time.Second), s.cluster)
	if err != nil {
		t.Fatal(err)
	}
	s.agent, err = framework.InstallAgent(within(t, time.Minute), s.member, manifest, "old", protocol.AgentNamespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.agent.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.hub.AwaitCluster(within(t, 30*time.Second), s.cluster, framework.Ready); err != nil {
		t.Fatal(err)
	}
	s.runAgentPods(t)
	s.createKept(t)
	s.createUser(t)
	s.joinHost(t)
}

// logProcesses logs the output of the managers and the agent.
func (s *skew) logProcesses(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(s.dir, "*", "manager-*.log"))
	if s.agent != nil {
		files = append(files, s.agent.Log)
	}
	for _, file := range files {
		raw, failed := os.ReadFile(file)
		err = errors.Join(err, failed)
		t.Logf("%s:\n%s", file, raw[max(0, len(raw)-6000):])
	}
	if err != nil {
		t.Log(err)
	}
}
