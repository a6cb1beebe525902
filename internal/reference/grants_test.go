// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package reference_test

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/reference"
)

// indexed takes the indexes of package reference for a fake client.
type indexed struct{ *fake.ClientBuilder }

func (i indexed) IndexField(_ context.Context, o client.Object, field string, keys client.IndexerFunc) error {
	i.WithIndex(o, field, keys)
	return nil
}

func cache(t *testing.T, objects ...client.Object) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	builder := indexed{fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...)}
	if err := reference.Index(t.Context(), builder); err != nil {
		t.Fatal(err)
	}
	return builder.Build()
}

func named(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "team-a", Name: name} }

func TestBound(t *testing.T) {
	now := time.Now()
	past := metav1.NewTime(now.Add(-time.Second))
	prod := &v1.Cluster{ObjectMeta: named("prod")}
	prod.Labels = map[string]string{"env": "prod"}
	byName, bySelector := v1.ClusterTarget{ClusterName: "prod"}, v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	elsewhere := v1.ClusterTarget{ClusterName: "edge"}
	alice, devs := v1.Subject{Kind: v1.SubjectUser, Name: "hub:alice"}, v1.Subject{Kind: v1.SubjectGroup, Name: "hub:devs"}
	crtb := func(target v1.ClusterTarget, s v1.Subject, end *metav1.Time) client.Object {
		return &v1.ClusterRoleTemplateBinding{ObjectMeta: named("b"), Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: target, Subject: s, ExpiresAt: end}}
	}
	prtb := &v1.ProjectRoleTemplateBinding{ObjectMeta: named("p"), Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: "web", Subject: alice}}
	project := func(target v1.ClusterTarget) client.Object {
		return &v1.Project{ObjectMeta: named("web"), Spec: v1.ProjectSpec{ClusterTarget: target}}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		want    bool
	}{
		"nobody is bound":                                 {[]client.Object{prod}, false},
		"a user by the name of the Cluster":               {[]client.Object{prod, crtb(byName, alice, nil)}, true},
		"a group by a selector":                           {[]client.Object{prod, crtb(bySelector, devs, nil)}, true},
		"a user of a group's name is not the group":       {[]client.Object{prod, crtb(byName, v1.Subject{Kind: v1.SubjectUser, Name: "hub:devs"}, nil)}, false},
		"a binding that has expired opens nothing":        {[]client.Object{prod, crtb(byName, alice, &past)}, false},
		"a binding for another Cluster opens nothing":     {[]client.Object{prod, crtb(elsewhere, alice, nil)}, false},
		"a binding in a project of the member":            {[]client.Object{prod, prtb, project(bySelector)}, true},
		"a binding in a project of another member":        {[]client.Object{prod, prtb, project(elsewhere)}, false},
		"a binding in a project that does not exist":      {[]client.Object{prod, prtb}, false},
		"a selector selects no Cluster that is not known": {[]client.Object{crtb(bySelector, alice, nil)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			who := reference.Principals{User: "hub:alice", Groups: []string{"hub:devs"}}
			got, err := reference.Bound(t.Context(), cache(t, tt.objects...), who, types.NamespacedName{Namespace: "team-a", Name: "prod"}, now)
			if err != nil || got != tt.want {
				t.Errorf("bound: %t %v", got, err)
			}
			other := types.NamespacedName{Namespace: "team-b", Name: "prod"}
			if got, err := reference.Bound(t.Context(), cache(t, tt.objects...), who, other, now); got || err != nil {
				t.Errorf("bound in another workspace: %t %v", got, err)
			}
		})
	}
	t.Run("a cache that cannot be read opens nothing", func(t *testing.T) {
		got, err := reference.Bound(t.Context(), broken{}, reference.Principals{User: "hub:alice"}, types.NamespacedName{Namespace: "team-a", Name: "prod"}, now)
		if got || err == nil {
			t.Errorf("bound: %t %v", got, err)
		}
	})
}

// broken is a cache that cannot be read.
type broken struct{ client.Reader }

func (broken) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("not synced")
}
