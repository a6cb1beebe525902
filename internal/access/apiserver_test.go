// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/access"
	"github.com/drover-dev/drover/test/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// For random principals, bindings and templates, a member's API server must decide random actions in accordance with
// the templates.
func TestMemberAPIServerDecidesAsTheTemplatesSay(t *testing.T) {
	env := testkit.Shared(t)
	web := env.Workspace(t)
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 3))
		context := []v1.RoleContext{v1.ContextCluster, v1.ContextProject}[seed%2]
		templates := rename(family(r, context), fmt.Sprintf("%s-%d-", web, seed))
		name, who := fmt.Sprintf("%s-%d-t0", web, seed), fmt.Sprintf("%s-user-%d", web, seed)
		bind(t, env, templates, name, who, web, context)
		all := actions()
		for range 40 {
			a := all[r.IntN(len(all))]
			if a.URL == "" {
				a.Namespace = []string{web, web, "default", ""}[r.IntN(4)]
			}
			want := model(templates, name, a) && (context == v1.ContextCluster || a.Namespace == web)
			if got := decides(t, env, who, a); got != want {
				t.Errorf("seed %d: %s: %+v: the API server says %t, the templates say %t", seed, context, a, got, want)
			}
		}
	}
}

// rename prefixes the names of a family of templates, so that several families can be in one member.
func rename(templates access.Templates, prefix string) access.Templates {
	out := access.Templates{}
	for name, template := range templates {
		template.Name = prefix + name
		for i, parent := range template.Spec.Inherits {
			template.Spec.Inherits[i] = prefix + parent
		}
		out[template.Name] = template
	}
	return out
}

func bind(t *testing.T, env *testkit.Env, templates access.Templates, name, who, namespace string, in v1.RoleContext) {
	t.Helper()
	// This extra rule shows when the API server has noticed the binding.
	templates[name].Spec.Rules = append(templates[name].Spec.Rules, rule("probe.example.com", "probes", "get"))
	role, err := access.Role(templates, name)
	if err != nil {
		t.Fatal(err)
	}
	env.Apply(t, role)
	if in == v1.ContextCluster {
		b := clusterBinding(who, name, user(who), v1.ClusterTarget{ClusterName: "any"})
		object, err := access.ClusterBinding(templates, &b)
		if err != nil {
			t.Fatal(err)
		}
		env.Apply(t, object)
	} else {
		b := projectBinding(who, name, "web", user(who))
		object, err := access.ProjectBinding(templates, &b)
		if err != nil {
			t.Fatal(err)
		}
		object.Namespace = namespace
		env.Apply(t, object)
	}
	testkit.Eventually(t, 10*time.Second, func(context.Context) error {
		if !decides(t, env, who,
			access.Action{Verb: "get", Group: "probe.example.com", Resource: "probes", Namespace: namespace}) {
			return fmt.Errorf("the binding of %s is not in force", who)
		}
		return nil
	})
}

func decides(t *testing.T, env *testkit.Env, who string, a access.Action) bool {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: who}}
	if a.URL != "" {
		review.Spec.NonResourceAttributes = &authorizationv1.NonResourceAttributes{Verb: a.Verb, Path: a.URL}
	} else {
		resource, sub, _ := strings.Cut(a.Resource, "/")
		review.Spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
			Verb: a.Verb, Group: a.Group, Resource: resource, Subresource: sub, Name: a.Name, Namespace: a.Namespace}
	}
	if err := env.Client.Create(t.Context(), review); err != nil {
		t.Fatal(err)
	}
	return review.Status.Allowed
}
