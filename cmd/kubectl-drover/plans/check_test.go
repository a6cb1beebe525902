// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/test/testkit"
)

// proxyTo forwards requests to an API server, with the rights of its administrator.
func proxyTo(t *testing.T, env *testkit.Env) http.Handler {
	t.Helper()
	to, err := url.Parse(env.Config.Host)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	if proxy.Transport, err = rest.TransportFor(env.Config); err != nil {
		t.Fatal(err)
	}
	return proxy
}

// checkFixture is a hub whose proxy leads to a member.
type checkFixture struct {
	workspace, kubeconfig string
}

func newCheckFixture(t *testing.T) (*checkFixture, *testkit.Env) {
	t.Helper()
	hub, member := testkit.Shared(t), testkit.StartMember(t)
	f := &checkFixture{workspace: hub.Workspace(t)}
	mux := http.NewServeMux()
	mux.Handle(cli.PathLocal+"/", http.StripPrefix(cli.PathLocal, proxyTo(t, hub)))
	for _, name := range []string{"good", "twin"} {
		path := cli.MemberPath(f.workspace, name)
		mux.Handle(path+"/", http.StripPrefix(path, proxyTo(t, member)))
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	states := map[string]metav1.ConditionStatus{"good": "True", "twin": "True", "gone": "False", "new": ""}
	for name, connected := range states {
		c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: f.workspace, Name: name,
			Labels: map[string]string{"name": name}}}
		if name == "good" || name == "twin" {
			c.Labels["env"] = "prod"
		}
		hub.Apply(t, c)
		if connected == "" {
			continue
		}
		c.Status.Conditions = []metav1.Condition{{Type: v1.ConditionConnected, Status: connected, Reason: "Test",
			Message: "the agent is away", LastTransitionTime: metav1.Now()}}
		if err := hub.Client.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	config := clientcmdapi.NewConfig()
	config.CurrentContext = "hub"
	config.Clusters["hub"] = &clientcmdapi.Cluster{Server: server.URL + cli.PathLocal}
	config.Contexts["hub"] = &clientcmdapi.Context{Cluster: "hub", Namespace: f.workspace}
	if err := cli.SetMark(config, "hub", cli.Mark{Selected: time.Now(), URL: server.URL}); err != nil {
		t.Fatal(err)
	}
	f.kubeconfig = filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*config, f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return f, member
}

func (f *checkFixture) run(ctx context.Context, args ...string) (code int, out, complaints string) {
	var printed, complained strings.Builder
	code = cli.Run(ctx, "test", func(o *cli.Options) []*cobra.Command { return []*cobra.Command{New(o)} },
		append([]string{"--kubeconfig", f.kubeconfig}, args...), &printed, &complained)
	return code, printed.String(), complained.String()
}

// file writes a Plan with the given fields of its spec.
func (f *checkFixture) file(t *testing.T, spec string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "plan.yaml")
	text := "kind: Plan\nmetadata: {name: k8s}\nspec: {" + spec + ", upgrade: {image: x}}\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestPlanCheck(t *testing.T) {
	f, member := newCheckFixture(t)
	const same, next = "version: v1.36.9", "version: v1.39.1"
	for name, tt := range map[string]struct {
		spec     string
		code     int
		want     []string // in the output
		complain []string
	}{
		"members that are safe": {
			spec: "clusterSelector: {matchLabels: {env: prod}}, " + same, code: cli.ExitAllowed,
			want: []string{"2 of 2 Clusters are safe to upgrade.\n"}, complain: []string{"1/2 ", "2/2 ", "twin: safe"},
		},
		"a version that is not safe": {
			spec: "clusterName: good, " + next, code: cli.ExitDenied,
			want: []string{"CLUSTER   CHECK               OBJECT           CAUSE", "REMEDY",
				"good      KubernetesVersion   kube-apiserver   an upgrade from v1.36.", "skips 2 minor versions",
				"upgrade to 1.37 first",
				"0 of 1 Clusters are safe to upgrade.\n"},
			complain: []string{"1/1 good: 1 finding\n"},
		},
		"members that cannot be reached": {
			spec: "clusterSelector: {matchExpressions: [{key: name, operator: In, values: [gone, new, good]}]}, " + same,
			code: cli.ExitError,
			want: []string{"not checked: it is not connected: the agent is away", "not checked: no agent has joined",
				"1 of 3 Clusters are safe"},
			complain: []string{"error: not checked completely: gone, new"},
		},
		"a finding and a member that cannot be reached": {
			spec: "clusterSelector: {matchExpressions: [{key: name, operator: In, values: [gone, good]}]}, " + next,
			code: cli.ExitDenied,
			want: []string{"skips 2 minor versions", "the agent is away"},
		},
		"another version than of Kubernetes": {
			spec: "clusterName: good, version: '2026.1'", code: cli.ExitAllowed,
			complain: []string{"Plan k8s has no checks, because 2026.1 is not a version of Kubernetes."},
		},
		"a channel without a known version": {
			spec: "clusterName: good, channel: 'https://example.com'", code: cli.ExitError,
			complain: []string{"the version of its channel is not known yet"},
		},
		"no member": {
			spec: "clusterName: none, " + same, code: cli.ExitError,
			complain: []string{"check plan k8s: it selects no Cluster of"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			code, out, complaints := f.run(t.Context(), "plan", "check", f.file(t, tt.spec))
			if code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			for _, want := range tt.want {
				if !strings.Contains(out, want) {
					t.Errorf("printed\n%s\nwant %q", out, want)
				}
			}
			for _, want := range tt.complain {
				if !strings.Contains(complaints, want) {
					t.Errorf("complained\n%s\nwant %q", complaints, want)
				}
			}
		})
	}
	t.Run("a node that is not ready, as JSON", func(t *testing.T) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
		node.Status.NodeInfo.KubeletVersion = "v1.36.1"
		member.Apply(t, node)
		code, out, _ := f.run(t.Context(), "plan", "check", f.file(t, "clusterName: good, "+same), "-o", "json")
		var got checked
		if err := json.Unmarshal([]byte(out), &got); err != nil {
			t.Fatal(err)
		}
		if code != cli.ExitDenied || len(got.Items) != 1 || got.Items[0].Cluster != "good" ||
			got.Items[0].Version != "v1.36.9" ||
			len(got.Items[0].Findings) != 1 || got.Items[0].Findings[0].Object != "node/worker" {
			t.Errorf("exit code %d: %+v, want a finding about the node", code, got)
		}
	})
	t.Run("a member that is excluded", func(t *testing.T) {
		file := f.file(t, "clusterSelector: {matchLabels: {env: prod}}, "+same)
		c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: f.workspace, Name: "twin"}}
		testkit.Update(t, testkit.Shared(t).Client, c, func(c *v1.Cluster) {
			c.Labels[v1.PlanLabel("k8s")] = v1.PlanDisabled
		})
		_, _, complaints := f.run(t.Context(), "plan", "check", file)
		if !strings.Contains(complaints, "1/1 good: ") {
			t.Errorf("complained %s, want only the other member to be checked", complaints)
		}
	})
	t.Run("a scenario", func(t *testing.T) {
		code, _, complaints := f.run(t.Context(), "plan", "check", "testdata/scenario.yaml")
		if code != cli.ExitError || !strings.Contains(complaints, "it is a scenario, and has no Clusters to check") {
			t.Errorf("exit code %d: %s, want an error", code, complaints)
		}
	})
}

// A kubeconfig without the address of the hub's proxy may lead to a cluster of another hub with the same name.
func TestACheckedMemberIsTheOneThatJoined(t *testing.T) {
	f, member := newCheckFixture(t)
	hub := testkit.Shared(t)
	way, err := clientcmd.LoadFromFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSuffix(way.Clusters["hub"].Server, cli.PathLocal) + cli.MemberPath(f.workspace, "good")
	f.kubeconfig = testkit.Kubeconfig(t, testkit.Context{Name: "hub", Namespace: f.workspace, Env: hub})
	config, err := clientcmd.LoadFromFile(f.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	config.Clusters["member"] = &clientcmdapi.Cluster{Server: url}
	config.Contexts["member"] = &clientcmdapi.Context{Cluster: "member"}
	if err := clientcmd.WriteToFile(*config, f.kubeconfig); err != nil {
		t.Fatal(err)
	}
	var system corev1.Namespace
	if err := member.Client.Get(t.Context(), client.ObjectKey{Name: metav1.NamespaceSystem}, &system); err != nil {
		t.Fatal(err)
	}
	file := f.file(t, "clusterName: good, version: v1.36.9")
	for uid, want := range map[string]string{
		"another": "it leads to another cluster", string(system.UID): "1 of 1 Clusters are safe",
	} {
		c := &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: f.workspace, Name: "good"}}
		if err := hub.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
			t.Fatal(err)
		}
		c.Status.ClusterUID = uid
		if err := hub.Client.Status().Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		if code, out, complaints := f.run(t.Context(), "plan", "check", file); !strings.Contains(out, want) {
			t.Errorf("exit code %d: %s%s, want %q", code, out, complaints, want)
		}
	}
}

func TestFindingsOfSeveralPlansNameThePlan(t *testing.T) {
	a := &checked{Items: []checkedCluster{{Plan: "a", Cluster: "x"}, {Plan: "b", Cluster: "x", Error: "it is away\x1b"}}}
	want := "PLAN   CLUSTER   CHECK   OBJECT   CAUSE                      REMEDY\n" +
		"a      x                          safe                       -\n" +
		"b      x                          not checked: it is away    correct the cause, and check again\n"
	if got := a.Wide(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := a.Names(); len(got) != 1 || got[0] != "x" {
		t.Errorf("the names are %v, want only x, which is not known to be safe", got)
	}
}
