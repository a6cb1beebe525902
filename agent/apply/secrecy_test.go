// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"bytes"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/agenttest"
)

func TestNoErrorQuotesASecret(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	t.Run("CVE-2023-22649, CVE-2025-23216: an admission webhook's message about a Secret is not passed on",
		func(t *testing.T) {
			said := errors.New(`denied the request: {"data":{"password":"` + password + `"}}`)
			for _, err := range []error{
				apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "registry", said),
				apierrors.NewBadRequest(said.Error()), apierrors.NewInternalError(said),
			} {
				phase, message := explain(ref{kindSecret, "web", "registry"}, err)
				if phase != protocol.SetFailed || strings.Contains(message, password) {
					t.Errorf("got %s: %s, want Failed without the password", phase, message)
				}
			}
		})
	t.Run("CVE-2023-22649: its message is not passed on when everything is removed", func(t *testing.T) {
		said := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "registry", errors.New(password))
		refusing := agenttest.Client(t,
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { agenttest.Answer(w, said) }))
		leadership := newLeadership(t.Context(),
			Options{Objects: refusing.Objects(), Secrets: refusing.Secrets(protocol.AgentNamespace), Now: time.Now})
		leadership.cache.wrote(ref{kindSecret, "web", "registry"},
			&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Namespace: "web", Name: "registry", UID: "1", ResourceVersion: "1",
				Labels:        map[string]string{v1.LabelSet: "secrets.web"},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: fieldManager, Operation: metav1.ManagedFieldsOperationApply}},
			}})
		remaining := leadership.removeAll(t.Context())
		if len(remaining) != 1 || !strings.Contains(remaining[0], "Secret web/registry: ") ||
			!strings.Contains(remaining[0], "(Forbidden)") || strings.Contains(remaining[0], password) {
			t.Errorf("got the remaining objects %v, want the Secret with the reason Forbidden, without the password", remaining)
		}
	})
	t.Run("CVE-2024-58269: the content of a stored set that cannot be read is not passed on", func(t *testing.T) {
		stored := []byte(`{"id":"secrets/web","content":{"objects":[{"data":{"password":"` + password + `"}}]}}`)
		_, err := join(secretOf(firstName("secrets/web"), map[string][]byte{keySet: stored, keyParts: []byte("1")}), nil)
		if err == nil || strings.Contains(err.Error(), password) {
			t.Error(err)
		}
	})
}

func TestStoredSetThatWasChangedIsNotAppliedAgain(t *testing.T) {
	t.Parallel()
	sent, err := set.New("guards", nil, set.Content{})
	if err != nil {
		t.Fatal(err)
	}
	stored := func(raw []byte) *corev1.Secret {
		return secretOf(firstName(sent.ID),
			map[string][]byte{keySet: raw, keyDigest: []byte(sent.Digest), keyParts: []byte("1")})
	}
	if _, err := join(stored(sent.JSON()), nil); err != nil {
		t.Errorf("reading a set as it was sent: got the error %v, want none", err)
	}
	changed := bytes.Replace(sent.JSON(), []byte(`"content":{}`), []byte(`"content":{"perNamespace":{"project":"mine"}}`),
		1)
	if _, err := join(stored(changed), nil); err == nil {
		t.Error("got no error for a changed set, want one: the hub would take it for the set that it sent")
	}
}

// FuzzStoredSet checks that reading any Secret of the agent's namespace neither crashes nor returns an incomplete set.
func FuzzStoredSet(f *testing.F) {
	f.Add([]byte(`{"id":"guards","digest":"x","content":{}}`), "x", "1")
	f.Add([]byte("\x1f\x8b\x08\x00"), "", "2")
	f.Add([]byte(`{"id":"crtb/a","content":{"objects":[null,{"kind":"Secret"}]}}`), "d", "-1")
	f.Fuzz(func(t *testing.T, raw []byte, digest, parts string) {
		first := secretOf("set.guards", map[string][]byte{keySet: raw, keyDigest: []byte(digest), keyParts: []byte(parts)})
		one, err := join(first, map[string]*corev1.Secret{first.Name: first})
		if err != nil {
			return
		}
		if _, _, invalid := set.Parse(one.set.JSON()); invalid != nil || one.set.ID != "guards" {
			t.Errorf("got the set %+v, want a valid set or an error", one.set)
		}
	})
}
