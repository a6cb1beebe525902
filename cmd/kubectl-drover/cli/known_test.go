// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// fleet returns a kubeconfig with two hubs and their members, as it is after it was written and read again.
func fleet(t *testing.T) *clientcmdapi.Config {
	t.Helper()
	at := time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC)
	config := clientcmdapi.NewConfig()
	for name, c := range map[string]struct {
		server string
		mark   Mark
	}{
		"old":         {"https://10.0.0.1:6443", Mark{Selected: at, URL: "https://old.example.com"}},
		"new":         {"https://10.0.0.2:6443", Mark{Selected: at.Add(time.Hour), URL: "https://new.example.com"}},
		"prod@old":    {"https://old.example.com/k8s/clusters/team/prod", Mark{Hub: "old"}},
		"unmarked":    {"https://old.example.com/k8s/clusters/team/prod", Mark{}},
		"prod-direct": {"https://10.0.0.3:6443", Mark{Hub: "old"}},
		"lost":        {"https://10.0.0.3:6443", Mark{Hub: "deleted"}},
		"other":       {"https://10.0.0.4:6443", Mark{}},
		"elsewhere":   {"https://third.example.com/k8s/clusters/team/prod", Mark{}},
		"third":       {"https://third.example.com/k8s/local", Mark{}},
	} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: c.server}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
		if err := SetMark(config.Contexts[name], c.mark); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestCommandsReachTheHubFromAnyContext(t *testing.T) {
	for name, tt := range map[string]struct {
		current, hub, context string
		want, problem         string
	}{
		"a context of the hub":                        {current: "old", want: "old"},
		"a member remembers its hub":                  {current: "prod@old", want: "old"},
		"a member's own address, too":                 {current: "prod-direct", want: "old"},
		"a member without a mark, by its address":     {current: "unmarked", want: "old"},
		"the hub's API behind its proxy":              {current: "third", want: "third"},
		"a foreign context: the last hub":             {current: "other", want: "new"},
		"a hub whose context was deleted":             {current: "lost", want: "new"},
		"no current context":                          {want: "new"},
		"--context is taken as it is":                 {current: "prod@old", context: "other", want: "other"},
		"--hub with a context":                        {current: "prod@old", hub: "new", want: "new"},
		"--hub with the address of the proxy":         {current: "prod@old", hub: "https://new.example.com/", want: "new"},
		"--hub with the address of the API server":    {current: "prod@old", hub: "https://10.0.0.2:6443", want: "new"},
		"--hub with a hub that was never selected":    {current: "old", hub: "https://third.example.com", want: "third"},
		"--hub with a hub that is not in the file":    {hub: "https://x.example.com", problem: "select one with --context"},
		"--hub with a name that only begins the same": {hub: "https://new.example.co", problem: "select one with --context"},
	} {
		t.Run(name, func(t *testing.T) {
			raw := fleet(t)
			raw.CurrentContext = tt.current
			o := &Options{HubName: tt.hub}
			o.Overrides.CurrentContext = tt.context
			got, err := o.HubContext(raw)
			if got != tt.want || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("the hub is %q (%v), want %q (%s)", got, err, tt.want, tt.problem)
			}
		})
	}
}

func TestWithoutAKnownHubTheCurrentContextIsTheHubUnlessItIsAMember(t *testing.T) {
	raw := fleet(t)
	for _, hub := range []string{"old", "new"} {
		delete(raw.Contexts, hub)
	}
	raw.CurrentContext = "other"
	if got, err := (&Options{}).HubContext(raw); got != "other" || err != nil {
		t.Errorf("the hub is %q (%v), want the current context", got, err)
	}
	raw.CurrentContext = "unmarked"
	if got, err := (&Options{}).HubContext(raw); err == nil || !strings.Contains(err.Error(), "leads to a member") {
		t.Errorf("the hub is %q (%v), want an error, because the current context leads to a member", got, err)
	}
	raw.Contexts["unmarked"].Extensions = nil
	if got := workspaceOf(raw, "unmarked"); got != "team" {
		t.Errorf("the workspace is %q, want the Cluster's", got)
	}
}
