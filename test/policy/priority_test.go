// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// testPriority checks the priority levels of requests. The hub's API server serves the manager's own requests, and its
// Lease, at separate levels that requests of other clients cannot fill. Requests that the manager sends on behalf of
// users, by impersonating them, have the users' priority levels.
func testPriority(t *testing.T, h *fixture) {
	for _, o := range manifests(t, "config/manager") {
		if slices.Contains([]string{"FlowSchema", "PriorityLevelConfiguration", "PriorityClass"}, o.GetKind()) {
			h.Apply(t, o)
		}
	}
	const lease = "/apis/coordination.k8s.io/v1/namespaces/drover-system/leases/drover-manager"
	manager := managerUser(t)
	for name, tc := range map[string]struct{ user, path, want string }{
		"what the manager reads":               {manager, "/api/v1/secrets", "drover-manager"},
		"its reviews of tokens":                {manager, "/apis/authentication.k8s.io/v1/tokenreviews", "drover-manager"},
		"its Lease":                            {manager, lease, "drover-leader-election"},
		"Leases elsewhere":                     {manager, "/apis/coordination.k8s.io/v1/namespaces/default/leases/a", "drover-manager"},
		"another account of the namespace":     {"system:serviceaccount:drover-system:default", "/api/v1/secrets", "service-accounts"},
		"an account of that name elsewhere":    {"system:serviceaccount:" + h.workspace + ":drover-manager", "/api/v1/secrets", "service-accounts"},
		"a user, by way of the manager or not": {"alice", lease, "global-default"},
	} {
		t.Run(name, func(t *testing.T) {
			testkit.Eventually(t, 15*time.Second, func(ctx context.Context) error {
				got, err := h.flow(ctx, t, tc.user, tc.path)
				if err == nil && got != tc.want {
					err = fmt.Errorf("it is served by the FlowSchema %q, want %q", got, tc.want)
				}
				return err
			})
		})
	}
	for _, name := range []string{"drover-manager", "drover-leader-election"} {
		schema := &flowcontrolv1.FlowSchema{}
		testkit.Eventually(t, 15*time.Second, func(ctx context.Context) error {
			if err := h.Client.Get(ctx, client.ObjectKey{Name: name}, schema); err != nil {
				return err
			}
			for _, c := range schema.Status.Conditions {
				if c.Type == flowcontrolv1.FlowSchemaConditionDangling && c.Status == flowcontrolv1.ConditionFalse {
					return nil
				}
			}
			return fmt.Errorf("FlowSchema %s has no level: %+v", name, schema.Status.Conditions)
		})
	}
}

// flow returns the name of the FlowSchema that the API server uses for a user's request.
func (h *fixture) flow(ctx context.Context, t *testing.T, user, path string) (string, error) {
	config := rest.CopyConfig(h.Config)
	groups := []string{"system:authenticated"}
	if strings.HasPrefix(user, "system:serviceaccount:") { // as every account is
		groups = append(groups, "system:serviceaccounts")
	}
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, h.Config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	if err := resp.Body.Close(); err != nil {
		return "", err
	}
	all := &flowcontrolv1.FlowSchemaList{}
	if err := h.Client.List(ctx, all); err != nil {
		return "", err
	}
	for i := range all.Items {
		if string(all.Items[i].UID) == resp.Header.Get(flowcontrolv1.ResponseHeaderMatchedFlowSchemaUID) {
			return all.Items[i].Name, nil
		}
	}
	return "", fmt.Errorf("answered %s without the UID of a FlowSchema that there is", resp.Status)
}
