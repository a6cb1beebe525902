// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/framework"
)

const (
	// directPort is the port of the member's nodes that is forwarded to its agent.
	directPort = "30064"
	// offline is the lifetime of the user's tokens. The plugin renews them after half of it, which happens several times
	// in a run of all tests. A request may be open for at least the other half.
	offline = "20m"
)

// directService forwards a port of each node to the agent, as docs/spec/cluster.md requires.
const directService = `apiVersion: v1
kind: Service
metadata: {name: direct, namespace: drover-agent}
spec:
  type: NodePort
  publishNotReadyAddresses: true
  selector: {app.kubernetes.io/name: drover-agent}
  ports: [{port: 6443, nodePort: ` + directPort + `}]
`

// nodeAddress is the JSONPath of the address of the first node.
const nodeAddress = `jsonpath={.items[0].status.addresses[?(@.type=="InternalIP")].address}`

// openAgent makes the member's agent serve users at its own address, signs a user in to the hub, and writes the
// kubeconfig with which the user connects to that address.
func (f *fixture) openAgent(ctx context.Context, name types.NamespacedName) error {
	ctx, cancel := context.WithTimeout(ctx, upLimit)
	defer cancel()
	if _, err := f.atMember(ctx, []byte(directService), "apply", "-f", "-"); err != nil {
		return err
	}
	address, err := f.atMember(ctx, nil, "get", "nodes", "-o", nodeAddress)
	if err != nil {
		return err
	}
	const endpoint = `{"spec":{"authorizedEndpoint":{"server":"https://%s:%s","offline":%q}}}`
	patch := fmt.Sprintf(endpoint, address, directPort, offline)
	_, err = f.plane.Kubectl(ctx, nil, "patch", "clusters.cluster.drover.dev", name.Name, "-n", name.Namespace,
		"--type=merge", "-p", patch)
	if err != nil {
		return err
	}
	if _, err := f.hub.AwaitCluster(ctx, name, servesUsers); err != nil {
		return err
	}
	if err := f.signIn(ctx); err != nil {
		return fmt.Errorf("sign in as %s: %w", user, err)
	}
	return framework.Await(ctx, func(ctx context.Context) error { return f.writeAgentKubeconfig(ctx, name) })
}

// servesUsers reports whether the agent of a Cluster can serve users.
func servesUsers(c *v1.Cluster) bool {
	return c.Status.DirectAuthority != "" && meta.IsStatusConditionTrue(c.Status.Conditions, v1.ConditionDirectAccess)
}

// signIn creates a User on the hub and signs it in with the plugin, like a person at a computer without a browser.
func (f *fixture) signIn(ctx context.Context) error {
	bundle, err := f.hub.Bundle(ctx)
	if err != nil {
		return err
	}
	ca, admin := filepath.Join(f.dir, "hub-ca.crt"), filepath.Join(f.dir, "hub-admin.kubeconfig")
	err = errors.Join(os.MkdirAll(f.home(), 0o700), os.WriteFile(ca, bundle, 0o600), f.plane.WriteKubeconfig(admin))
	if err != nil {
		return err
	}
	password, err := exec.CommandContext(ctx, f.plugin, "user", "create", user, "--kubeconfig", admin).Output()
	if err != nil {
		return fmt.Errorf("make the user: %w", err)
	}
	visit, err := framework.NewVisitor(f.issuer(), f.hub.Replicas[0].Address, bundle)
	if err != nil {
		return err
	}
	if err := framework.Await(ctx, visit.Open); err != nil {
		return err
	}
	login, err := f.drover(ctx, "login", f.issuer(), "--ca", ca, "--device")
	if err != nil {
		return err
	}
	return framework.LogIn(login, func(page, code string) error {
		return visit.Confirm(ctx, page, code, user, strings.TrimSpace(string(password)))
	})
}

// writeAgentKubeconfig writes the kubeconfig that the plugin prints for the Cluster. It returns an error if the plugin
// does not choose the agent's own address, because the agent does not respond there yet, or if the user has no rights
// there yet.
func (f *fixture) writeAgentKubeconfig(ctx context.Context, name types.NamespacedName) error {
	command, err := f.drover(ctx, "kubeconfig", name.String(), "--hub", f.issuer())
	if err != nil {
		return err
	}
	content, err := output(command)
	if err != nil {
		return err
	}
	config, err := agentKubeconfig(content, f.plugin, f.home())
	if err != nil {
		return err
	}
	if err := clientcmd.WriteToFile(*config, f.kubeconfig(wayAgent)); err != nil {
		return err
	}
	args, err := f.lab.Beside(f.kubectl, "--kubeconfig", f.kubeconfig(wayAgent), "get", "nodes", "-o", "name")
	if err != nil {
		return err
	}
	_, err = output(exec.CommandContext(ctx, args[0], args[1:]...))
	return err
}

// agentKubeconfig returns the current context of the plugin's kubeconfig, with the path of the plugin and the home
// folder of its user, so that it works wherever tests start kubectl.
func agentKubeconfig(content []byte, plugin, home string) (*clientcmdapi.Config, error) {
	config, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("read the plugin's kubeconfig: %w", err)
	}
	current := config.CurrentContext
	if !strings.HasSuffix(current, "-direct") {
		return nil, fmt.Errorf("the plugin has chosen the context %q, and not the agent's own address", current)
	}
	chosen := config.Contexts[current]
	if chosen == nil || config.AuthInfos[chosen.AuthInfo] == nil || config.AuthInfos[chosen.AuthInfo].Exec == nil {
		return nil, fmt.Errorf("the plugin's kubeconfig has no user with a command for the context %q", current)
	}
	call := config.AuthInfos[chosen.AuthInfo].Exec
	call.Command, call.Env = plugin, append(call.Env, clientcmdapi.ExecEnvVar{Name: "HOME", Value: home})
	return config, clientcmdapi.MinifyConfig(config)
}

// drover returns a command of the plugin, in the environment of the tests, for the user who signs in.
func (f *fixture) drover(ctx context.Context, args ...string) (*exec.Cmd, error) {
	args, err := f.lab.Beside(append([]string{f.plugin}, args...)...)
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Env = append(os.Environ(), "HOME="+f.home())
	return command, nil
}

// output runs a command and returns its output. The error contains its standard error.
func output(command *exec.Cmd) ([]byte, error) {
	var complaint bytes.Buffer
	command.Stderr = &complaint
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%v: %w: %s", command.Args, err, complaint.String())
	}
	return out, nil
}

// home is the folder in which the plugin stores the user's session.
func (f *fixture) home() string { return filepath.Join(f.dir, "home") }

// issuer is the URL at which users sign in.
func (f *fixture) issuer() string { return "https://" + onBridge(f.hub.Replicas[0].Address) }

// buildPlugin builds kubectl-drover into a folder and returns its path.
func buildPlugin(ctx context.Context, root, dir string) (string, error) {
	file := filepath.Join(dir, "kubectl-drover")
	build := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", file, "./cmd/kubectl-drover")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build kubectl-drover: %w\n%s", err, out)
	}
	return file, nil
}
