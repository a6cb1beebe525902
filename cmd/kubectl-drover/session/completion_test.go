// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
)

func TestTheUsersOwnTokensAndHubsAreCompleted(t *testing.T) {
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != pathTokens || r.Header.Get("Authorization") != "Bearer secret" {
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(scriptTokens{Items: []scriptToken{{ID: "ci-1"}, {ID: "ci-2"}, {ID: "backup"}}})
	}))
	defer hub.Close()
	t.Setenv("HOME", t.TempDir())
	store, err := sessions()
	if err != nil {
		t.Fatal(err)
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw})
	err = store.Change(t.Context(), hub.URL, func(*login.Session) (*login.Session, error) {
		return &login.Session{Issuer: hub.URL, CA: ca, Token: "secret", Expires: time.Now().Add(time.Hour)}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["prod"] = &clientcmdapi.Cluster{Server: hub.URL + "/k8s/clusters/team/prod"}
	config.Contexts["prod"] = &clientcmdapi.Context{Cluster: "prod"}
	config.CurrentContext = "prod"
	kubeconfig := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		t.Fatal(err)
	}
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewToken(o), NewLogin(o)} }
	for line, want := range map[string]string{
		"token revoke":           "backup\nci-1\nci-2\n:4\n",
		"token revoke ci-1":      "backup\nci-2\n:4\n",
		"login":                  hub.URL + "\n:4\n",
		"login https://a":        ":4\n",
		"token list":             ":4\n",
		"token create --cluster": ":4\n", // the hub does not list Clusters
	} {
		args := append([]string{cobra.ShellCompRequestCmd, "--kubeconfig", kubeconfig}, strings.Fields(line)...)
		var out, says strings.Builder
		if code := cli.Run(t.Context(), "test", commands, append(args, ""), &out, &says); code != cli.ExitAllowed ||
			out.String() != want {
			t.Errorf("%s: exit code %d: %q %q, want %q", line, code, out.String(), says.String(), want)
		}
	}
}
