// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/config"
	"github.com/drover-dev/drover/test/framework"
	"github.com/drover-dev/drover/test/lab"
	"github.com/drover-dev/drover/test/lab/nodes"
)

const (
	// bridge is the address at which nodes, pods and the tests, which run in the same network, reach the machine; see
	// package nodes.
	bridge = "10.90.0.1"
	// upLimit is the time limit for each step of bringing up the hub and the member.
	upLimit = 10 * time.Minute

	hubPlane, member = "hub", "member"
	// user is the name of two users with all rights in the member: a user of the hub's API server with a token, and a user
	// who signs in to the hub.
	user, token = "conformance", "conformance-token"
)

// labFile describes the member. Its nodes and pods, and the tests, reach the managers at the ports.
const labFile = `apiVersion: lab.drover.dev/v1
kind: Lab
name: conformance
networking: {machinePorts: [%s]}
clusters:
- {name: member, nodes: [{}, {}]}
`

// bindings grant both users all rights in the member.
const bindings = `apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: conformance-hub, namespace: default}
spec:
  clusterName: member
  roleTemplateName: cluster-owner
  subject: {kind: User, name: "hub:conformance"}
---
apiVersion: cluster.drover.dev/v1
kind: ClusterRoleTemplateBinding
metadata: {name: conformance-local, namespace: default}
spec:
  clusterName: member
  roleTemplateName: cluster-owner
  subject: {kind: User, name: "local:conformance"}
`

// A fixture is a hub with two managers, a member with two real nodes whose agents reach the first manager, and the
// tests.
type fixture struct {
	dir     string
	hub     *framework.Hub
	plane   *framework.Plane
	lab     *nodes.Lab
	suite   *suite
	kubectl string
	plugin  string
}

// bringUp creates a fixture in a folder. down also removes the objects of a fixture that could not be created
// completely.
func bringUp(ctx context.Context, dir string) (*fixture, error) {
	f := &fixture{dir: dir}
	root, err := framework.Sources()
	if err != nil {
		return f, err
	}
	if err := os.RemoveAll(filepath.Join(dir, hubPlane)); err != nil { // of a former run in this folder
		return f, err
	}
	say("building the tests of Kubernetes, its control plane and Drover")
	if f.suite, err = newSuite(ctx, filepath.Join(dir, "images")); err != nil {
		return f, err
	}
	programs, err := framework.Build(ctx, root, dir)
	if err != nil {
		return f, err
	}
	f.kubectl = programs.Kubectl
	if f.plugin, err = buildPlugin(ctx, root, dir); err != nil {
		return f, err
	}
	image, tarball, err := agentImage(dir, programs.Agent)
	if err != nil {
		return f, err
	}
	say("starting the hub")
	if err := f.startHub(ctx, programs, image); err != nil {
		return f, err
	}
	say("starting the member")
	if err := f.startMember(ctx, append(f.suite.images, tarball)); err != nil {
		return f, err
	}
	name := types.NamespacedName{Namespace: "default", Name: member}
	say("importing the member")
	if err := f.importMember(ctx, name); err != nil {
		return f, err
	}
	say("signing in, and having the agent serve users")
	return f, f.openAgent(ctx, name)
}

// agentImage writes the image of the agent. The image's name changes with the program.
func agentImage(dir, program string) (name, tarball string, err error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", "", err
	}
	sum := sha256.Sum256(content)
	name, tarball = "lab.example.com/agent:"+hex.EncodeToString(sum[:6]), filepath.Join(dir, "agent.tar")
	return name, tarball, nodes.WriteImage(tarball, nodes.Image{Name: name, Programs: []string{program}, User: "65532:65532"})
}

// startHub starts a control plane with two managers. Agents know only the address of the first one, so the second one
// serves the member in one hop.
func (f *fixture) startHub(ctx context.Context, programs framework.Programs, image string) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	var err error
	if f.plane, err = framework.StartPlane(ctx, programs, hubPlane, f.dir, lab.User{Name: user, Token: token}); err != nil {
		return err
	}
	address, err := lab.FreeAddress("127.0.0.1")
	if err != nil {
		return err
	}
	f.hub, err = framework.InstallReplicas(ctx, f.plane, framework.Layout{
		Replicas: 2, Address: address,
		URLs:      []string{"https://" + onBridge(address), "https://" + address},
		Configure: func(c *config.Config) { c.Agent.Image, c.SignIn.Issuer = image, c.Server.URLs[0] },
	})
	return err
}

// onBridge returns the address at which nodes and pods reach an address on the machine's loopback interface.
func onBridge(address string) string {
	_, port, _ := net.SplitHostPort(address)
	return net.JoinHostPort(bridge, port)
}

// startMember brings up the member's control plane and its nodes, which have the images.
func (f *fixture) startMember(ctx context.Context, images []string) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	var ports []string
	for _, replica := range f.hub.Replicas {
		_, port, err := net.SplitHostPort(replica.Address)
		if err != nil {
			return err
		}
		ports = append(ports, port)
	}
	file, err := nodes.ParseFile(fmt.Appendf(nil, labFile, strings.Join(ports, ", ")))
	if err != nil {
		return err
	}
	file.Images = images
	f.lab, err = nodes.Up(ctx, nodes.Options{File: file, Dir: filepath.Join(f.dir, "lab"), Progress: os.Stderr})
	return err
}

// importMember applies the agent's manifest in the member, binds the users, and waits until both managers serve the
// member.
func (f *fixture) importMember(ctx context.Context, name types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	manifest, err := f.hub.CreateCluster(ctx, name)
	if err != nil {
		return err
	}
	if _, err := f.plane.Kubectl(ctx, []byte(bindings), "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := f.atMember(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	if _, err := f.hub.AwaitCluster(ctx, name, framework.Ready); err != nil {
		return err
	}
	for _, replica := range f.hub.Replicas {
		if err := f.hub.AwaitServed(ctx, replica, name, token); err != nil {
			return err
		}
	}
	return f.writeKubeconfigs(ctx, name)
}

// atMember runs kubectl as the member's administrator and returns its output.
func (f *fixture) atMember(ctx context.Context, in []byte, args ...string) (string, error) {
	return framework.Kubectl(ctx, framework.Programs{Kubectl: f.kubectl}, f.lab.Kubeconfig(member), in, args...)
}

// writeKubeconfigs writes a kubeconfig for each way except the agent's, with the address that the tests can reach.
func (f *fixture) writeKubeconfigs(ctx context.Context, name types.NamespacedName) error {
	direct, err := os.ReadFile(f.lab.Kubeconfig(member))
	if err != nil {
		return err
	}
	moved := strings.Replace(string(direct), "https://127.0.0.1:", "https://"+bridge+":", 1)
	bundle, err := f.hub.Bundle(ctx)
	if err != nil {
		return err
	}
	at := func(i int) string {
		return "https://" + onBridge(f.hub.Replicas[i].Address) + "/k8s/clusters/" + name.String()
	}
	return errors.Join(
		os.WriteFile(f.kubeconfig(wayDirect), []byte(moved), 0o600),
		framework.WriteKubeconfig(f.kubeconfig(wayHub), at(0), bundle, token),
		framework.WriteKubeconfig(f.kubeconfig(wayReplica), at(1), bundle, token),
	)
}

func (f *fixture) kubeconfig(way string) string { return filepath.Join(f.dir, way+".kubeconfig") }

// run describes how the tests run on one way.
func (f *fixture) run(way string, o options) run {
	return run{
		kubeconfig: f.kubeconfig(way), kubectl: f.kubectl, dir: filepath.Join(f.dir, "results", way),
		procs: o.procs, limit: o.limit, beside: f.lab.Beside,
	}
}

// A footprint is the resource usage of a process.
type footprint struct {
	name        string
	descriptors int
	resident    int64 // bytes
}

// footprint returns the resource usage of the managers.
func (f *fixture) footprint() ([]footprint, error) {
	var all []footprint
	for _, replica := range f.hub.Replicas {
		dir := fmt.Sprintf("/proc/%d/", replica.Process.PID())
		descriptors, err := os.ReadDir(dir + "fd")
		if err != nil {
			return nil, err
		}
		status, err := os.ReadFile(dir + "status")
		if err != nil {
			return nil, err
		}
		all = append(all, footprint{replica.Name, len(descriptors), resident(string(status))})
	}
	return all, nil
}

// resident reads the resident memory, in bytes, from the text of /proc/<pid>/status.
func resident(status string) int64 {
	for line := range strings.Lines(status) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "VmRSS:" {
			kib, _ := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// down stops and removes everything that bringUp has created.
func (f *fixture) down() error {
	var errs []error
	if f.lab != nil || exists(filepath.Join(f.dir, "lab")) {
		errs = append(errs, nodes.Down(context.Background(), filepath.Join(f.dir, "lab"), "", nil))
	}
	if f.hub != nil {
		errs = append(errs, f.hub.StopManagers())
	}
	if f.plane != nil {
		errs = append(errs, f.plane.Kill())
	}
	return errors.Join(errs...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
