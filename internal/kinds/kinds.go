// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kinds is the registry of the kinds of api/v1: what users may watch, what caches keep, and what is delivered
// to members.
//
// The caches (config), the indexes (index), the stream of changes (portal/subscribe), the page, and the delivery store
// read it.
package kinds

import (
	"reflect"
	"sync"

	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/checkpoint"
	"github.com/drover-dev/drover/internal/set"
	"github.com/drover-dev/drover/internal/untrusted"
)

const (
	// MaxAnnotation bounds an annotation that people write and the manager reads, in bytes.
	MaxAnnotation = 1 << 10
	// maxHostLabels is the number of labels of a Host that objects can select by.
	maxHostLabels = 64
)

// Kind is a kind of api/v1.
type Kind struct {
	// Name is the name of the kind, and Resource its name in paths.
	Name, Resource string
	Object         client.Object
	List           client.ObjectList
	// ClusterScoped reports whether objects have no namespace. The page does not show them.
	ClusterScoped bool
	// Metadata says which metadata the caches keep. Nil means only the annotations that are read of any kind.
	Metadata *untrusted.Metadata
	// Sets are the sets that an object has in each of its members.
	Sets []Set
}

// Set is a kind of set that objects of a Kind own.
type Set struct {
	// Kind is the first part of the set's ID.
	Kind string
	// Restored says what a hub that was restored from a backup does with such a set before an administrator has confirmed
	// it.
	Restored checkpoint.Rule
}

// All returns all kinds, in the order in which a stream of changes begins. A kind that is delivered to members needs
// one entry here; the other places are listed in docs/contributing.md.
func All() []Kind {
	withdrawn := checkpoint.Rule{CountsAsWithdrawn: true}
	return []Kind{
		{
			Name: "Cluster", Resource: "clusters", Object: &v1.Cluster{}, List: &v1.ClusterList{},
			Sets: []Set{
				{set.Guards, checkpoint.Rule{CountsAsWithdrawn: true, OfMember: true}},
				// It may have keys and sessions that were ended after the backup.
				{set.Direct, checkpoint.Rule{CountsAsWithdrawn: true, RevokedAtOnce: true}},
			},
		},
		{
			Name: "Project", Resource: "projects", Object: &v1.Project{}, List: &v1.ProjectList{},
			Sets: []Set{{set.Project, withdrawn}, {set.Secrets, withdrawn}},
		},
		{
			Name: "ClusterRoleTemplateBinding", Resource: "clusterroletemplatebindings",
			Object: &v1.ClusterRoleTemplateBinding{}, List: &v1.ClusterRoleTemplateBindingList{},
			Sets: []Set{{set.ClusterBinding, withdrawn}},
		},
		{
			Name: "ProjectRoleTemplateBinding", Resource: "projectroletemplatebindings",
			Object: &v1.ProjectRoleTemplateBinding{}, List: &v1.ProjectRoleTemplateBindingList{},
			Sets: []Set{{set.ProjectBinding, withdrawn}},
		},
		{
			Name: "Plan", Resource: "plans", Object: &v1.Plan{}, List: &v1.PlanList{},
			// A rollout withdraws plans, too: that is not the wish of a user.
			Sets: []Set{{set.Plan, checkpoint.Rule{}}},
		},
		{
			Name: "Host", Resource: "hosts", Object: &v1.Host{}, List: &v1.HostList{},
			Metadata: &untrusted.Metadata{
				Annotations: map[string]int{v1.AnnotationRestored: MaxAnnotation}, MoreLabels: maxHostLabels, Finalizers: true,
			},
		},
		{
			Name: "RoleTemplate", Resource: "roletemplates", Object: &v1.RoleTemplate{}, List: &v1.RoleTemplateList{}, ClusterScoped: true,
			Sets: []Set{{set.Role, withdrawn}},
		},
		{
			Name: "AuthProvider", Resource: "authproviders", Object: &v1.AuthProvider{}, List: &v1.AuthProviderList{}, ClusterScoped: true,
			Metadata: &untrusted.Metadata{},
		},
		{Name: "User", Resource: "users", Object: &v1.User{}, List: &v1.UserList{}, ClusterScoped: true},
	}
}

// byType has all kinds by the Go types of their objects.
var byType = sync.OnceValue(func() map[reflect.Type]Kind {
	found := map[reflect.Type]Kind{}
	for _, kind := range All() {
		found[reflect.TypeOf(kind.Object)] = kind
	}
	return found
})

// Of returns the kind of an object, if it is one of api/v1. Its Object and List are shared and must not be changed.
func Of(object any) (kind Kind, known bool) {
	kind, known = byType()[reflect.TypeOf(object)]
	return kind, known
}

// Rules returns the rules for a hub that was restored, by the kinds of sets.
func Rules() map[string]checkpoint.Rule {
	rules := map[string]checkpoint.Rule{}
	for _, kind := range All() {
		for _, s := range kind.Sets {
			rules[s.Kind] = s.Restored
		}
	}
	return rules
}
