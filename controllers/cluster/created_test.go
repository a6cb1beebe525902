// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/registration"
	"github.com/drover-dev/drover/test/testkit"
)

// requests counts a reconciler's requests to the API server about Secrets.
type requests struct{ reads, creates, applies int }

// count makes the reconciler count its requests. Its cache does not contain the registration Secret while lags is true.
func (w *world) count(lags *bool) *requests {
	n := &requests{}
	w.r.Live = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			n.reads++
			return c.Get(ctx, key, o, opts...)
		},
	})
	w.r.Client = interceptor.NewClient(w.Client, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if _, ok := o.(*corev1.Secret); ok && *lags && key == registration.RegistrationSecret(w.name) {
				return apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
			}
			return c.Get(ctx, key, o, opts...)
		},
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			n.creates++
			return c.Create(ctx, o, opts...)
		},
		Apply: func(ctx context.Context, c client.WithWatch, o runtime.ApplyConfiguration, opts ...client.ApplyOption) error {
			if _, ok := o.(*corev1ac.SecretApplyConfiguration); ok {
				n.applies++
			}
			return c.Apply(ctx, o, opts...)
		},
	})
	return n
}

func TestRegistrationSecretIsCreatedWithOneWrite(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	w.create(v1.ClusterSpec{})
	lags := false
	n := w.count(&lags)
	w.reconcile()
	if want := (requests{creates: 1, reads: 1}); *n != want {
		t.Errorf("a new Cluster took %+v, want %+v", *n, want)
	}
	first := w.secret(registration.RegistrationSecret(w.name))
	if len(first.ManagedFields) != 1 || first.ManagedFields[0].Manager != "drover" || len(first.OwnerReferences) != 1 || first.OwnerReferences[0].UID != w.cluster().UID {
		t.Errorf("the Secret has the owners %+v of its fields and %+v, want drover alone, and the Cluster", first.ManagedFields, first.OwnerReferences)
	}
	t.Run("one that the cache does not have yet stays", func(t *testing.T) {
		lags, *n = true, requests{}
		w.reconcile()
		if want := (requests{reads: 1}); *n != want {
			t.Errorf("it took %+v, want %+v", *n, want)
		}
		if now := w.secret(registration.RegistrationSecret(w.name)); now.ResourceVersion != first.ResourceVersion {
			t.Errorf("the Secret was written again: token %q, want %q", now.Data[registration.KeyToken], first.Data[registration.KeyToken])
		}
	})
	t.Run("a changed one is applied", func(t *testing.T) {
		lags, *n = false, requests{}
		w.settings.Servers = []string{"https://other.example.com"}
		w.reconcile()
		if want := (requests{applies: 1}); *n != want {
			t.Errorf("it took %+v, want %+v", *n, want)
		}
		now := w.secret(registration.RegistrationSecret(w.name))
		if string(now.Data[registration.KeyToken]) != string(first.Data[registration.KeyToken]) || string(now.Data[registration.KeyManifest]) == string(first.Data[registration.KeyManifest]) {
			t.Error("want the same token in another manifest")
		}
	})
	if told := len(w.recorder.Events); told != 1 {
		t.Errorf("%d events, want one of the token", told)
	}
}

// A ResourceQuota counts a creation before the API server finds that the name is already in use.
func TestUsersSecretOfTheSameNamePreventsCreation(t *testing.T) {
	w := newWorld(t, testkit.Shared(t))
	name := registration.RegistrationSecret(w.name)
	w.Apply(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}})
	w.create(v1.ClusterSpec{})
	lags := false
	n := w.count(&lags)
	w.reconcile()
	if want := (requests{reads: 1}); *n != want {
		t.Errorf("it took %+v, want %+v", *n, want)
	}
}
