// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// identitySecret is a Secret as Drover creates it for a Cluster.
func identitySecret(t *testing.T, namespace, cluster, kind, annotations string) *unstructured.Unstructured {
	t.Helper()
	return object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: %s-%s, annotations: {%s}, labels: {cluster.drover.dev/cluster: %s, cluster.drover.dev/secret: %s}}}",
		namespace, cluster, kind, annotations, cluster, kind))
}

// testClusterIdentity checks that a user who may edit a workspace, including its Secrets, cannot impersonate an agent
// that has joined.
func testClusterIdentity(t *testing.T, h *fixture) {
	workspace := h.Workspace(t)
	secrets := may("secrets", "get", "list", "watch", "create", "update", "patch", "delete", "deletecollection") // as Kubernetes' role edit has them
	h.allow(t, "seth", workspace, may("clusters", "get", "create", "update", "patch"), secrets)
	h.allow(t, "rekeyer", workspace, secrets, may("clusters/agent", "delete"))
	h.allow(t, "rekeyer-elsewhere", h.other, may("clusters/agent", "delete"))
	h.allow(t, "rekeyer-elsewhere", workspace, secrets)
	editor, holder, manager := h.as(t, "seth"), h.as(t, "rekeyer"), h.manager(t)
	agent := identitySecret(t, workspace, "joined", "agent", "")
	used := identitySecret(t, workspace, "joined", "registration", "cluster.drover.dev/token-used: abc")
	unused := identitySecret(t, workspace, "awaited", "registration", "")
	unused.Object["stringData"] = map[string]any{"manifest.yaml": "Drover's"}
	plain := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: earlier-agent}}", workspace))
	for _, o := range []client.Object{agent, used, unused, plain} {
		h.Apply(t, o)
	}
	const refusal = "cannot delete clusters/agent joined in namespace"
	for name, try := range map[string]func(client.Client) error{
		"a key that is replaced": func(c client.Client) error {
			return c.Patch(t.Context(), agent.DeepCopy(), merge(`{"stringData":{"public-key":"mine"}}`), client.DryRunAll)
		},
		"a key that is no longer Drover's": func(c client.Client) error {
			return c.Patch(t.Context(), agent.DeepCopy(), merge(`{"metadata":{"labels":null}}`), client.DryRunAll)
		},
		"a key that is revoked": func(c client.Client) error { return c.Delete(t.Context(), agent.DeepCopy(), client.DryRunAll) },
		"a token that is replaced": func(c client.Client) error {
			return c.Delete(t.Context(), used.DeepCopy(), client.DryRunAll)
		},
		"a token that is unused again": func(c client.Client) error {
			return c.Patch(t.Context(), used.DeepCopy(), merge(`{"metadata":{"annotations":null}}`), client.DryRunAll)
		},
		"all Secrets at once": func(c client.Client) error {
			return c.DeleteAllOf(t.Context(), &corev1.Secret{}, client.InNamespace(workspace), client.MatchingLabels{"cluster.drover.dev/cluster": "joined"}, client.DryRunAll)
		},
	} {
		t.Run(name, func(t *testing.T) {
			wantRefused(t, try(editor), "user seth "+refusal)
			wantRefused(t, try(h.as(t, "rekeyer-elsewhere")), refusal)
			wantTaken(t, try(holder))
		})
	}
	for name, patch := range map[string]string{
		"a manifest of their own":          `{"stringData":{"manifest.yaml":"mine"}}`,
		"a command of their own":           `{"stringData":{"command":"mine"}}`,
		"a manifest that goes":             `{"data":null}`,
		"a Secret without our labels":      `{"metadata":{"labels":null}}`,
		"and with a manifest of their own": `{"metadata":{"labels":null},"stringData":{"manifest.yaml":"mine"}}`,
		"a Secret of another kind":         `{"metadata":{"labels":{"cluster.drover.dev/secret":"x"}}}`,
		"a token that lasts":               `{"metadata":{"annotations":{"cluster.drover.dev/token-created":"2099-01-01T00:00:00Z"}}}`,
		"a token of another hash":          `{"metadata":{"annotations":{"cluster.drover.dev/token-hash":"x"}}}`,
		"a token that seems used":          `{"metadata":{"annotations":{"cluster.drover.dev/token-used":"x"}}}`,
		"a Secret that no one can change":  `{"immutable":true}`,
	} {
		t.Run("before an agent has joined, "+name, func(t *testing.T) {
			try := func(c client.Client) error {
				return c.Patch(t.Context(), unused.DeepCopy(), merge("%s", patch), client.DryRunAll)
			}
			wantRefused(t, try(editor), "user seth cannot delete clusters/agent awaited in namespace")
			wantTaken(t, try(holder))
		})
	}
	t.Run("a Secret that becomes a key", func(t *testing.T) {
		become := func(c client.Client) error {
			return c.Patch(t.Context(), plain.DeepCopy(), merge(`{"metadata":{"labels":{"cluster.drover.dev/cluster":"earlier","cluster.drover.dev/secret":"agent"}}}`), client.DryRunAll)
		}
		wantRefused(t, become(editor), "user seth cannot delete clusters/agent earlier")
		wantTaken(t, become(holder))
	})
	for name, labels := range map[string]string{
		"a token that becomes a key":              `{"cluster.drover.dev/secret":"agent"}`,
		"a token of no Cluster":                   `{"cluster.drover.dev/cluster":null}`,
		"a token of another Cluster":              `{"cluster.drover.dev/cluster":"joined"}`,
		"a token that becomes the key of another": `{"cluster.drover.dev/cluster":"joined","cluster.drover.dev/secret":"agent"}`,
		"a token that becomes a Host's":           `{"cluster.drover.dev/host":"awaited","cluster.drover.dev/secret":"host-join"}`,
	} {
		t.Run(name+" has another name", func(t *testing.T) {
			for _, c := range []client.Client{editor, holder} {
				wantRefused(t, c.Patch(t.Context(), unused.DeepCopy(), merge(`{"metadata":{"labels":%s}}`, labels), client.DryRunAll), "such a Secret must have the name <cluster>-registration")
			}
		})
	}
	t.Run("the right for another Cluster of the workspace is not enough", func(t *testing.T) {
		another := may("clusters/agent", "delete")
		another.ResourceNames = []string{"another"}
		h.allow(t, "rekeyer-of-another", workspace, secrets, another)
		other := h.as(t, "rekeyer-of-another")
		wantRefused(t, other.Create(t.Context(), identitySecret(t, workspace, "next", "agent", ""), client.DryRunAll), "cannot delete clusters/agent next")
		wantRefused(t, other.Delete(t.Context(), agent.DeepCopy(), client.DryRunAll), "cannot delete clusters/agent joined")
		wantTaken(t, other.Create(t.Context(), identitySecret(t, workspace, "another", "agent", ""), client.DryRunAll))
	})
	t.Run("to adopt an agent takes all of who the agent is", func(t *testing.T) {
		h.allow(t, "adopter", workspace, secrets, may("clusters/agent", "delete", "update"))
		adopter := h.as(t, "adopter")
		adopted := identitySecret(t, workspace, "adopted", "agent", "")
		adopted.Object["stringData"] = map[string]any{"former-owner-uid": "former", "public-key": "theirs"}
		const refusal = "cannot update clusters/agent"
		for _, c := range []client.Client{holder, manager} {
			made := adopted.DeepCopy()
			made.Object["type"] = "Opaque"
			wantRefused(t, c.Create(t.Context(), made, client.DryRunAll), refusal+" adopted")
			wantRefused(t, c.Patch(t.Context(), agent.DeepCopy(), merge(`{"stringData":{"former-owner-uid":"former"}}`), client.DryRunAll), refusal+" joined")
		}
		wantTaken(t, adopter.Patch(t.Context(), agent.DeepCopy(), merge(`{"stringData":{"former-owner-uid":"former"}}`), client.DryRunAll))
		wantTaken(t, adopter.Create(t.Context(), adopted))
		wantTaken(t, holder.Patch(t.Context(), adopted.DeepCopy(), merge(`{"metadata":{"annotations":{"a":"b"}}}`), client.DryRunAll))
		wantTaken(t, holder.Patch(t.Context(), adopted.DeepCopy(), merge(`{"data":{"former-owner-uid":null}}`), client.DryRunAll))
		wantTaken(t, holder.Delete(t.Context(), adopted.DeepCopy(), client.DryRunAll))
		for _, patch := range []string{`{"stringData":{"public-key":"mine"}}`, `{"stringData":{"owner-uid":"made-again"}}`, `{"stringData":{"former-owner-uid":"another"}}`} {
			wantRefused(t, holder.Patch(t.Context(), adopted.DeepCopy(), merge("%s", patch), client.DryRunAll), refusal+" adopted")
		}
		plain := object(t, fmt.Sprintf("{apiVersion: v1, kind: Secret, metadata: {namespace: %s, name: later-agent}, stringData: {former-owner-uid: former}}", workspace))
		h.Apply(t, plain)
		become := `{"metadata":{"labels":{"cluster.drover.dev/cluster":"later","cluster.drover.dev/secret":"agent"}}}`
		wantRefused(t, holder.Patch(t.Context(), plain.DeepCopy(), merge("%s", become), client.DryRunAll), refusal+" later")
		wantTaken(t, adopter.Patch(t.Context(), plain.DeepCopy(), merge("%s", become), client.DryRunAll))
	})
	for _, kind := range []string{"agent", "registration"} {
		made := identitySecret(t, workspace, "next", kind, "")
		wantRefused(t, editor.Create(t.Context(), made.DeepCopy(), client.DryRunAll), "user seth cannot delete clusters/agent next")
		wantTaken(t, holder.Create(t.Context(), made.DeepCopy(), client.DryRunAll))
		made.Object["type"] = "Opaque"
		wantTaken(t, manager.Create(t.Context(), made, client.DryRunAll))
	}
	wantTaken(t, manager.Patch(t.Context(), agent.DeepCopy(), merge(`{"stringData":{"public-key":"next"}}`), client.DryRunAll))
	t.Run("the token of a Cluster without a joined agent is free", func(t *testing.T) {
		wantTaken(t, editor.Patch(t.Context(), unused.DeepCopy(), merge(`{"metadata":{"annotations":{"a":"b"},"labels":{"a":"b"}}}`), client.DryRunAll))
		wantTaken(t, editor.Delete(t.Context(), unused.DeepCopy(), client.DryRunAll))
	})
	for _, name := range cleaners {
		h.allow(t, name, workspace, secrets)
		wantTaken(t, h.as(t, name).Delete(t.Context(), agent.DeepCopy(), client.DryRunAll))
	}
	wantTaken(t, h.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: workspace}}))
	testkit.Eventually(t, 10*time.Second, func(ctx context.Context) error { // the API server knows the policy a moment later
		return editor.Delete(ctx, agent.DeepCopy(), client.DryRunAll)
	})
}
