// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/lab"
)

const (
	// labFile describes a hub and a member with one node each. The manager runs as a process on the machine, and pods
	// reach it at the address of the bridge.
	labFile = `apiVersion: lab.drover.dev/v1
kind: Lab
name: demo
networking: {machinePorts: [%d]}
clusters:
- {name: hub, nodes: [{}]}
- {name: member, nodes: [{}]}
`
	// bridgeAddress is the address at which nodes and pods reach the machine's ports, in the lab's default network.
	bridgeAddress = "10.90.0.1"

	// clustersLimit is how long control planes and nodes may take to start, even on a busy machine. On an idle
	// machine, they take 10 s.
	clustersLimit = 6 * time.Minute
	// podLimit is how long an agent's pod may take to become ready.
	podLimit = 3 * time.Minute
)

// podImages maps the names of each image, separated by spaces, to the names under which the image contains the program
// hack/demo/pod.
func podImages() map[string][]string {
	return map[string][]string{
		"example.com/web:1": {"web", "get"},
		// A Plan appends its version to the name. The guide uses these two versions.
		"example.com/upgrade:v1 example.com/upgrade:v2": {"upgrade", "sleep", "false"},
	}
}

// beginClusters starts to bring up the hub and the member, in parallel with the next steps. awaitNodes waits for the
// result.
func (d *demo) beginClusters(ctx context.Context) (string, error) {
	if err := d.keepHubPort(); err != nil {
		return "", err
	}
	dir := d.files.lab()
	if err := os.MkdirAll(d.files.logs(), 0o700); err != nil {
		return "", err
	}
	log, err := os.OpenFile(d.files.log("lab"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return "", err
	}
	args, err := d.issuerArgs(d.apiServerRuns())
	if err != nil {
		return "", err
	}
	file, users := fmt.Sprintf(labFile, d.state.HubPort), []lab.User{{Name: "demo", Token: d.state.DemoToken}}
	d.clusters = d.begin(func() error {
		defer log.Close()
		if err := upLab(ctx, dir, file, users, args, log); err != nil {
			return fmt.Errorf("%w; see %s, or run \"make demo-down\" to start afresh", err, d.files.short(d.files.log("lab")))
		}
		return nil
	})
	return "it goes on beside the next steps", nil
}

// keepHubPort chooses a port for the manager once. The relay of a running lab forwards connections only to this port.
func (d *demo) keepHubPort() error {
	port := d.state.HubPort
	if err := d.state.keepPort(&d.state.HubPort, d.running(manager)); err != nil || port == 0 || port == d.state.HubPort || d.state.Nodes != realNodes {
		return err
	}
	d.state.HubPort = port
	return fmt.Errorf("port %d of 127.0.0.1, which was the hub's, is taken: end the program that has it, or run \"make demo-down\"", port)
}

// awaitPlane waits until a control plane of the lab is ready and returns it. It also writes the control plane's
// kubeconfig to the usual path.
func (d *demo) awaitPlane(ctx context.Context, name string) (*plane, error) {
	source := filepath.Join(d.files.lab(), name+".kubeconfig")
	err := await(ctx, clustersLimit, func(ctx context.Context) error {
		if err := d.clusters.failed(); err != nil {
			return permanentError{err}
		}
		if _, err := os.Stat(source); err != nil {
			return fmt.Errorf("it has not started: see %s", d.files.short(d.files.log("lab")))
		}
		return answers(ctx, source, "/readyz")
	})
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	if err := writeFile(d.files.kubeconfig(name), content); err != nil {
		return nil, err
	}
	return openPlane(ctx, d.files.kubeconfig(name))
}

func (d *demo) awaitHub(ctx context.Context) (_ string, err error) {
	d.hub, err = d.awaitPlane(ctx, hub)
	return "", err
}

func (d *demo) awaitMember(ctx context.Context) (_ string, err error) {
	d.member, err = d.awaitPlane(ctx, member)
	return "", err
}

// agentImage returns the name of the agent's image. The name changes whenever the program changes. agentImage returns
// "" if agents run as processes.
func (d *demo) agentImage() (string, error) {
	if d.state.Nodes != realNodes {
		return "", nil
	}
	program, err := os.ReadFile(d.files.bin("drover-" + agent))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(program)
	return "drover.demo/agent:" + hex.EncodeToString(sum[:6]), nil
}

// awaitNodes returns when all nodes are ready and have the images for their pods.
func (d *demo) awaitNodes(ctx context.Context) (string, error) {
	if err := d.clusters.wait(); err != nil {
		return "", err
	}
	tarballs, err := d.writeImages()
	if err != nil {
		return "", err
	}
	loading, loaded := errgroup.Group{}, map[string]string{}
	for name, path := range tarballs {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		clusters := []string{member}
		if name == agent {
			clusters = append(clusters, hub)
		}
		for _, cluster := range clusters {
			key, sum := "image "+name+" of "+cluster, digest([]string{string(content)})
			if d.state.startedFrom(key) != sum {
				loaded[key] = sum
				loading.Go(func() error { return loadImage(ctx, d.files.lab(), path, cluster) })
			}
		}
	}
	if err := loading.Wait(); err != nil {
		return "", err
	}
	for key, sum := range loaded {
		if err := d.state.setStarted(key, sum); err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("%d images loaded", len(loaded)), nil
}

// writeImages writes the images for pods and returns the paths of their tarballs.
func (d *demo) writeImages() (map[string]string, error) {
	dir := d.files.file("images")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	name, err := d.agentImage()
	if err != nil {
		return nil, err
	}
	tarballs := map[string]string{agent: filepath.Join(dir, "agent.tar")}
	if err := writeImage(tarballs[agent], []string{name}, []string{d.files.bin("drover-" + agent)}); err != nil {
		return nil, err
	}
	for names, programs := range podImages() {
		tarball := filepath.Join(dir, programs[0]+".tar")
		for i, program := range programs {
			programs[i] = filepath.Join(dir, program)
			if err := os.Symlink(d.files.bin("drover-"+pod), programs[i]); err != nil && !os.IsExist(err) {
				return nil, err
			}
		}
		if err := writeImage(tarball, strings.Fields(names), programs); err != nil {
			return nil, err
		}
		tarballs[names] = tarball
	}
	return tarballs, nil
}

// awaitPods waits until the pods of the agents' Deployments are ready.
func (d *demo) awaitPods(ctx context.Context) (string, error) {
	return "", d.eachManaged(ctx, func(ctx context.Context, m managed) error {
		of := []string{"--kubeconfig", m.plane.kubeconfig, "-n", protocol.AgentNamespace}
		_, err := d.kubectl(ctx, append(slices.Clone(of), "rollout", "status", "deployment/"+protocol.AgentName, "--timeout", podLimit.String())...)
		if err == nil {
			return nil
		}
		// the error is ignored, because the first error is more informative
		seen, _ := d.kubectl(ctx, append(slices.Clone(of), "get", "pods,events")...)
		return fmt.Errorf("%w\n%s", err, seen)
	})
}
