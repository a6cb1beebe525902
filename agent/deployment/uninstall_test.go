// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/agenttest"
)

const (
	namespaces = "/api/v1/namespaces/"
	role       = "/apis/rbac.authorization.k8s.io/v1/clusterroles/drover-agent"
	binding    = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/drover-agent"
)

// installed returns an API server with all objects of the manifest, in a namespace.
func installed(t *testing.T, namespace string) *agenttest.APIServer {
	t.Helper()
	api := agenttest.NewAPIServer(t)
	api.Put(t, namespaces+namespace, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	for _, path := range []string{role, binding} {
		api.Put(t, path, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "drover-agent"}})
	}
	for _, name := range []string{protocol.RegistrationSecret, protocol.IdentitySecret} {
		api.Put(t, namespaces+namespace+"/secrets/"+name,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}})
	}
	return api
}

// ask uninstalls, and returns the remaining objects and whether the agent should end.
func ask(t *testing.T, api *agenttest.APIServer, namespace string) (remaining []string, done bool) {
	t.Helper()
	client, err := kube.New(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	h := deployment.NewUninstaller(deployment.UninstallOptions{Client: client.REST, Namespace: namespace,
		Log: logr.Discard()})
	for range 2 { // a second request does no harm
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, protocol.PathUninstall, nil).WithContext(t.Context()))
		var result protocol.UninstallResult
		if err := json.Unmarshal(answer.Body.Bytes(), &result); err != nil || answer.Code != http.StatusOK {
			t.Fatalf("uninstall: got %d %s: %v, want 200 with a result", answer.Code, answer.Body, err)
		}
		remaining = result.Remaining
	}
	select {
	case <-h.Done():
		return remaining, true
	default:
		return remaining, false
	}
}

func owner(t *testing.T, api *agenttest.APIServer, path string) string {
	t.Helper()
	raw, err := json.Marshal(api.Get(path))
	if err != nil {
		t.Fatal(err)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &o); err != nil || len(o.OwnerReferences) != 1 {
		t.Fatalf("%s: got %s and the error %v, want one owner", path, raw, err)
	}
	r := o.OwnerReferences[0]
	return fmt.Sprintf("%s %s %s", r.APIVersion, r.Kind, r.Name)
}

func TestUninstall(t *testing.T) {
	t.Parallel()
	t.Run("Secrets and namespace are deleted at once, roles with the namespace", func(t *testing.T) {
		t.Parallel()
		api := installed(t, "drover-agent")
		// There is no garbage collector that removes the roles, so the test can read them.
		remaining, done := ask(t, api, "drover-agent")
		if len(remaining) > 0 || !done {
			t.Fatalf("got the remaining objects %q and done %t, want none and true", remaining, done)
		}
		if api.Get(namespaces+"drover-agent") != nil ||
			api.Get(namespaces+"drover-agent/secrets/"+protocol.IdentitySecret) != nil {
			t.Error("the namespace or the identity still exists, want both deleted")
		}
		for i, step := range []string{"PATCH " + role, "PATCH " + binding, "DELETE " + namespaces + "drover-agent"} {
			if at := slices.Index(api.Seen(), step); at < 0 || i > 0 && at < slices.Index(api.Seen(), "PATCH "+role) {
				t.Errorf("got %s at %d of %q, want another order", step, at, api.Seen())
			}
		}
	})

	t.Run("owner references name the namespace, so that the garbage collector finds them", func(t *testing.T) {
		t.Parallel()
		api := installed(t, "drover-agent")
		api.Hook = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodDelete {
				return false
			}
			http.Error(w, `{"kind":"Status","apiVersion":"v1","code":403,"reason":"Forbidden","message":"no"}`,
				http.StatusForbidden)
			return true
		}
		remaining, done := ask(t, api, "drover-agent")
		for _, path := range []string{role, binding} {
			if got := owner(t, api, path); got != "v1 Namespace drover-agent" {
				t.Errorf("got %s with the owner %s, want the namespace", path, got)
			}
		}
		if done || len(remaining) != 4 || !strings.HasPrefix(remaining[3], "Namespace drover-agent: ") {
			t.Errorf("remaining %q, done %t: the agent must stay while something is left", remaining, done)
		}
	})

	t.Run("a namespace that an operator chose is kept", func(t *testing.T) {
		t.Parallel()
		api := installed(t, "ops")
		remaining, done := ask(t, api, "ops")
		if len(remaining) > 0 || !done || api.Get(namespaces+"ops") == nil {
			t.Errorf("remaining %q, done %t, namespace %v", remaining, done, api.Get(namespaces+"ops"))
		}
		if api.Get(binding) != nil || api.Get(namespaces+"ops/secrets/"+protocol.IdentitySecret) != nil {
			t.Error("the binding or the identity still exists, want both deleted")
		}
	})

	t.Run("node agents are deleted before the agent's identity", func(t *testing.T) {
		t.Parallel()
		for _, namespace := range []string{"drover-agent", "ops"} {
			api, nodes := installed(t, namespace), "/apis/apps/v1/namespaces/"+namespace+"/daemonsets/"+protocol.NodeAgentName
			api.Put(t, nodes,
				&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: protocol.NodeAgentName, Namespace: namespace}})
			if remaining, done := ask(t, api, namespace); len(remaining) > 0 || !done || api.Get(nodes) != nil {
				t.Errorf("in %s: remaining %q, done %t, DaemonSet %v, want none", namespace, remaining, done, api.Get(nodes))
			}
			first, then := slices.Index(api.Seen(), "DELETE "+nodes),
				slices.Index(api.Seen(), "DELETE "+namespaces+namespace+"/secrets/"+protocol.IdentitySecret)
			if first < 0 || then < first {
				t.Errorf("in %s: node agents were deleted at %d and the identity at %d, want the identity last", namespace, first,
					then)
			}
		}
	})

	t.Run("missing objects are not an error", func(t *testing.T) {
		t.Parallel()
		if remaining, done := ask(t, agenttest.NewAPIServer(t), "drover-agent"); len(remaining) > 0 || !done {
			t.Errorf("got the remaining objects %q and done %t, want none and true", remaining, done)
		}
	})

	t.Run("other methods than POST are refused", func(t *testing.T) {
		t.Parallel()
		answer := httptest.NewRecorder()
		deployment.NewUninstaller(deployment.UninstallOptions{Namespace: "x", Log: logr.Discard()}).ServeHTTP(answer,
			httptest.NewRequest(http.MethodGet, protocol.PathUninstall, nil))
		if answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("got the code %d, want 405", answer.Code)
		}
	})
}

func TestDeliveredObjectsAreRemovedFirst(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sets     func(context.Context) ([]string, error)
		code     int
		contains string
	}{
		"another replica leads": {func(context.Context) ([]string, error) {
			return nil,
				deployment.ErrNotLeading
		}, http.StatusMisdirectedRequest, "leads"},
		"remaining objects of sets keep the agent": {func(context.Context) ([]string,
			error) {
			return []string{"ClusterRole x: why"}, nil
		}, http.StatusOK, "ClusterRole x"},
		"a failure keeps the agent": {func(context.Context) ([]string, error) { return nil, errors.New("no way") },
			http.StatusOK, "no way"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := installed(t, protocol.AgentNamespace)
			client, err := kube.New(api.Config())
			if err != nil {
				t.Fatal(err)
			}
			h := deployment.NewUninstaller(deployment.UninstallOptions{Client: client.REST, Namespace: protocol.AgentNamespace,
				Sets: tc.sets, Log: logr.Discard()})
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodPost, protocol.PathUninstall, nil))
			if answer.Code != tc.code || !strings.Contains(answer.Body.String(), tc.contains) {
				t.Errorf("got %d %s, want another code or text", answer.Code, answer.Body)
			}
			if api.Get(namespaces+protocol.AgentNamespace) == nil || api.Get(role) == nil {
				t.Error("the agent's own objects were deleted, want them kept")
			}
		})
	}
}
