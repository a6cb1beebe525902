// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index_test

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	crcache "sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/index"
)

// indexed adds the indexes of package index to a fake client.
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
	if err := index.Index(t.Context(), builder); err != nil {
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
	byName, bySelector := v1.ClusterTarget{ClusterName: "prod"},
		v1.ClusterTarget{ClusterSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}}
	elsewhere := v1.ClusterTarget{ClusterName: "edge"}
	alice, devs := v1.Subject{Kind: v1.SubjectUser, Name: "hub:alice"}, v1.Subject{Kind: v1.SubjectGroup, Name: "hub:devs"}
	crtb := func(target v1.ClusterTarget, s v1.Subject, end *metav1.Time) client.Object {
		return &v1.ClusterRoleTemplateBinding{ObjectMeta: named("b"),
			Spec: v1.ClusterRoleTemplateBindingSpec{ClusterTarget: target, Subject: s, ExpiresAt: end}}
	}
	prtb := &v1.ProjectRoleTemplateBinding{ObjectMeta: named("p"),
		Spec: v1.ProjectRoleTemplateBindingSpec{ProjectName: "web", Subject: alice}}
	project := func(target v1.ClusterTarget) client.Object {
		return &v1.Project{ObjectMeta: named("web"), Spec: v1.ProjectSpec{ClusterTarget: target}}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		want    bool
	}{
		"without a binding":                   {[]client.Object{prod}, false},
		"a user with the name of the Cluster": {[]client.Object{prod, crtb(byName, alice, nil)}, true},
		"a group with a selector":             {[]client.Object{prod, crtb(bySelector, devs, nil)}, true},
		"a user with a group's name is not the group": {
			[]client.Object{prod, crtb(byName, v1.Subject{Kind: v1.SubjectUser, Name: "hub:devs"}, nil)}, false,
		},
		"an expired binding grants nothing":             {[]client.Object{prod, crtb(byName, alice, &past)}, false},
		"a binding for another Cluster grants nothing":  {[]client.Object{prod, crtb(elsewhere, alice, nil)}, false},
		"a binding in a project of the member":          {[]client.Object{prod, prtb, project(bySelector)}, true},
		"a binding in a project of another member":      {[]client.Object{prod, prtb, project(elsewhere)}, false},
		"a binding in a project that does not exist":    {[]client.Object{prod, prtb}, false},
		"a selector does not select an unknown Cluster": {[]client.Object{crtb(bySelector, alice, nil)}, false},
	} {
		t.Run(name, func(t *testing.T) {
			who := index.Principals{User: "hub:alice", Groups: []string{"hub:devs"}}
			got, err := grants(t, tt.objects...).Bound(t.Context(), who,
				types.NamespacedName{Namespace: "team-a", Name: "prod"}, now)
			if err != nil || got != tt.want {
				t.Errorf("got %t, %v, want %t", got, err, tt.want)
			}
			other := types.NamespacedName{Namespace: "team-b", Name: "prod"}
			if got, err := grants(t, tt.objects...).Bound(t.Context(), who, other, now); got || err != nil {
				t.Errorf("got %t, %v in another workspace, want false", got, err)
			}
		})
	}
	t.Run("an incomplete cache grants nothing", func(t *testing.T) {
		g, err := index.NewGrants(t.Context(), informers{clusters: &informer{SharedIndexInformer: newInformer()},
			projects: &informer{SharedIndexInformer: newInformer()}}, cache(t))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := g.Bound(t.Context(), index.Principals{User: "hub:alice"},
			types.NamespacedName{Namespace: "team-a", Name: "prod"}, now); got || err == nil {
			t.Errorf("got %t, %v, want false and an error", got, err)
		}
		if got, err := g.Workspaces(index.Principals{User: "hub:alice"}); len(got) > 0 || err == nil {
			t.Errorf("got workspaces %v, %v, want none and an error", got, err)
		}
	})
}

// CVE-2023-46254: a principal must not have the rights of a principal of another kind with the same name.
//
// A list of the Clusters that a user may reach looks up bindings only in these workspaces and for these groups.
func TestWorkspacesHaveABindingOfAPrincipal(t *testing.T) {
	crtb := func(namespace, name string, s v1.Subject) client.Object {
		return &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1.ClusterRoleTemplateBindingSpec{Subject: s}}
	}
	prtb := func(namespace, name string, s v1.Subject) client.Object {
		return &v1.ProjectRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1.ProjectRoleTemplateBindingSpec{Subject: s}}
	}
	alice, devs, ops := v1.Subject{Kind: v1.SubjectUser, Name: "local:alice"},
		v1.Subject{Kind: v1.SubjectGroup, Name: "ldap:devs"}, v1.Subject{Kind: v1.SubjectGroup, Name: "ldap:ops"}
	g := grants(t, crtb("a", "1", alice), crtb("a", "2", devs), prtb("a", "3", devs), prtb("b", "1", devs),
		prtb("c", "1", alice), crtb("d", "1", ops),
		crtb("e", "1", v1.Subject{Kind: v1.SubjectGroup, Name: "local:alice"}),
		crtb("f", "1", v1.Subject{Kind: v1.SubjectUser, Name: "ldap:devs"}))
	got, err := g.Workspaces(index.Principals{User: "local:alice", Groups: []string{"ldap:none", "ldap:devs"}})
	want := map[string]index.Principals{
		"a": {User: "local:alice", Groups: []string{"ldap:devs"}},
		"b": {User: "local:alice", Groups: []string{"ldap:devs"}}, "c": {User: "local:alice"},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got workspaces %v, %v, want %v", got, err, want)
	}
}

// Each stream of changes and each list of Clusters looks up the workspaces of its user.
func BenchmarkWorkspaces(b *testing.B) {
	clusters, projects := &informer{newInformer(), true}, &informer{newInformer(), true}
	g, err := index.NewGrants(b.Context(), informers{clusters: clusters, projects: projects}, nil)
	if err != nil {
		b.Fatal(err)
	}
	for i := range 10_000 {
		workspace, name := fmt.Sprint("team-", i%100), fmt.Sprint("b", i)
		subject := v1.Subject{Kind: v1.SubjectUser, Name: fmt.Sprint("local:user", i)}
		err := clusters.GetIndexer().Add(&v1.ClusterRoleTemplateBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name},
			Spec:       v1.ClusterRoleTemplateBindingSpec{Subject: subject}})
		if err != nil {
			b.Fatal(err)
		}
	}
	who := index.Principals{User: "local:user7", Groups: []string{"idp:a", "idp:b", "idp:c"}}
	for b.Loop() {
		if got, err := g.Workspaces(who); len(got) != 1 || err != nil {
			b.Fatalf("got %v, %v, want the workspace of one binding", got, err)
		}
	}
}

// grants returns Grants for a cache with these objects.
func grants(t *testing.T, objects ...client.Object) *index.Grants {
	t.Helper()
	clusters, projects := &informer{newInformer(), true}, &informer{newInformer(), true}
	g, err := index.NewGrants(t.Context(), informers{clusters: clusters, projects: projects}, cache(t, objects...))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		switch o.(type) {
		case *v1.ClusterRoleTemplateBinding:
			err = clusters.GetIndexer().Add(o)
		case *v1.ProjectRoleTemplateBinding:
			err = projects.GetIndexer().Add(o)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// informers holds the informers of ClusterRoleTemplateBindings and of ProjectRoleTemplateBindings.
type informers struct {
	crcache.Informers
	clusters, projects *informer
}

func (i informers) GetInformer(
	_ context.Context, o client.Object, _ ...crcache.InformerGetOption,
) (crcache.Informer, error) {
	if _, ok := o.(*v1.ClusterRoleTemplateBinding); ok {
		return i.clusters, nil
	}
	return i.projects, nil
}

// informer is an informer that the test fills.
type informer struct {
	toolscache.SharedIndexInformer
	synced bool
}

func (i *informer) HasSynced() bool { return i.synced }

func newInformer() toolscache.SharedIndexInformer {
	return toolscache.NewSharedIndexInformer(nil, nil, 0, toolscache.Indexers{})
}

// A workspace whose bindings name many groups of a user must not use up the room of other workspaces.
func TestNamedTakesOneGroupOfEachWorkspaceInTurn(t *testing.T) {
	binding := func(workspace, name, group string) client.Object {
		return &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: workspace, Name: name},
			Spec: v1.ClusterRoleTemplateBindingSpec{Subject: v1.Subject{Kind: v1.SubjectGroup, Name: group}}}
	}
	inProject := &v1.ProjectRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team-z", Name: "p"},
		Spec: v1.ProjectRoleTemplateBindingSpec{Subject: v1.Subject{Kind: v1.SubjectGroup, Name: "idp:z2"}}}
	aUser := &v1.ClusterRoleTemplateBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "u"},
		Spec: v1.ClusterRoleTemplateBindingSpec{Subject: v1.Subject{Kind: v1.SubjectUser, Name: "idp:user"}}}
	g := grants(t, binding("team-a", "1", "idp:a1"), binding("team-a", "2", "idp:a2"),
		binding("team-a", "3", "idp:a3"), binding("team-a", "4", "idp:both"),
		binding("team-b", "1", "idp:both"), binding("team-b", "2", "idp:both"), inProject, aUser)
	got, err := g.Named([]string{"idp:z2", "idp:none", "idp:both", "idp:user", "idp:a3", "idp:a1", "idp:a2", "idp:a1"})
	if want := []string{"idp:a1", "idp:both", "idp:z2", "idp:a2", "idp:a3"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// noKind is an API server without a CRD.
type noKind struct{}

func (noKind) IndexField(context.Context, client.Object, string, client.IndexerFunc) error {
	return fmt.Errorf("get informer: %w", &meta.NoKindMatchError{})
}

func TestMissingCRDOfUserIsReportedWithWhatToDo(t *testing.T) {
	if err := index.Users(t.Context(), noKind{}); err == nil ||
		!strings.Contains(err.Error(), "apply the CRDs of this version") {
		t.Errorf("got error %v without the CRD, want the advice to apply the CRDs", err)
	}
}
