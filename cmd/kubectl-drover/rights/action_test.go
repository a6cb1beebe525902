// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rights

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
)

func TestPrincipalsHaveTheGroupsOfTheirName(t *testing.T) {
	tests := map[string]struct {
		name   string
		kind   v1.SubjectKind
		groups []string
		want   []string
		err    string
	}{
		"a user of a provider":           {"github:alice", "User", nil, []string{"system:authenticated"}, ""},
		"named groups come first":        {"github:alice", "User", []string{"github:acme/web"}, []string{"github:acme/web", "system:authenticated"}, ""},
		"a user of the hub":              {"hub:carol", "User", nil, []string{"hub:system:authenticated", "system:authenticated"}, ""},
		"a ServiceAccount of the hub":    {"hub:system:serviceaccount:ci:deployer", "User", nil, []string{"hub:system:serviceaccounts", "hub:system:serviceaccounts:ci", "hub:system:authenticated", "system:authenticated"}, ""},
		"one of the member is no hub's":  {"system:serviceaccount:ci:deployer", "User", nil, []string{"system:authenticated"}, ""},
		"a group has no groups":          {"github:acme/web", "Group", nil, nil, ""},
		"a group cannot be in one":       {"github:acme/web", "Group", []string{"x"}, nil, "omit --group or --kind"},
		"an empty name":                  {"", "User", nil, nil, "NAME is empty"},
		"a ServiceAccount is a user too": {"x", "ServiceAccount", nil, nil, "use User or Group"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := newPrincipal(tt.name, tt.kind, tt.groups)
			if !said(err, tt.err) || err == nil && !slices.Equal(got.Groups, tt.want) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// said reports whether an error contains a text; "" means no error.
func said(err error, want string) bool {
	if want == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), want)
}

func TestActionsAreReadAsKubectlReadsThem(t *testing.T) {
	known := meta.NewDefaultRESTMapper(nil)
	known.Add(schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, meta.RESTScopeNamespace)
	known.Add(schema.GroupVersionKind{Version: "v1", Kind: "Node"}, meta.RESTScopeRoot)
	known.Add(schema.GroupVersionKind{Version: "v1", Kind: "Namespace"}, meta.RESTScopeRoot)
	known.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}, meta.RESTScopeNamespace)
	mapper := meta.ToRESTMapperWithContext(known)
	tests := map[string]struct {
		verb, what string
		flags      options
		mapper     meta.RESTMapperWithContext
		want       access.Action
		text       string
		remark     string
		err        string
	}{
		"a resource in a namespace":             {"get", "pods", options{namespace: "web"}, mapper, access.Action{Verb: "get", Resource: "pods", Namespace: "web"}, "get pods in namespace web of cluster prod", "", ""},
		"the singular":                          {"Get", "Deployment", options{}, mapper, access.Action{Verb: "get", Group: "apps", Resource: "deployments"}, "get deployments.apps in all namespaces of cluster prod", "", ""},
		"resource, version and group":           {"get", "deployments.v1.apps", options{}, mapper, access.Action{Verb: "get", Group: "apps", Resource: "deployments"}, "get deployments.apps in all namespaces of cluster prod", "", ""},
		"one object's subresource":              {"get", "pods/web-0", options{namespace: "web", subresource: "log"}, mapper, access.Action{Verb: "get", Resource: "pods/log", Name: "web-0", Namespace: "web"}, "get pods/log web-0 in namespace web of cluster prod", "", ""},
		"a subresource of another group":        {"update", "deployments.apps", options{namespace: "web", subresource: "scale"}, mapper, access.Action{Verb: "update", Group: "apps", Resource: "deployments/scale", Namespace: "web"}, "update deployments.apps/scale in namespace web of cluster prod", "", ""},
		"what is in no namespace":               {"get", "nodes", options{namespace: "web"}, mapper, access.Action{Verb: "get", Resource: "nodes"}, "get nodes in cluster prod", "are not namespaced", ""},
		"a namespace counts as one within":      {"get", "namespaces/web", options{}, mapper, access.Action{Verb: "get", Resource: "namespaces", Name: "web", Namespace: "web"}, "get namespaces web in namespace web of cluster prod", "", ""},
		"an unknown resource is taken as it is": {"get", "routes.example.com", options{namespace: "web"}, mapper, access.Action{Verb: "get", Group: "example.com", Resource: "routes", Namespace: "web"}, "get routes.example.com in namespace web of cluster prod", "does not know the resource type", ""},
		"without an API server":                 {"get", "pods", options{}, nil, access.Action{Verb: "get", Resource: "pods"}, "get pods in cluster prod", "", ""},
		"everything":                            {"*", "*", options{}, mapper, access.Action{Verb: "*", Resource: "*"}, "* * in cluster prod", "", ""},
		"a URL":                                 {"get", "/metrics", options{}, mapper, access.Action{Verb: "get", URL: "/metrics"}, "get /metrics in cluster prod", "", ""},
		"to act as an account":                  {"impersonate", "serviceaccounts/x", options{namespace: "web"}, nil, access.Action{Verb: "impersonate", Resource: "serviceaccounts", Name: "x", Namespace: "web"}, "impersonate serviceaccounts x in namespace web of cluster prod", "", ""},
		"to act as the agent":                   {"impersonate", "serviceaccounts/drover-agent", options{namespace: "drover-agent"}, nil, access.Action{Verb: "impersonate", Resource: "serviceaccounts", Name: "drover-agent", Namespace: "drover-agent"}, "impersonate serviceaccounts drover-agent in namespace drover-agent of cluster prod", "no one may act as a ServiceAccount", ""},
		"to act as the system":                  {"impersonate", "users/system:admin", options{}, nil, access.Action{Verb: "impersonate", Resource: "users", Name: "system:admin"}, "impersonate users system:admin in cluster prod", "ask about serviceaccounts", ""},
		"a URL is in no namespace":              {"get", "/metrics", options{namespace: "web"}, mapper, access.Action{}, "", "", "omit --namespace and --subresource"},
		"too many parts":                        {"get", "pods/web-0/log", options{}, mapper, access.Action{}, "", "", "--subresource for a subresource"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, remarks, err := parseAction(t.Context(), tt.verb, tt.what, &tt.flags, tt.mapper)
			if !said(err, tt.err) {
				t.Fatal(err)
			}
			if tt.err != "" {
				return
			}
			if got.Action != tt.want || got.String()+" "+got.in("prod") != tt.text {
				t.Errorf("got %+v: %s %s", got.Action, got, got.in("prod"))
			}
			if all := strings.Join(remarks, "\n"); tt.remark == "" && all != "" || !strings.Contains(all, tt.remark) {
				t.Errorf("remarks: %s", all)
			}
		})
	}
}
