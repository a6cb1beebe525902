// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

func TestThePluginHelpsAndSaysItsVersion(t *testing.T) {
	for line, want := range map[string][]string{
		"":                {"kubectl drover [command]", "who-can"},
		"rancher":         {"kubectl drover rancher [command]", "export"},
		"version":         {version},
		"--version":       {version},
		"completion bash": {"__start_kubectl-drover"},
	} {
		t.Run(line, func(t *testing.T) {
			var out, complaints strings.Builder
			if code := run(t.Context(), strings.Fields(line), &out, &complaints); code != cli.ExitAllowed {
				t.Errorf("exit code %d, want %d:\n%s", code, cli.ExitAllowed, complaints.String())
			}
			for _, text := range want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("%q is not in:\n%s", text, out.String())
				}
			}
		})
	}
}

func TestKubectlsNameForTheCompleterCompletes(t *testing.T) {
	for name, want := range map[string]string{"kubectl-drover": "plan", "/usr/bin/kubectl_complete-drover": "__complete plan", `kubectl_complete-drover.exe`: "__complete plan"} {
		if got := strings.Join(argumentsOf([]string{name, "plan"}), " "); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestErrorsSayWhatToGive(t *testing.T) {
	config := clientcmdapi.NewConfig()
	config.Clusters["away"] = &clientcmdapi.Cluster{Server: "https://127.0.0.1:1"}
	config.Contexts["away"] = &clientcmdapi.Context{Cluster: "away"}
	config.CurrentContext = "away"
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	defer server.Close()
	config.Clusters["other"] = &clientcmdapi.Cluster{Server: server.URL}
	config.Contexts["other"] = &clientcmdapi.Context{Cluster: "other"}
	away, empty := filepath.Join(t.TempDir(), "away"), filepath.Join(t.TempDir(), "empty")
	if err := errors.Join(clientcmd.WriteToFile(*config, away), os.WriteFile(empty, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"clsters":                            `error: unknown command "clsters" for "kubectl drover": did you mean "clusters"? See`,
		"plan wach x":                        `error: unknown command "wach" for "kubectl drover plan": did you mean "watch"? See`,
		"agents pase":                        `error: unknown command "pase" for "kubectl drover agents": did you mean "pause"? See`,
		"token rm x":                         `error: unknown command "rm" for "kubectl drover token": see "kubectl drover token --help"`,
		"token revoke":                       "error: kubectl drover token revoke requires the IDs of tokens",
		"session revoke":                     "error: kubectl drover session revoke requires the IDs of sessions",
		"why x get pods --clustr y":          `error: unknown flag: --clustr: see "kubectl drover why --help"`,
		"plan preview -f x":                  `error: unknown shorthand flag: 'f' in -f: see "kubectl drover plan preview --help"`,
		"plan watch x --kubeconfig " + empty: "it does not exist or has no cluster: set the kubeconfig of the hub with --kubeconfig or KUBECONFIG",
		"uninstall --kubeconfig " + empty:    "it does not exist or has no cluster: set the kubeconfig of the member with --kubeconfig or KUBECONFIG",
		"uninstall --context nope --kubeconfig " + away: "select the member with --kubeconfig or --context",

		"plan preview nosuch --kubeconfig " + away:                          "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the network, HTTPS_PROXY, and the server in",
		"who-can get pods --cluster c --kubeconfig " + away:                 "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the network, HTTPS_PROXY, and the server in",
		"uninstall --kubeconfig " + away:                                    "error: https://127.0.0.1:1 was not reached: dial tcp 127.0.0.1:1: connect: connection refused: check the network, HTTPS_PROXY, and the server in",
		"who-can get pods --cluster c --context other --kubeconfig " + away: "check the certificate-authority-data of that server in the kubeconfig",
	} {
		var out strings.Builder
		if code := run(t.Context(), strings.Fields(line), &out, &out); code != cli.ExitError || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %d: %s, want an error with other text", line, code, out.String())
		}
	}
}
