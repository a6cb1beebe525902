// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// memberWithLogs serves the pods of an agent and their logs below a path.
func memberWithLogs(t *testing.T, path string, pods ...string) string {
	t.Helper()
	mux := http.NewServeMux()
	base := path + "/api/v1/namespaces/drover-agent/pods"
	mux.HandleFunc("GET "+base, func(w http.ResponseWriter, r *http.Request) {
		if got := r.URL.Query().Get("labelSelector"); got != agentPods {
			t.Errorf("the pods %q were listed, want %q", got, agentPods)
		}
		list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
		for _, name := range pods {
			list.Items = append(list.Items, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	})
	mux.HandleFunc("GET "+base+"/{name}/log", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "first %s\nlast %s\x1b[2J", r.PathValue("name"), r.URL.RawQuery)
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"},
			Status: "Failure", Reason: metav1.StatusReasonForbidden, Code: http.StatusForbidden, Message: "not allowed"})
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

func TestLogsOfAnAgent(t *testing.T) {
	const direct = "logs agent --member-context member "
	for name, tt := range map[string]struct {
		args     string
		pods     []string
		path     string // at which the server has the member
		want     []string
		complain string
	}{
		"directly, from one pod": {
			args: direct + "--tail 5", pods: []string{"a"}, want: []string{"first a", `last tailLines=5\u001b[2J`},
		},
		"from several pods, with their names": {
			args: direct + "--tail -1 --previous --since 10m", pods: []string{"a", "b"},
			want: []string{"[a] first a", `[a] last previous=true&sinceSeconds=600\u001b[2J`, "[b] first b",
				`[b] last previous=true&sinceSeconds=600\u001b[2J`},
		},
		"through the hub": {
			args: "logs agent -c prod -w team --tail 1", pods: []string{"a"}, path: "/k8s/clusters/team/prod",
			want: []string{"first a", `last tailLines=1\u001b[2J`},
		},
		"with its workspace in the name": {
			args: "logs agent -c team/prod --tail 1", pods: []string{"a"}, path: "/k8s/clusters/team/prod",
			want: []string{"first a", `last tailLines=1\u001b[2J`},
		},
		"without the right":            {args: direct, path: "/elsewhere", complain: "you may not list the pods of the agent"},
		"without a pod":                {args: direct, complain: "has no pod of an agent"},
		"without a Cluster":            {args: "logs agent", complain: "set either --cluster"},
		"with a Cluster and a context": {args: direct + "-c prod", complain: "set either --cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			url := memberWithLogs(t, tt.path, tt.pods...)
			config := clientcmdapi.NewConfig()
			config.CurrentContext = "hub"
			for name, server := range map[string]string{"hub": url + cli.PathLocal, "member": url} {
				config.Clusters[name] = &clientcmdapi.Cluster{Server: server}
				config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
			}
			if err := cli.SetMark(config, "hub", cli.Mark{Selected: time.Now(), URL: url}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "config")
			if err := clientcmd.WriteToFile(*config, file); err != nil {
				t.Fatal(err)
			}
			var out, complaints strings.Builder
			args := append([]string{"--kubeconfig", file}, strings.Fields(tt.args)...)
			code := cli.Run(t.Context(), "v1", func(o *cli.Options) []*cobra.Command {
				return []*cobra.Command{NewLogs(o)}
			}, args, &out, &complaints)
			got := strings.Split(strings.TrimSpace(out.String()), "\n")
			slices.Sort(got)
			if tt.complain != "" {
				if code != cli.ExitError || !strings.Contains(complaints.String(), tt.complain) {
					t.Errorf("exit code %d: %s, want %q", code, &complaints, tt.complain)
				}
			} else if code != 0 || !slices.Equal(got, tt.want) {
				t.Errorf("exit code %d: %s\nprinted %q\nwant    %q", code, &complaints, got, tt.want)
			}
		})
	}
}
