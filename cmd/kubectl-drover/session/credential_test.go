// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clientauthenticationv1 "k8s.io/client-go/pkg/apis/clientauthentication/v1"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// A user who may write ClusterProfiles must not get tokens of the tools that read them.
func TestATokenIsMadeOnlyForTheAddressThatItIsSentTo(t *testing.T) {
	const member = "https://hub.example.com/k8s/clusters/team/web"
	var asked []authenticationv1.TokenRequestSpec
	user := "system:serviceaccount:argocd:argocd-application-controller"
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/apis/authentication.k8s.io/v1/selfsubjectreviews":
			_ = json.NewEncoder(w).Encode(authenticationv1.SelfSubjectReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"},
				Status: authenticationv1.SelfSubjectReviewStatus{UserInfo: authenticationv1.UserInfo{Username: user}}})
		case "/api/v1/namespaces/argocd/serviceaccounts/argocd-application-controller/token":
			raw, _ := io.ReadAll(r.Body)
			request := &authenticationv1.TokenRequest{}
			if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(raw, nil, request); err != nil {
				t.Error(err)
			}
			request.TypeMeta = metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
			asked = append(asked, request.Spec)
			request.Status.Token = "t-" + strings.Join(request.Spec.Audiences, ",")
			_ = json.NewEncoder(w).Encode(request)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(hub.Close)
	kubeconfig := filepath.Join(t.TempDir(), "config")
	content := fmt.Sprintf("{apiVersion: v1, kind: Config, current-context: hub, contexts: [{name: hub, context: {cluster: hub, user: me}}], clusters: [{name: hub, cluster: {server: %q}}], users: [{name: me, user: {token: mine}}]}", hub.URL)
	if err := os.WriteFile(kubeconfig, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		user, cluster string
		want          string // audience
		problem       string
	}{
		"the profile's audience":          {user, `{"server": "` + member + `", "config": {"audience": "` + member + `"}}`, member, ""},
		"no audience":                     {user, `{"server": "` + member + `"}`, member, ""},
		"an audience of another cluster":  {user, `{"server": "https://evil.example.com/", "config": {"audience": "` + member + `"}}`, "", "they must be the same"},
		"a server that is not verified":   {user, `{"server": "` + member + `", "insecure-skip-tls-verify": true}`, "", "only sent to verified servers"},
		"a proxy of the profile's writer": {user, `{"server": "` + member + `", "proxy-url": "http://evil.example.com:3128"}`, "", "proxy-url"},
		"a name of the profile's writer":  {user, `{"server": "` + member + `", "tls-server-name": "evil.example.com"}`, "", "tls-server-name"},
		"the hub, which is all clusters":  {user, `{"server": "https://hub.example.com"}`, "", "not the address of a cluster"},
		"the hub with a slash":            {user, `{"server": "https://hub.example.com/", "config": {"audience": "https://hub.example.com/"}}`, "", "not the address of a cluster"},
		"the hub's own API":               {user, `{"server": "https://hub.example.com/k8s/local"}`, "", "not the address of a cluster"},
		"a path in a cluster":             {user, `{"server": "` + member + `/api"}`, "", "not the address of a cluster"},
		"a path that leads out":           {user, `{"server": "https://hub.example.com/k8s/clusters/team/.."}`, "", "not the address of a cluster"},
		"an escape in the path":           {user, `{"server": "https://hub.example.com/k8s/clusters/team%2fweb"}`, "", "not the address of a cluster"},
		"a query":                         {user, `{"server": "` + member + `?x"}`, "", "not the address of a cluster"},
		"no TLS":                          {user, `{"server": "http://hub.example.com/k8s/clusters/team/web"}`, "", "not the address of a cluster"},
		"the audience of API servers":     {user, `{"server": "https://kubernetes.default.svc"}`, "", "not the address of a cluster"},
		"a slash at the end":              {user, `{"server": "` + member + `/"}`, member + "/", ""},
		"no cluster":                      {user, `null`, "", "provideClusterInfo"},
		"a user who is no ServiceAccount": {"alice", `{"server": "` + member + `"}`, "", "alice is not a ServiceAccount"},
	} {
		t.Run(name, func(t *testing.T) {
			asked, user = nil, tt.user
			t.Setenv(execInfo, `{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": {"interactive": false, "cluster": `+tt.cluster+`}}`)
			var out, complaints strings.Builder
			code := run(t.Context(), []string{"credential", "--service-account", "--kubeconfig", kubeconfig}, &out, &complaints)
			if tt.problem != "" {
				if code != cli.ExitError || !strings.Contains(complaints.String(), tt.problem) || len(asked) != 0 || out.Len() != 0 {
					t.Errorf("code %d, %q, %d tokens asked for; want the problem %q and none", code, complaints.String(), len(asked), tt.problem)
				}
				return
			}
			var got clientauthenticationv1.ExecCredential
			if err := json.Unmarshal([]byte(out.String()), &got); code != 0 || err != nil || got.Status == nil || got.Status.Token != "t-"+tt.want {
				t.Fatalf("code %d, %q %s; want a token for %s", code, out.String(), complaints.String(), tt.want)
			}
			if len(asked) != 1 || *asked[0].ExpirationSeconds != 600 {
				t.Errorf("asked for %+v, want one of 10 minutes", asked)
			}
		})
	}
}

func TestATokenOfAUserGoesToTheirHubOnly(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	for name, tt := range map[string]struct{ hub, server, problem string }{
		"a cluster of the hub, by another way to write it": {"https://HUB.example.com:443/", "https://hub.example.com/k8s/clusters/team/web", `run "kubectl drover login https://hub.example.com"`},
		"a cluster of another hub":                         {"https://hub.example.com", "https://hub.example.com.evil/k8s/clusters/team/web", "your tokens are not sent there"},
		"no hub":                                           {"hub.example.com:x", "https://hub.example.com/k8s/clusters/team/web", "https"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(execInfo, `{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "spec": {"interactive": false, "cluster": {"server": "`+tt.server+`"}}}`)
			var out, complaints strings.Builder
			if code := run(t.Context(), []string{"credential", "--hub", tt.hub}, &out, &complaints); code != cli.ExitError || !strings.Contains(complaints.String(), tt.problem) || out.Len() != 0 {
				t.Errorf("code %d, %q; want %q", code, complaints.String(), tt.problem)
			}
		})
	}
}
