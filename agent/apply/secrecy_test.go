// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/drover-dev/drover/internal/expansion"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestNoErrorQuotesASecret(t *testing.T) {
	t.Parallel()
	const password = "hunter2"
	t.Run("CVE-2023-22649: the message of an admission webhook about a Secret is not passed on", func(t *testing.T) {
		said := errors.New(`denied the request: {"data":{"password":"` + password + `"}}`)
		for _, err := range []error{
			apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "registry", said), apierrors.NewBadRequest(said.Error()), apierrors.NewInternalError(said),
		} {
			phase, message := explain(ref{kindSecret, "web", "registry"}, err)
			if phase != protocol.SetFailed || strings.Contains(message, password) {
				t.Errorf("%s: %s", phase, message)
			}
		}
	})
	t.Run("CVE-2023-22649: nor what it says when all is taken away", func(t *testing.T) {
		said := apierrors.NewForbidden(schema.GroupResource{Resource: "secrets"}, "registry", errors.New(password))
		leadership := newLeadership(t.Context(), Options{Objects: refusing{err: said}})
		leadership.cache.objects[ref{kindSecret, "web", "registry"}] = object{uid: "1", set: "secrets.web", mark: 1}
		remaining := leadership.removeAll(t.Context())
		if len(remaining) != 1 || !strings.Contains(remaining[0], "Secret web/registry: ") || !strings.Contains(remaining[0], "(Forbidden)") || strings.Contains(remaining[0], password) {
			t.Error(remaining)
		}
	})
	t.Run("CVE-2024-58269: nor what is stored and cannot be read", func(t *testing.T) {
		_, err := decodeSet([]byte(`{"id":"secrets/web","content":{"objects":[{"data":{"password":"` + password + `"}}]}}`))
		if err == nil || strings.Contains(err.Error(), password) {
			t.Error(err)
		}
	})
}

// refusing is an API server that deletes nothing.
type refusing struct {
	Objects
	err error
}

func (r refusing) Delete(context.Context, string, types.UID, string) error { return r.err }

func TestAStoredSetThatWasChangedIsNotAppliedAgain(t *testing.T) {
	t.Parallel()
	set, err := protocol.NewSet("guards", nil, expansion.Content{})
	if err != nil {
		t.Fatal(err)
	}
	stored := func(set protocol.Set) *corev1.Secret {
		raw, err := json.Marshal(set)
		if err != nil {
			t.Fatal(err)
		}
		return secretOf(firstName(set.ID), map[string][]byte{keySet: raw, keyDigest: []byte(set.Digest), keyParts: []byte("1")})
	}
	if _, err := join(stored(set), nil); err != nil {
		t.Error(err)
	}
	set.Content.PerNamespace = &expansion.PerNamespace{Project: "mine"}
	if _, err := join(stored(set), nil); err == nil {
		t.Error("the hub would think that it is as it was sent")
	}
}

// Whatever is in a Secret of the agent's namespace, reading it neither fails hard nor takes what is not whole.
func FuzzStoredSet(f *testing.F) {
	f.Add([]byte(`{"id":"guards","digest":"x","content":{}}`), "x", "1")
	f.Add([]byte("\x1f\x8b\x08\x00"), "", "2")
	f.Add([]byte(`{"id":"crtb/a","content":{"objects":[null,{"kind":"Secret"}]}}`), "d", "-1")
	f.Fuzz(func(t *testing.T, raw []byte, digest, parts string) {
		first := secretOf("set.guards", map[string][]byte{keySet: raw, keyDigest: []byte(digest), keyParts: []byte(parts)})
		one, err := join(first, map[string]*corev1.Secret{first.Name: first})
		if err == nil && (one.set.Check() != nil || one.set.ID != "guards") {
			t.Errorf("%+v", one.set)
		}
	})
}
