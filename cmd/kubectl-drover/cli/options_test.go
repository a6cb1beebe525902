// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestServerFlagChangesOnlyTheCurrentContext(t *testing.T) {
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "admin"
	config.Clusters["shared"] = &clientcmdapi.Cluster{Server: "https://old.example.com"}
	config.Contexts["admin"] = &clientcmdapi.Context{Cluster: "shared"}
	config.Contexts["member"] = &clientcmdapi.Context{Cluster: "shared"}
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	o := &Options{Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}}
	o.Overrides.ClusterInfo.Server = "https://new.example.com"
	raw, err := o.RawConfig()
	if err != nil {
		t.Fatal(err)
	}
	for context, want := range map[string]string{"admin": "https://new.example.com", "member": "https://old.example.com"} {
		if got := ServerOf(&raw, context); got != want {
			t.Errorf("the server of context %s is %s, want %s", context, got, want)
		}
	}
}

func TestUsersWhoSignInAtTheHubAreRecognized(t *testing.T) {
	for name, tt := range map[string]struct {
		exec *clientcmdapi.ExecConfig
		want bool
	}{
		"no program":             {nil, false},
		"the plugin":             {&clientcmdapi.ExecConfig{Command: "kubectl-drover"}, true},
		"the plugin in a folder": {&clientcmdapi.ExecConfig{Command: "/usr/local/bin/kubectl-drover"}, true},
		"the plugin of Windows":  {&clientcmdapi.ExecConfig{Command: "kubectl-drover.exe"}, true},
		"kubectl drover":         {&clientcmdapi.ExecConfig{Command: "kubectl", Args: []string{"drover", "get-token"}}, true},
		"another plugin":         {&clientcmdapi.ExecConfig{Command: "kubectl", Args: []string{"oidc-login"}}, false},
		"another program":        {&clientcmdapi.ExecConfig{Command: "aws", Args: []string{"eks", "get-token"}}, false},
	} {
		if got := SignsInAtHub(tt.exec); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}
