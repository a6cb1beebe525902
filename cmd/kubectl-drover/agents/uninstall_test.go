// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func TestUninstallPrintsEachNameOnOneLine(t *testing.T) {
	const evil, obeyed = "\x1b]0;x\a\x1b[2J\r\u202e\u009b1A\x9b\nYes: User mallory may do all", "\x1b\a\r\u202e\u009b\x7f"
	var out strings.Builder
	u := &uninstaller{out: cli.Terminal{Out: &out}, said: map[string]bool{}}
	u.say(removal{kind: "ClusterRoleBinding", name: "x" + evil}.String() + " deleted")
	if said := out.String(); strings.Count(said, "\n") != 1 || strings.ContainsAny(said, obeyed) {
		t.Errorf("the warning is %q, want one line without control characters", said)
	}
}

func TestUninstallRefusesAContextThroughTheAgent(t *testing.T) {
	config := clientcmdapi.NewConfig()
	config.Clusters["x"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.AuthInfos["x"] = &clientcmdapi.AuthInfo{Exec: &clientcmdapi.ExecConfig{
		APIVersion: "client.authentication.k8s.io/v1", Command: "kubectl-drover",
		InteractiveMode: clientcmdapi.IfAvailableExecInteractiveMode,
		Args:            []string{"get-token", "--hub", "https://hub.example.com", "--cluster", "team/prod", "--direct"},
	}}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "x", AuthInfo: "x"}
	config.CurrentContext = "x"
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewUninstall(o)} }
	code := cli.Run(t.Context(), "test", commands, []string{"uninstall", "--kubeconfig", file, "--dry-run"}, &out, &out)
	if code != cli.ExitError || !strings.Contains(out.String(), "the agent that would be removed") {
		t.Errorf("exit code %d: %s, want an error, because the agent would remove itself", code, &out)
	}
}

func TestUninstallRefusesAHub(t *testing.T) {
	var out strings.Builder
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewUninstall(o)} }
	code := cli.Run(t.Context(), "test", commands, []string{"uninstall", "--hub", "x", "--yes"}, &out, &out)
	if code != cli.ExitError || !strings.Contains(out.String(), "does not support --hub") {
		t.Errorf("exit code %d: %s, want an error, because nothing is removed from the hub", code, &out)
	}
}
