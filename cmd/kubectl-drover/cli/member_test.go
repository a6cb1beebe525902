// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
	"testing"

	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestTheWayToAMember(t *testing.T) {
	kubeconfig := func(servers ...string) clientcmdapi.Config { // context, server, context, server, …
		c := clientcmdapi.NewConfig()
		for i := 0; i < len(servers); i += 2 {
			c.Contexts[servers[i]] = &clientcmdapi.Context{Cluster: servers[i]}
			c.Clusters[servers[i]] = &clientcmdapi.Cluster{Server: servers[i+1]}
		}
		return *c
	}
	tests := map[string]struct {
		raw             clientcmdapi.Config
		hub             string // the address of its proxy, if it is known
		context, server string
		err             string
	}{
		"a context for the member":                {kubeconfig("hub", "https://api:6443", "prod", "https://drover/k8s/clusters/team-a/prod"), "", "prod", "https://drover/k8s/clusters/team-a/prod", ""},
		"a context for another member of the hub": {kubeconfig("hub", "https://api:6443", "edge", "https://drover/k8s/clusters/team-b/edge"), "", "edge", "https://drover/k8s/clusters/team-a/prod", ""},
		"the current context, for the hub":        {kubeconfig("hub", "https://drover/base/k8s/local", "prod", "https://drover/k8s/clusters/team-a/prod"), "", "hub", "https://drover/base/k8s/clusters/team-a/prod", ""},
		"two contexts for the member":             {kubeconfig("a", "https://drover/k8s/clusters/team-a/prod", "b", "https://drover/k8s/clusters/team-a/prod/"), "", "a", "https://drover/k8s/clusters/team-a/prod", ""},
		"two hubs: no guess":                      {kubeconfig("a", "https://one/k8s/clusters/team-a/prod", "b", "https://two/k8s/clusters/team-a/prod"), "", "", "", "contexts a, b lead to several hubs"},
		"two hubs, and one is meant":              {kubeconfig("a", "https://one/k8s/clusters/team-a/prod", "b", "https://two/k8s/clusters/team-a/prod"), "https://two", "b", "https://two/k8s/clusters/team-a/prod", ""},
		"another hub":                             {kubeconfig("a", "https://one/k8s/clusters/team-a/prod"), "https://two", "", "", "no context of the kubeconfig"},
		"the current context, for another hub":    {kubeconfig("hub", "https://one/k8s/local", "b", "https://two/k8s/clusters/team-b/edge"), "https://two", "b", "https://two/k8s/clusters/team-a/prod", ""},
		"no way":                                  {kubeconfig("hub", "https://api:6443"), "", "", "", "--member-context"},
		"a context without a cluster is passed":   {clientcmdapi.Config{Contexts: map[string]*clientcmdapi.Context{"x": {Cluster: "gone"}}}, "", "", "", "no context of the kubeconfig"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			context, server, err := wayTo(tt.raw, tt.hub, "hub", "team-a", "prod")
			if context != tt.context || server != tt.server || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %q, %q, %v", context, server, err)
			}
		})
	}
}
