// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apply_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/baseline"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/test/testkit"
)

// baselineSet returns the set of the Baseline "base" with a ConfigMap in the default namespace. Its value refers to the
// Cluster.
func baselineSet(t *testing.T) *set.Set {
	t.Helper()
	return baselineSetWith(t, "cluster-admin")
}

// baselineSetWith is baselineSet with the rights of another ClusterRole.
func baselineSetWith(t *testing.T, role string) *set.Set {
	t.Helper()
	return baselineSetBoundBy(t, "drover:baseline:base", role)
}

// baselineSetBoundBy is baselineSetWith with another name of the binding.
func baselineSetBoundBy(t *testing.T, binding, role string) *set.Set {
	t.Helper()
	id := set.ID(set.Baseline, "base")
	bound := &rbacv1.ClusterRoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRoleBinding"},
		ObjectMeta: metav1.ObjectMeta{Name: binding, Labels: set.Labels(id)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: baseline.User("base")}},
	}
	o, err := set.Object(bound)
	if err != nil {
		t.Fatal(err)
	}
	s, err := set.New(id, nil, set.Content{
		Objects: []*unstructured.Unstructured{o},
		Baseline: &set.BaselineContent{Name: "base", Revision: "r1", Objects: []json.RawMessage{json.RawMessage(
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"base","namespace":"default"},` +
				`"data":{"cluster":"$(CLUSTER_NAME)"}}`)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func valuesSet(t *testing.T, cluster string) *set.Set {
	t.Helper()
	s, err := set.New(set.Values, nil, set.Content{Values: baseline.Values(cluster, nil)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestABaselineFollowsTheValuesOfItsCluster(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	s := baselineSet(t)
	a.put(t, s)
	a.await(t, s.ID, protocol.SetPending)
	for _, cluster := range []string{"one", "two"} {
		a.applied(t, valuesSet(t, cluster))
		testkit.Eventually(t, patience, func(ctx context.Context) error {
			var o corev1.ConfigMap
			err := m.Client.Get(ctx, client.ObjectKey{Namespace: "default", Name: "base"}, &o)
			if err == nil && o.Data["cluster"] != cluster {
				err = fmt.Errorf("got the value %q, want %q", o.Data["cluster"], cluster)
			}
			return err
		})
	}
	state := a.await(t, s.ID, protocol.SetApplied)
	if b := state.Baseline; b == nil || *b != (protocol.BaselineState{Revision: "r1", Objects: 1, Healthy: 1}) {
		t.Errorf("got the state %+v, want one healthy object of r1", b)
	}
	if got := a.Unclaimed(); len(got) > 0 {
		t.Errorf("got the unclaimed objects %q, want none: a Baseline owns them", got)
	}
}

func TestABaselineIsRemovedBeforeItsBindingAndRole(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	a.applied(t, valuesSet(t, "one"))
	rights := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "drover:cluster:base"}}
	fields := role(rights.Name)
	fields["rules"] = []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"}, "verbs": []any{"*"}}}
	roles := newSet(t, "role/base", objectsOf("role/base", fields))
	a.applied(t, roles)
	s := baselineSetWith(t, "drover:cluster:base")
	a.put(t, s)
	a.await(t, s.ID, protocol.SetApplied)
	// A finalizer keeps the object, so the rights to delete it must stay.
	key := client.ObjectKey{Namespace: "default", Name: "base"}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	finalize := func(list string) {
		t.Helper()
		if err := m.Client.Patch(t.Context(), o, merge(`{"metadata":{"finalizers":`+list+`}}`)); err != nil {
			t.Fatal(err)
		}
	}
	finalize(`["example.com/keep"]`)
	state := a.state(t, a.ask(t, http.MethodDelete, protocol.SetPath(s.ID), nil))
	if state.Phase != protocol.SetPending || len(state.Objects) != 1 {
		t.Fatalf("got %+v, want the object pending until it is gone", state)
	}
	binding := &rbacv1.ClusterRoleBinding{}
	if err := m.Client.Get(t.Context(), client.ObjectKey{Name: "drover:baseline:base"}, binding); err != nil {
		t.Fatalf("got %v, want the binding as long as an object remains", err)
	}
	state = a.state(t, a.ask(t, http.MethodDelete, protocol.SetPath(roles.ID), nil))
	if state.Phase != protocol.SetPending || len(state.Objects) != 1 {
		t.Fatalf("got %+v, want the role pending until the Baseline is gone", state)
	}
	if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(rights), rights); err != nil {
		t.Fatalf("got %v, want the role as long as an object remains", err)
	}
	finalize(`null`)
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		for _, left := range []client.Object{o, binding, rights, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: protocol.AgentNamespace, Name: "baseline." + set.Label(s.ID)}}} {
			if err := m.Client.Get(ctx, client.ObjectKeyFromObject(left), left); !apierrors.IsNotFound(err) {
				return errors.Join(err, fmt.Errorf("%T %s still exists, want it gone", left, left.GetName()))
			}
		}
		return nil
	})
}

func TestABaselineWithAPendingObjectLosesItsFormerRights(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	s := baselineSetBoundBy(t, "drover:baseline:base:former", "cluster-admin")
	a.put(t, s)
	a.await(t, s.ID, protocol.SetPending) // the object waits for the values of the Cluster
	former := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "drover:baseline:base:former"}}
	if err := m.Client.Get(t.Context(), client.ObjectKeyFromObject(former), former); err != nil {
		t.Fatal(err)
	}
	a.put(t, baselineSetBoundBy(t, "drover:baseline:base:view", "view"))
	testkit.Eventually(t, patience, func(ctx context.Context) error {
		if err := m.Client.Get(ctx, client.ObjectKeyFromObject(former), former); !apierrors.IsNotFound(err) {
			return errors.Join(err, errors.New("the binding to the former role exists, want it removed once the new one exists"))
		}
		return nil
	})
}

func TestABaselineIsRepairedAndReported(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	a := m.lead(t)
	a.applied(t, valuesSet(t, "one"))
	a.applied(t, baselineSet(t))
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "base"}}
	for name, disturb := range map[string]func() error{
		"changed": func() error { return m.Client.Patch(t.Context(), o, merge(`{"data":{"cluster":"x"}}`)) },
		"without its label": func() error {
			return m.Client.Patch(t.Context(), o, merge(`{"metadata":{"labels":{"`+v1.LabelBaseline+`":null}}}`))
		},
		"deleted": func() error { return m.Client.Delete(t.Context(), o) },
	} {
		if err := disturb(); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, func(ctx context.Context) error {
			err := m.Client.Get(ctx, client.ObjectKeyFromObject(o), o)
			if err == nil && (o.Data["cluster"] != "one" || o.Labels[v1.LabelBaseline] != "base") {
				err = fmt.Errorf("%s: got %v and the labels %v, want it repaired", name, o.Data, o.Labels)
			}
			return err
		})
	}
}

func merge(text string) client.Patch {
	return client.RawPatch("application/merge-patch+json", []byte(text))
}
