// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
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
		"prod-direct": {"https://10.0.0.3:6443", Mark{Hub: "old", URL: "https://old.example.com", Workspace: "team"}},
		"nameless":    {"https://10.0.0.5:6443", Mark{Selected: at.Add(-time.Hour)}},
		"of-nameless": {"https://10.0.0.3:6443", Mark{Hub: "nameless"}},
		"at-nameless": {"https://fifth.example.com/k8s/clusters/team/prod", Mark{Hub: "nameless"}},
		"lost":        {"https://10.0.0.3:6443", Mark{Hub: "deleted"}},
		"other":       {"https://10.0.0.4:6443", Mark{}},
		"elsewhere":   {"https://third.example.com/k8s/clusters/team/prod", Mark{}},
		"recreated":   {"https://10.0.0.3:6443", Mark{Hub: "other"}},
		"mismarked":   {"https://old.example.com/k8s/clusters/team/prod", Mark{Hub: "new"}},
		"unknown":     {"https://fourth.example.com/k8s/clusters/team/prod", Mark{}},
		"third":       {"https://third.example.com/k8s/local", Mark{}},
	} {
		config.Clusters[name] = &clientcmdapi.Cluster{Server: c.server}
		config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
		if err := SetMark(config, name, c.mark); err != nil {
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
		guessed               bool
	}{
		"a context of the hub":                        {current: "old", want: "old"},
		"a member remembers its hub":                  {current: "prod@old", want: "old"},
		"a member's own address, too":                 {current: "prod-direct", want: "old"},
		"a member without a mark, by its address":     {current: "unmarked", want: "old"},
		"a member whose mark has only a name":         {current: "of-nameless", problem: "select the hub with --hub"},
		"a member of a hub without an address":        {current: "at-nameless", problem: "no context of that hub is known"},
		"the hub's API behind its proxy":              {current: "third", want: "third"},
		"a foreign context: the last hub":             {current: "other", want: "new", guessed: true},
		"a hub whose context was deleted":             {current: "lost", problem: "select the hub with --hub"},
		"a hub whose context was recreated":           {current: "recreated", problem: "select the hub with --hub"},
		"a mark that names another hub":               {current: "mismarked", want: "old"},
		"no current context":                          {want: "new", guessed: true},
		"a member of a hub that was never selected":   {current: "elsewhere", want: "third"},
		"a member of a hub without a context":         {current: "unknown", problem: "no context of that hub is known"},
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
			got, guessed, err := o.FindHub(raw)
			if guessed != tt.guessed {
				t.Errorf("guessed is %v, want %v", guessed, tt.guessed)
			}
			if got != tt.want || (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("the hub is %q (%v), want %q (%s)", got, err, tt.want, tt.problem)
			}
		})
	}
}

func TestWithoutAKnownHubTheCurrentContextIsTheHubUnlessItIsAMember(t *testing.T) {
	raw := fleet(t)
	for _, hub := range []string{"old", "new", "nameless"} {
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

func TestTheCurrentOneOfSeveralContextsOfAHubIsPreferred(t *testing.T) {
	raw := fleet(t)
	raw.Contexts["again"] = &clientcmdapi.Context{Cluster: "new"}
	for _, current := range []string{"again", "new"} {
		raw.CurrentContext = current
		if got, err := NamedHub(raw, "https://10.0.0.2:6443"); got != current || err != nil {
			t.Errorf("the context at the URL is %q (%v), want the current one, %q", got, err, current)
		}
	}
}

// with returns options that load a kubeconfig.
func with(t *testing.T, raw *clientcmdapi.Config, said io.Writer) *Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*raw, file); err != nil {
		t.Fatal(err)
	}
	return &Options{Loading: &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}, says: said}
}

func TestOnlyCommandsThatReadUseAGuessedHub(t *testing.T) {
	raw, said := fleet(t), &strings.Builder{}
	raw.CurrentContext = "other"
	o := with(t, raw, said)
	_, err := o.Hub()
	if err == nil || !strings.Contains(err.Error(), "--hub") || !strings.Contains(err.Error(), "--context") {
		t.Errorf("a command that changes something: %v, want an error that names --hub and --context", err)
	}
	if h, err := o.HubToRead(); err != nil || h.Config.Host != "https://10.0.0.2:6443" {
		t.Errorf("a command that reads: %v, want the hub that was selected last", err)
	}
	if !strings.Contains(said.String(), "context new") {
		t.Errorf("the user is told %q, want the hub's context", said)
	}
	o.HubName = "old"
	if h, err := o.Hub(); err != nil || h.Config.Host != "https://10.0.0.1:6443" {
		t.Errorf("with --hub: %v, want that hub", err)
	}
}

func TestTheWorkspaceComesFromAMemberOfTheSameHubOnly(t *testing.T) {
	for _, current := range []string{"prod@old", "prod-direct"} {
		raw := fleet(t)
		raw.CurrentContext = current
		o := with(t, raw, nil)
		if h, err := o.Hub(); err != nil || h.Workspace != "team" {
			t.Errorf("%s: the workspace is not the member's (%v)", current, err)
		}
		o.HubName = "new"
		if h, err := o.Hub(); err != nil || h.Workspace == "team" {
			t.Errorf("%s: the workspace at hub new is the one of a member of hub old (%v)", current, err)
		}
	}
}

func TestAMarkOnlyAppliesToItsServer(t *testing.T) {
	raw := fleet(t)
	raw.CurrentContext = "old"
	o := with(t, raw, nil)
	if base, _ := o.Proxy(); base != "https://old.example.com" {
		t.Errorf("the proxy is %q, want the marked one", base)
	}
	o.Overrides.ClusterInfo.Server = "https://10.0.0.9:6443"
	if base, _ := o.Proxy(); base != "" {
		t.Errorf("with --server the proxy is %q, want none", base)
	}
	raw.Clusters["old"].Server = "https://10.0.0.9:6443"
	o = with(t, raw, nil)
	o.Overrides.CurrentContext = "old"
	if base, ca := o.Proxy(); base != "" || ca != nil {
		t.Errorf("the context got another server, and the proxy is %q, want none", base)
	}
	if mark := MarkOf(raw, "old"); !mark.Selected.IsZero() || mark.URL != "" {
		t.Errorf("the mark is %+v, want nothing that belongs to the old server", mark)
	}
	raw.Clusters["prod-direct"].Server, raw.CurrentContext = "https://10.0.0.9:6443", "prod-direct"
	if got, _, err := (&Options{}).FindHub(raw); err == nil {
		t.Errorf("the context of a member got another server, and the hub is %q, want an error", got)
	}
	if got := workspaceOf(raw, "prod-direct"); got != "" {
		t.Errorf("the context of a member got another server, and the workspace is %q, want none", got)
	}
}

func TestAHubIsRecognizedByThePathsOfItsMembers(t *testing.T) {
	for server, want := range map[string]string{
		"https://hub.example.com/k8s/clusters/team/prod":    "https://hub.example.com",
		"https://hub.example.com/k8s/clusters/team/prod/":   "https://hub.example.com",
		"https://hub.example.com/x/k8s/clusters/team/a.b":   "https://hub.example.com/x",
		"https://hub.example.com/k8s/local":                 "https://hub.example.com",
		"https://hub.example.com/k8s/locally":               "",
		"https://rancher.example.com/k8s/clusters/c-m-abcd": "",
		"https://rancher.example.com/k8s/clusters/local":    "",
		"https://rancher.example.com/k8s/clusters/c-1/A/b":  "",
		"https://10.0.0.1:6443":                             "",
	} {
		if base, atHub := HubBase(server); base != want || atHub != (want != "") {
			t.Errorf("%s: the hub is %q (%v), want %q", server, base, atHub, want)
		}
	}
}

func TestAHubIsNotIgnoredWithoutContexts(t *testing.T) {
	o := with(t, clientcmdapi.NewConfig(), nil)
	o.HubName = "https://hub.example.com"
	if _, err := o.Hub(); err == nil || !strings.Contains(err.Error(), "no context of the kubeconfig leads to") {
		t.Errorf("--hub without contexts: %v, want an error", err)
	}
}

func TestHubAndContextExcludeEachOther(t *testing.T) {
	for _, other := range []string{"--context=x", "--server=https://x"} {
		var out strings.Builder
		commands := func(o *Options) []*cobra.Command {
			return []*cobra.Command{{Use: "do", RunE: func(*cobra.Command, []string) error { return nil }}}
		}
		if code := Run(t.Context(), "test", commands, []string{"do", "--hub=y", other}, &out, &out); code != ExitError {
			t.Errorf("--hub with %s: exit code %d: %s, want an error", other, code, &out)
		}
	}
}
