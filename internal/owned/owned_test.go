// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package owned_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/owned"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

const by = client.FieldOwner("drover")

func TestSecretIsRecognizedByAllItsMarks(t *testing.T) {
	t.Parallel()
	marks := owned.Marks{Type: "example.com/kind", Labels: map[string]string{"a": "1", "b": "2"}, Owner: "owner"}
	for name, tc := range map[string]struct {
		change func(*corev1.Secret)
		want   bool
	}{
		"with all of them": {func(*corev1.Secret) {}, true},
		"with more": {func(s *corev1.Secret) {
			s.Labels["c"] = "3"
			s.OwnerReferences = append(s.OwnerReferences, metav1.OwnerReference{UID: "other"})
		}, true},
		"of another type":     {func(s *corev1.Secret) { s.Type = corev1.SecretTypeOpaque }, false},
		"without a label":     {func(s *corev1.Secret) { delete(s.Labels, "b") }, false},
		"with another value":  {func(s *corev1.Secret) { s.Labels["a"] = "2" }, false},
		"without an owner":    {func(s *corev1.Secret) { s.OwnerReferences = nil }, false},
		"with a former owner": {func(s *corev1.Secret) { s.OwnerReferences[0].UID = "former" }, false},
	} {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(marks.Labels),
			OwnerReferences: []metav1.OwnerReference{{UID: "owner"}}}, Type: marks.Type}
		tc.change(secret)
		if got := marks.Has(secret); got != tc.want {
			t.Errorf("a Secret %s: got %t, want %t", name, got, tc.want)
		}
	}
	if owned.By(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{{}}}}, "") {
		t.Error("an object without a UID is an owner, want it not to be")
	}
}

// writes are the writing functions of the package, for a Secret that was read or for a Cluster.
func writes() map[string]func(context.Context, client.Client, *corev1.Secret) error {
	return map[string]func(context.Context, client.Client, *corev1.Secret) error{
		"WriteSecret": func(ctx context.Context, c client.Client, read *corev1.Secret) error {
			return owned.WriteSecret(ctx, c, read,
				corev1ac.Secret(read.Name,
					read.Namespace).WithType(corev1.SecretTypeOpaque).WithData(map[string][]byte{"by": []byte("drover")}))
		},
		"Apply": func(ctx context.Context, c client.Client, read *corev1.Secret) error {
			part := owned.Part(read, corev1.SchemeGroupVersion.WithKind("Secret"))
			part.Object["data"] = map[string]any{"by": "ZHJvdmVy"}
			return owned.Apply(ctx, c, part, by)
		},
		"Delete": func(ctx context.Context, c client.Client, read *corev1.Secret) error {
			return owned.Delete(ctx, c, read)
		},
	}
}

func TestWritesFailIfTheObjectHasChanged(t *testing.T) {
	t.Parallel()
	for name, write := range writes() {
		for what, compete := range map[string]func(context.Context, client.Client, *corev1.Secret) error{
			"no other writer": nil,
			"changed": func(ctx context.Context, c client.Client, s *corev1.Secret) error {
				s.Data = map[string][]byte{"by": []byte("another")}
				return c.Update(ctx, s)
			},
			"deleted": func(ctx context.Context, c client.Client, s *corev1.Secret) error { return c.Delete(ctx, s) },
			"replaced": func(ctx context.Context, c client.Client, s *corev1.Secret) error {
				if err := c.Delete(ctx, s.DeepCopy()); err != nil {
					return err
				}
				return c.Create(ctx,
					&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Name},
						Data: map[string][]byte{"by": []byte("another")}})
			},
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				env := testkit.Shared(t)
				secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "s"}}
				env.Apply(t, secret)
				c := testkit.Competing(env.Client, func(ctx context.Context, _ any) bool {
					if compete == nil {
						return true
					}
					if err := compete(ctx, env.Client, secret.DeepCopy()); err != nil {
						t.Fatal(err)
					}
					return true
				})
				err := write(t.Context(), c, secret.DeepCopy())
				now := &corev1.Secret{}
				gone := apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), now))
				switch {
				case what == "no other writer" &&
					(err != nil || gone != (name == "Delete") || !gone && string(now.Data["by"]) != "drover"):
					t.Errorf("got %v, gone %t, %s, want the write to succeed", err, gone, now.Data["by"])
				case what == "deleted" && (!gone || apierrors.IsConflict(err) == (name == "Delete")):
					t.Errorf("got %v, gone %t, want the object gone, and a conflict unless the write was a deletion", err, gone)
				case (what == "changed" || what == "replaced") &&
					(!apierrors.IsConflict(err) || string(now.Data["by"]) != "another"):
					t.Errorf("got %v, written by %q, want a conflict and the content of the other writer", err, now.Data["by"])
				}
			})
		}
	}
}

func TestFinalizerIsSetOnlyOnAnUnchangedObject(t *testing.T) {
	t.Parallel()
	const finalizer = "example.com/mine"
	for name, tc := range map[string]struct {
		compete  func(context.Context, client.Client, *corev1.Secret) error
		conflict bool
		want     []string
	}{
		"with no other writer": {want: []string{"example.com/theirs", finalizer}},
		"a changed object is a conflict": {
			compete: func(ctx context.Context, c client.Client, s *corev1.Secret) error {
				s.Finalizers = []string{"example.com/other"}
				return c.Update(ctx, s)
			},
			conflict: true, want: []string{"example.com/other"},
		},
		"a deleted object is not an error": {
			compete: func(ctx context.Context, c client.Client, s *corev1.Secret) error {
				s.Finalizers = nil
				if err := c.Update(ctx, s); err != nil {
					return err
				}
				return c.Delete(ctx, s)
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := testkit.Shared(t)
			read := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
				Namespace: env.Workspace(t), Name: "s", Finalizers: []string{"example.com/theirs"},
			}}
			if err := env.Client.Create(t.Context(), read); err != nil {
				t.Fatal(err)
			}
			if tc.compete != nil {
				if err := tc.compete(t.Context(), env.Client, read.DeepCopy()); err != nil {
					t.Fatal(err)
				}
			}
			err := owned.SetFinalizer(t.Context(), env.Client, read, finalizer, controllerutil.AddFinalizer)
			if apierrors.IsConflict(err) != tc.conflict || !tc.conflict && err != nil {
				t.Errorf("got error %v, want a conflict: %t, and no other error", err, tc.conflict)
			}
			now := &corev1.Secret{}
			if err := client.IgnoreNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(read), now)); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(now.Finalizers, tc.want) || slices.Contains(read.Finalizers, finalizer) {
				t.Errorf("got finalizers %q and %q on the object that was read, want %q and the latter unchanged",
					now.Finalizers, read.Finalizers, tc.want)
			}
		})
	}
}

func TestSecretThatDidNotExistIsOnlyCreated(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	name := client.ObjectKey{Namespace: env.Workspace(t), Name: "s"}
	want := func() *corev1ac.SecretApplyConfiguration {
		return corev1ac.Secret(name.Name,
			name.Namespace).WithType(corev1.SecretTypeOpaque).
			WithLabels(map[string]string{"a": "b"}).WithData(map[string][]byte{"by": []byte("drover")})
	}
	c := testkit.Competing(env.Client, func(ctx context.Context, _ any) bool {
		env.Apply(t,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name},
				Data: map[string][]byte{"by": []byte("another")}})
		return true
	})
	if err := owned.WriteSecret(t.Context(), c, nil, want()); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got %v, want AlreadyExists", err)
	}
	secret := &corev1.Secret{}
	if err := env.Client.Get(t.Context(), name, secret); err != nil || string(secret.Data["by"]) != "another" ||
		len(secret.Labels) > 0 {
		t.Errorf("got %v, written by %q with the labels %v: want the content of the other writer", err, secret.Data["by"],
			secret.Labels)
	}
	if err := env.Client.Delete(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	if err := owned.WriteSecret(t.Context(), env.Client, nil, want()); err != nil {
		t.Errorf("got %v without another writer, want the Secret to be created", err)
	}
}

func TestObjectThatWasNotReadIsNotApplied(t *testing.T) {
	t.Parallel()
	env := testkit.Shared(t)
	part := owned.Part(&metav1.ObjectMeta{Namespace: env.Workspace(t), Name: "made"}, v1.GroupVersion.WithKind("Cluster"))
	if err := owned.Apply(t.Context(), env.Client, part, by); err == nil {
		t.Error("an object without a UID was applied, want an error")
	}
	if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(part), &v1.Cluster{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want no Cluster to be created", err)
	}
}
