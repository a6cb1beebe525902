// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/lab"
)

// agentGrace is terminationGracePeriodSeconds of the agent's Deployment. It limits how long the agent may take to end
// while its connection is stalled.
const agentGrace = 130 * time.Second

// Agent is an agent that runs as a process, for a member without nodes.
type Agent struct {
	// Process is the running process.
	Process *lab.Process
	// Address is the address of the health endpoints. Log is the path of the log file. Socket is the path of the
	// socket for "drover-agent loglevel".
	Address, Log, Socket string

	command lab.Command
}

// InstallAgent applies a manifest in a member and prepares the agent that its Deployment describes. Start starts the
// agent.
//
// All agents in one member's control plane share the objects of the manifest, like replicas. If namespace differs
// from the manifest's namespace, the agent has its own Secrets and can belong to another Cluster.
func InstallAgent(ctx context.Context, member *Plane, manifest []byte, name, namespace string) (*Agent, error) {
	manifest = moved(manifest, namespace)
	if err := ApplyManifest(ctx, member, manifest, namespace); err != nil {
		return nil, err
	}
	account := protocol.AgentName
	if namespace != protocol.AgentNamespace {
		account = namespace // moved names the ServiceAccount after the namespace
	}
	env, err := DeploymentEnv(manifest)
	if err != nil {
		return nil, err
	}
	return prepareAgent(ctx, member, env, name, namespace, account)
}

// UpdatedAgent prepares an agent according to the Deployment that is now in a member. In a cluster, a kubelet does
// this after an agent has changed its own Deployment. The agent is built from the member's current Programs. Start
// starts the agent.
func UpdatedAgent(ctx context.Context, member *Plane, name string) (*Agent, error) {
	deployment := &appsv1.Deployment{}
	key := types.NamespacedName{Namespace: protocol.AgentNamespace, Name: protocol.AgentName}
	if err := member.Client.Get(ctx, key, deployment); err != nil {
		return nil, fmt.Errorf("read the agent's Deployment: %w", err)
	}
	return prepareAgent(ctx, member, containerEnv(deployment.Spec.Template), name, key.Namespace, protocol.AgentName)
}

// prepareAgent returns an agent with the rights of a ServiceAccount and the environment of a container.
func prepareAgent(ctx context.Context, member *Plane, env []string, name, namespace, account string) (*Agent, error) {
	kubeconfig, err := member.accountKubeconfig(ctx, namespace, account, filepath.Join(member.dir, name+".kubeconfig"))
	if err != nil {
		return nil, err
	}
	a := &Agent{Log: filepath.Join(member.dir, name+".log"), Socket: filepath.Join(member.dir, name+".sock")}
	if a.Address, err = lab.FreeAddress(loopback); err != nil {
		return nil, err
	}
	a.command = lab.Command{
		Name: "agent-" + name, Path: member.programs.Agent, Args: []string{"--kubeconfig=" + kubeconfig},
		LogFile: a.Log, Grace: agentGrace,
		Env: append(env, protocol.EnvNamespace+"="+namespace, protocol.EnvListen+"="+a.Address,
			protocol.EnvSocket+"="+a.Socket),
	}
	return a, nil
}

// ApplyManifest applies an agent's manifest, as a user does to make a running agent join again. The argument
// namespace is used as in InstallAgent.
func ApplyManifest(ctx context.Context, member *Plane, manifest []byte, namespace string) error {
	return Apply(ctx, member.Client, moved(manifest, namespace), client.ForceOwnership)
}

// moved returns a manifest for another namespace, in which all names are changed accordingly.
func moved(manifest []byte, namespace string) []byte {
	for _, field := range []string{"namespace: ", "name: ", "serviceAccountName: "} {
		manifest = bytes.ReplaceAll(manifest, []byte(field+protocol.AgentNamespace+"\n"), []byte(field+namespace+"\n"))
	}
	return manifest
}

// AsNodeAgent turns the agent into a node agent. This takes effect at the next Start.
func (a *Agent) AsNodeAgent() { a.command.Args = append([]string{"node"}, a.command.Args...) }

// Start starts the agent, or restarts it after it has ended. moreEnv is added only for this start.
func (a *Agent) Start(moreEnv ...string) error {
	command := a.command
	command.Env = append(append([]string{}, command.Env...), moreEnv...)
	process, err := command.Start()
	if err != nil {
		return err
	}
	a.Process = process
	return nil
}

// DeploymentEnv returns the environment of the first container of the Deployment in a manifest.
func DeploymentEnv(manifest []byte) ([]string, error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		raw, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil, errors.New("read manifest: there is no Deployment in it")
		}
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		deployment := appsv1.Deployment{}
		if err := yaml.Unmarshal(raw, &deployment); err != nil || deployment.Kind != "Deployment" {
			continue
		}
		return containerEnv(deployment.Spec.Template), nil
	}
}

// containerEnv returns the environment of the first container of a pod.
func containerEnv(pod corev1.PodTemplateSpec) []string {
	var env []string
	for _, variable := range pod.Spec.Containers[0].Env {
		env = append(env, variable.Name+"="+variable.Value)
	}
	return env
}

// InstallBeside prepares the process that the agent deploys next to an API server. The process is configured as in
// the DaemonSet, but listens on another address. Start starts it.
func InstallBeside(ctx context.Context, member *Plane, set *appsv1.DaemonSet, name, address string) (*Agent, error) {
	pod := set.Spec.Template.Spec
	kubeconfig, err := member.accountKubeconfig(ctx, set.Namespace, pod.ServiceAccountName, filepath.Join(member.dir, name+".kubeconfig"))
	if err != nil {
		return nil, err
	}
	a := &Agent{Address: address, Log: filepath.Join(member.dir, name+".log"), Socket: filepath.Join(member.dir, name+".sock")}
	main := pod.Containers[0]
	a.command = lab.Command{
		Name: "beside-" + name, Path: member.programs.Agent, Args: append(main.Command[1:], "--kubeconfig="+kubeconfig), LogFile: a.Log, Grace: agentGrace,
		Env: []string{protocol.EnvDirectListen + "=" + address, protocol.EnvSocket + "=" + a.Socket},
	}
	a.command.Env = append(a.command.Env, containerEnv(set.Spec.Template)...)
	return a, nil
}
