// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/drover-dev/drover/test/lab"
)

// demo is one run of the command "up".
type demo struct {
	files  layout
	out    *reporter
	state  *state
	assets lab.Assets // set by findPrograms

	hub, member *plane // set by the steps that start the planes

	clusters              *task // brings up clusters with real nodes
	hubStart, memberStart *task // tasks that start control planes with simulated nodes
	signIn                *task
	tasks                 []*task // all tasks that have been started
}

// step is one line of the demo's output.
type step struct {
	what string
	do   func(context.Context) (string, error)
}

// up starts the demo. The parameter nodesWanted is the kind of nodes that the user requested. Programs that are already
// running with the right options are left running.
func up(ctx context.Context, files layout, nodesWanted string, out *reporter) error {
	unlock, err := files.lock()
	if err != nil {
		return err
	}
	defer unlock()
	d := &demo{files: files, out: out}
	if d.state, err = loadState(files.file("state.json")); err != nil {
		return err
	}
	if err := d.choose(nodesWanted); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for _, task := range d.tasks {
			_ = task.wait() // the steps have reported the task's error
		}
	}()
	steps := d.simulatedSteps()
	if d.state.Nodes == realNodes {
		steps = d.realSteps()
	}
	for _, step := range steps {
		if err := out.step(ctx, step.what, step.do); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return d.summarize(ctx)
}

// choose selects the kind of nodes for the demo. If the nodes are simulated, it explains why.
func (d *demo) choose(wanted string) error {
	var fault error
	if wanted != simulatedNodes {
		fault = labFault(d.files.lab())
	}
	chosen, remark, err := chooseNodes(wanted, d.state.Nodes, fault)
	if err != nil {
		return err
	}
	if remark != "" {
		fmt.Fprintln(d.out, remark)
	}
	d.state.Nodes = chosen
	return d.state.save()
}

func (d *demo) simulatedSteps() []step {
	return []step{
		{"find the control planes' programs (built once, the first time takes minutes)", d.findPrograms},
		{"begin to start the hub's control plane", d.beginHubPlane},
		{"build manager, agent and simulated nodes", d.build},
		{"find kubectl (built once, the first time takes minutes)", d.findKubectl},
		{"wait for the hub's control plane", d.awaitHubPlane},
		{"install CRDs, policies and the manager's rights on the hub", d.installHub},
		{"start the manager", d.startManager},
		{"begin to turn sign-in on", d.beginSignIn},
		{"begin to start the member's control plane", d.beginMemberPlane},
		{"apply Clusters, a Project, a binding and a Plan on the hub", d.applyClusters},
		{"wait for the member's control plane", d.awaitMemberPlane},
		{"start three simulated nodes of the member", d.startNodes},
		{"make users demo and admin of the hub cluster-admin of the member", d.grantMember},
		{"apply the agents' manifests in hub and member", d.applyManifests},
		{"start the agents", d.startAgents},
		{"wait until the Clusters are Ready and the member answers through the hub", d.awaitReady},
		{"wait until users can sign in to the hub and its API server", d.awaitSignIn},
		{"check that all of it listens on loopback only", d.checkListeners},
	}
}

func (d *demo) realSteps() []step {
	return []step{
		{"find Kubernetes' programs (built once, the first time takes some 20 minutes)", d.findPrograms},
		{"find kubectl", d.findKubectl},
		{"begin to start hub and member, each with a real node", d.beginClusters},
		{"build manager, agent and what pods run", d.build},
		{"wait for the hub's control plane", d.awaitHub},
		{"install CRDs, policies and the manager's rights on the hub", d.installHub},
		{"start the manager", d.startManager},
		{"begin to turn sign-in on", d.beginSignIn},
		{"apply Clusters, a Project, a binding and a Plan on the hub", d.applyClusters},
		{"wait for the member's control plane", d.awaitMember},
		{"make users demo and admin of the hub cluster-admin of the member", d.grantMember},
		{"wait for the nodes, and give them the images", d.awaitNodes},
		{"apply the agents' manifests in hub and member", d.applyManifests},
		{"wait for the agents' pods", d.awaitPods},
		{"wait until the Clusters are Ready and the member answers through the hub", d.awaitReady},
		{"wait until users can sign in to the hub and its API server", d.awaitSignIn},
		{"check that all of it listens on loopback only", d.checkListeners},
	}
}

// down stops and removes the whole demo, regardless of its state.
func down(ctx context.Context, files layout, out *reporter) error {
	if _, err := os.Stat(files.dir()); errors.Is(err, os.ErrNotExist) {
		fmt.Fprintln(out, "there is no demo to remove")
		return nil
	}
	unlock, err := files.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := out.step(ctx, "stop all programs", func(ctx context.Context) (string, error) { return stopAll(ctx, files.pids()) }); err != nil {
		return fmt.Errorf("stop the demo: %w: see %s, end that process and try again", err, files.short(files.pids()))
	}
	if _, err := os.Stat(files.lab()); err == nil {
		if err := out.step(ctx, "end the real nodes", func(ctx context.Context) (string, error) { return "", downLab(ctx, files.lab()) }); err != nil {
			return fmt.Errorf("end the real nodes: %w", err)
		}
	}
	return out.step(ctx, "remove "+files.short(files.dir()), func(context.Context) (string, error) { return "", os.RemoveAll(files.dir()) })
}

// stopAll stops all running programs. It stops independent programs at the same time, because some of them take seconds
// to exit.
func stopAll(ctx context.Context, pidDir string) (string, error) {
	running, err := lab.Running(pidDir)
	groups := map[string][]string{}
	for _, name := range running {
		group, _, _ := strings.Cut(name, "-")
		groups[group] = append(groups[group], name)
	}
	var stopping sync.WaitGroup
	for _, names := range groups {
		// A failure here occurs again below and is reported there.
		stopping.Go(func() { _ = lab.StopDetached(ctx, pidDir, names...) })
	}
	stopping.Wait()
	return fmt.Sprintf("%d of them", len(running)), errors.Join(err, lab.StopDetached(ctx, pidDir))
}

// running reports whether a program is running. name is the name of its pid file.
func (d *demo) running(name string) bool {
	names, err := lab.Running(d.files.pids())
	return err == nil && slices.Contains(names, name)
}

// findPrograms finds or builds the programs of control planes and of real nodes.
func (d *demo) findPrograms(ctx context.Context) (_ string, err error) {
	names := []string{lab.Etcd, lab.APIServer, lab.ControllerManager}
	if d.state.Nodes == realNodes {
		names = append(names, lab.Scheduler, lab.Kubelet, lab.KubeProxy, lab.Kubectl)
	}
	d.assets, err = lab.Binaries(ctx, d.out, names...)
	return "", err
}

// findKubectl finds or builds kubectl. It creates links to kubectl and to the plugin's completion under the names
// that users need.
func (d *demo) findKubectl(ctx context.Context) (string, error) {
	found, err := lab.Binaries(ctx, d.out, lab.Kubectl)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(d.files.bin("kubectl")), 0o700); err != nil {
		return "", err
	}
	return "", errors.Join(
		linkTo(found[lab.Kubectl], d.files.bin("kubectl")),
		linkTo(plugin, d.files.bin(completion)),
	)
}

func linkTo(target, path string) error {
	if former, err := os.Readlink(path); err == nil && former == target {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}
