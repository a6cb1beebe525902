// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// changing has a command line for each command that changes something on a hub or through it.
func changing() map[string]string {
	return map[string]string{
		"grant":                 "grant alice viewer --cluster prod",
		"revoke":                "revoke alice viewer --cluster prod",
		"project create":        "project create web --cluster prod",
		"project add-namespace": "project add-namespace web shop",
		"plan approve":          "plan approve k3s",
		"plan override":         "plan override k3s --check NodesReady --reason replaced",
		"plan pause":            "plan pause k3s",
		"plan resume":           "plan resume k3s",
		"plan retry":            "plan retry k3s",
		"baseline rollback":     "baseline rollback flux --yes",
		"baseline approve":      "baseline approve flux",
		"baseline pause":        "baseline pause flux",
		"baseline resume":       "baseline resume flux",
		"agents pause":          "agents pause prod",
		"agents resume":         "agents resume prod",
		"import":                "import prod",
		"host join":             "host join rack",
		"host clean":            "host clean rack --yes",
		"host release":          "host release rack --yes",
		"adopt":                 "adopt prod --yes",
		"restored":              "restored prod --yes",
		"revoked":               "revoked /dev/null --yes",
		"user create":           "user create alice",
		"user password":         "user password alice",
		"use":                   "use prod",
		"kubeconfig":            "kubeconfig prod --merge",
		"exec":                  "exec prod -- true",
	}
}

// others returns the commands that do not change a hub, that only act on a session, or that act on another cluster.
func others() []string {
	return []string{
		"why", "who-can", "logs agent", "project list", "plan check", "plan preview", "plan watch",
		"baseline list", "baseline status", "baseline history", "agents", "status", "host list", "host logs",
		"clusters", "whoami", "version",
		"login", "logout", "get-token", "credential", "token create", "token list", "token revoke",
		"session list", "session revoke",
		"uninstall", "rancher export",
	}
}

func TestNoCommandChangesAGuessedHub(t *testing.T) {
	hub := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the guessed hub got %s %s", r.Method, r.URL)
	}))
	defer hub.Close()
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "other"
	for name, server := range map[string]string{"hub": hub.URL, "other": "http://127.0.0.1:1"} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: server}
		config.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: "x"}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	if err := cli.SetMark(config, "hub", cli.Mark{Selected: time.Now(), URL: hub.URL}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	t.Setenv("HOME", t.TempDir())
	for name, line := range changing() {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			args := append([]string{"--kubeconfig", file}, strings.Fields(line)...)
			code := run(t.Context(), args, &out, &out)
			if code != cli.ExitError || !strings.Contains(out.String(), "the current context does not say which hub is meant") {
				t.Errorf("exit code %d: %s, want an error, because the hub is guessed", code, &out)
			}
		})
	}
}

func TestEveryCommandIsKnownToChangeAHubOrNot(t *testing.T) {
	var found []string
	var walk func(prefix string, all []*cobra.Command)
	walk = func(prefix string, all []*cobra.Command) {
		for _, c := range all {
			name := strings.TrimSpace(prefix + " " + c.Name())
			if !c.HasSubCommands() || name == "agents" { // "agents" lists them itself
				found = append(found, name)
			}
			walk(name, c.Commands())
		}
	}
	walk("", commands(&cli.Options{Loading: &clientcmd.ClientConfigLoadingRules{}}))
	known := append(slices.Collect(maps.Keys(changing())), others()...)
	slices.Sort(found)
	slices.Sort(known)
	if !slices.Equal(found, known) {
		t.Errorf("the commands are\n%q\nwant\n%q", found, known)
	}
}
