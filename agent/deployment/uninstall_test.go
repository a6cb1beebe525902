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

// installed is an API server with all that the manifest brings, in a namespace.
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

// ask uninstalls and returns what remains and whether the agent should end.
func ask(t *testing.T, api *agenttest.APIServer, namespace string) (remaining []string, done bool) {
	t.Helper()
	client, err := kube.New(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	h := deployment.NewUninstaller(deployment.UninstallOptions{Client: client.REST, Namespace: namespace,
		Log: logr.Discard()})
	for range 2 { // asking twice is no harm
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, protocol.PathUninstall, nil).WithContext(t.Context()))
		var result protocol.UninstallResult
		if err := json.Unmarshal(answer.Body.Bytes(), &result); err != nil || answer.Code != http.StatusOK {
			t.Fatalf("uninstall: %d %s: %v, want 200 with a result", answer.Code, answer.Body, err)
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
		t.Fatalf("%s: %s, %v, want one owner", path, raw, err)
	}
	r := o.OwnerReferences[0]
	return fmt.Sprintf("%s %s %s", r.APIVersion, r.Kind, r.Name)
}

func TestUninstall(t *testing.T) {
	t.Parallel()
	t.Run("roles go with the namespace, secrets and namespace go now", func(t *testing.T) {
		t.Parallel()
		api := installed(t, "drover-agent")
		// The garbage collector is not there to remove them, so they stay and can be looked at.
		remaining, done := ask(t, api, "drover-agent")
		if len(remaining) > 0 || !done {
			t.Fatalf("remaining %q, done %t", remaining, done)
		}
		if api.Get(namespaces+"drover-agent") != nil ||
			api.Get(namespaces+"drover-agent/secrets/"+protocol.IdentitySecret) != nil {
			t.Error("namespace or identity is still there")
		}
		for i, step := range []string{"PATCH " + role, "PATCH " + binding, "DELETE " + namespaces + "drover-agent"} {
			if at := slices.Index(api.Seen(), step); at < 0 || i > 0 && at < slices.Index(api.Seen(), "PATCH "+role) {
				t.Errorf("%s came at %d of %q", step, at, api.Seen())
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
				t.Errorf("%s belongs to %s", path, got)
			}
		}
		if done || len(remaining) != 4 || !strings.HasPrefix(remaining[3], "Namespace drover-agent: ") {
			t.Errorf("remaining %q, done %t: the agent must stay while something is left", remaining, done)
		}
	})

	t.Run("a namespace that an operator chose stays", func(t *testing.T) {
		t.Parallel()
		api := installed(t, "ops")
		remaining, done := ask(t, api, "ops")
		if len(remaining) > 0 || !done || api.Get(namespaces+"ops") == nil {
			t.Errorf("remaining %q, done %t, namespace %v", remaining, done, api.Get(namespaces+"ops"))
		}
		if api.Get(binding) != nil || api.Get(namespaces+"ops/secrets/"+protocol.IdentitySecret) != nil {
			t.Error("binding or identity is still there")
		}
	})

	t.Run("node agents go before the agent's identity", func(t *testing.T) {
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
				t.Errorf("in %s they went at %d, and the identity at %d", namespace, first, then)
			}
		}
	})

	t.Run("nothing there is fine", func(t *testing.T) {
		t.Parallel()
		if remaining, done := ask(t, agenttest.NewAPIServer(t), "drover-agent"); len(remaining) > 0 || !done {
			t.Errorf("remaining %q, done %t", remaining, done)
		}
	})

	t.Run("it is asked for with POST", func(t *testing.T) {
		t.Parallel()
		answer := httptest.NewRecorder()
		deployment.NewUninstaller(deployment.UninstallOptions{Namespace: "x", Log: logr.Discard()}).ServeHTTP(answer,
			httptest.NewRequest(http.MethodGet, protocol.PathUninstall, nil))
		if answer.Code != http.StatusMethodNotAllowed {
			t.Errorf("got %d", answer.Code)
		}
	})
}

func TestWhatWasDeliveredGoesFirst(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		sets     func(context.Context) ([]string, error)
		code     int
		contains string
	}{
		"another replica that leads is to be asked": {func(context.Context) ([]string, error) {
			return nil,
				deployment.ErrNotLeading
		}, http.StatusMisdirectedRequest, "leads"},
		"what is left of sets keeps the agent": {func(context.Context) ([]string,
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
				t.Error("the agent's own objects are gone")
			}
		})
	}
}
