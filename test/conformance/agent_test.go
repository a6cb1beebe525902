// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"slices"
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// printed is what "kubectl drover kubeconfig default/member" prints, with a current context.
const printed = `apiVersion: v1
kind: Config
clusters:
- {name: default/member@hub, cluster: {server: "https://hub/k8s/clusters/default/member"}}
- {name: default/member@hub-direct, cluster: {server: "https://10.90.0.11:30064"}}
contexts:
- {name: default/member@hub, context: {cluster: default/member@hub, user: drover@hub}}
- {name: default/member@hub-direct, context: {cluster: default/member@hub-direct, user: default/member@hub-direct}}
users:
- name: drover@hub
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: kubectl-drover, args: [get-token]}}
- name: default/member@hub-direct
  user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: kubectl-drover, args: [get-token, --direct]}}
current-context: `

func TestTheKubeconfigOfTheAgentRunsThePluginForItsUser(t *testing.T) {
	got, err := agentKubeconfig([]byte(printed+"default/member@hub-direct"), "/x/kubectl-drover", "/x/home")
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Contexts) != 1 || len(got.Clusters) != 1 || len(got.AuthInfos) != 1 {
		t.Fatalf("the kubeconfig is %v, want one context", got)
	}
	context := got.Contexts[got.CurrentContext]
	if server := got.Clusters[context.Cluster].Server; server != "https://10.90.0.11:30064" {
		t.Errorf("the server is %s, want the agent's own address", server)
	}
	call := got.AuthInfos[context.AuthInfo].Exec
	if call.Command != "/x/kubectl-drover" || !slices.Equal(call.Args, []string{"get-token", "--direct"}) {
		t.Errorf("the token is of %s %v, want the plugin's path, and its arguments", call.Command, call.Args)
	}
	if home := (clientcmdapi.ExecEnvVar{Name: "HOME", Value: "/x/home"}); !slices.Contains(call.Env, home) {
		t.Errorf("the plugin runs with %v, want its user's home", call.Env)
	}
}

func TestAKubeconfigThatLeadsThroughTheHubIsRefused(t *testing.T) {
	for current, want := range map[string]string{
		"default/member@hub": "not the agent's own address",
		"''":                 "not the agent's own address",
		"none-direct":        "has no user",
	} {
		_, err := agentKubeconfig([]byte(printed+current), "p", "h")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with the current context %s the error is %v, want %q", current, err, want)
		}
	}
}
