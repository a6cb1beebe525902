// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package deployment_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"

	"github.com/drover-dev/drover/agent/deployment"
	"github.com/drover-dev/drover/agent/kube"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
	"github.com/drover-dev/drover/test/testkit/member"
)

// TestUninstallNamesTheAPIsThatBlockTheNamespacesDeletion runs against a real API server, with the agent's own
// account.
func TestUninstallNamesTheAPIsThatBlockTheNamespacesDeletion(t *testing.T) {
	t.Parallel()
	m := member.Start(t)
	m.Apply(t, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1.gone.example.com"},
		"spec": map[string]any{
			"group": "gone.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true, "service": map[string]any{"namespace": "default", "name": "gone"},
		},
	}})
	client, err := kube.New(rest.CopyConfig(m.Agent))
	if err != nil {
		t.Fatal(err)
	}
	h := deployment.NewUninstaller(deployment.UninstallOptions{Client: client.REST, Namespace: protocol.AgentNamespace,
		Log: logr.Discard()})
	// The API server takes a moment to notice the APIService.
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, httptest.NewRequest(http.MethodPost, protocol.PathUninstall, nil).WithContext(t.Context()))
		var result protocol.UninstallResult
		if err := json.Unmarshal(answer.Body.Bytes(), &result); err != nil {
			return fmt.Errorf("%d %s: %w", answer.Code, answer.Body, err)
		}
		if !slices.Equal(result.Stale, []string{"gone.example.com/v1"}) {
			return fmt.Errorf("got the result %+v, want gone.example.com/v1 in it", result)
		}
		return nil
	})
}
