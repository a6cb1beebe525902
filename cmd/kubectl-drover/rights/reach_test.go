// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// A user who may not read the UID of kube-system only gets answers from a member that the hub in question serves.
func TestAMemberOfAnotherHubIsNotAsked(t *testing.T) {
	member := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,` +
			`"details":{"kind":"namespaces"}}`))
	}))
	defer member.Close()
	const unsure = "may lead to another cluster"
	for name, tt := range map[string]struct{ proxy, memberContext, problem string }{
		"the same hub":                           {proxy: member.URL},
		"the same hub, by --member-context":      {proxy: member.URL, memberContext: "prod"},
		"another hub":                            {proxy: "https://other.example.com", problem: cli.ErrNoWay.Error()},
		"another hub, by --member-context":       {proxy: "https://other.example.com", memberContext: "prod", problem: unsure},
		"a hub whose proxy is not known":         {problem: unsure},
		"an unknown proxy, and --member-context": {memberContext: "prod", problem: unsure},
	} {
		t.Run(name, func(t *testing.T) {
			config := clientcmdapi.NewConfig()
			config.CurrentContext = "hub"
			config.Clusters["hub"] = &clientcmdapi.Cluster{Server: "https://10.0.0.1:6443"}
			config.Clusters["prod"] = &clientcmdapi.Cluster{Server: member.URL + cli.MemberPath("team-a", "prod")}
			for name := range config.Clusters {
				config.Contexts[name] = &clientcmdapi.Context{Cluster: name}
			}
			file := filepath.Join(t.TempDir(), "config")
			if err := cli.SetMark(config, "hub", cli.Mark{Selected: time.Now(), URL: tt.proxy}); err != nil {
				t.Fatal(err)
			}
			if err := clientcmd.WriteToFile(*config, file); err != nil {
				t.Fatal(err)
			}
			loading := &clientcmd.ClientConfigLoadingRules{ExplicitPath: file}
			o := &options{Options: &cli.Options{Loading: loading}, cluster: "prod", memberContext: tt.memberContext}
			g := &gathered{cluster: &v1.Cluster{}}
			g.cluster.Status.ClusterUID = "uid"
			g.cluster.Status.Conditions = []metav1.Condition{{Type: v1.ConditionConnected, Status: metav1.ConditionTrue}}
			_, err := o.reach(t.Context(), &cli.Hub{Workspace: "team-a"}, g)
			if !said(err, tt.problem) {
				t.Errorf("the error is %v, want %q", err, tt.problem)
			}
		})
	}
}
