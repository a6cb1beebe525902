// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kinds contains the registry of the kinds in api/v1.
//
// The registry defines the kinds that users may watch, the metadata that caches keep, and the sets that are delivered
// to members.
//
// The registry is used by the caches (config), the indexes (index), the stream of changes (portal/subscribe), the web
// page, the support bundle, and the delivery store.
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
	// MaxAnnotation is the maximum size, in bytes, of an annotation that users write and the manager reads.
	MaxAnnotation = 1 << 10
	// maxHostLabels limits how many of a Host's labels can be used in selectors.
	maxHostLabels = 64
)

// Kind is a kind in api/v1.
type Kind struct {
	// Name is the name of the kind, and Resource is its name in paths.
	Name, Resource string
	Object         client.Object
	List           client.ObjectList
	// ClusterScoped is true if objects have no namespace.
	ClusterScoped bool
	// Metadata defines which metadata the caches keep. If it is nil, the caches keep only the annotations that are read
	// for every kind.
	Metadata *untrusted.Metadata
	// Trim removes the part of an object that the caches do not keep. Typically, this part is large and is needed only
	// by the object's controller. If Trim is nil, the caches keep the whole spec and status.
	Trim func(client.Object)
	// Sets lists the sets that an object of this kind can have in a member.
	Sets []Set
}

// Set describes one type of set that an object of a Kind can own.
type Set struct {
	// Kind is the first part of a set's ID.
	Kind string
	// Restored defines how a hub that was restored from a backup treats sets of this kind until an administrator has
	// confirmed the hub's changes.
	Restored checkpoint.Rule
}

// All returns all kinds in the order in which a stream of changes sends them. A new kind needs an entry here, and
// changes in the other places that docs/contributing.md lists.
func All() []Kind {
	withdrawn := checkpoint.Rule{CountsAsWithdrawn: true}
	return []Kind{
		{
			Name: "Cluster", Resource: "clusters", Object: &v1.Cluster{}, List: &v1.ClusterList{},
			Sets: []Set{
				{set.Guards, checkpoint.Rule{CountsAsWithdrawn: true, OfMember: true}},
				// After a restore, a Direct set may contain keys and sessions that have been revoked since the backup.
				{set.Direct, checkpoint.Rule{CountsAsWithdrawn: true, RevokedAtOnce: true}},
				{set.Values, withdrawn},
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
			// A rollout also withdraws plans, so a withdrawal does not always result from a user's decision.
			Sets: []Set{{set.Plan, checkpoint.Rule{}}},
		},
		{
			Name: "Baseline", Resource: "baselines", Object: &v1.Baseline{}, List: &v1.BaselineList{},
			Trim: trimBaseline, Sets: []Set{{set.Baseline, withdrawn}},
		},
		{
			Name: "Host", Resource: "hosts", Object: &v1.Host{}, List: &v1.HostList{},
			Metadata: &untrusted.Metadata{
				Annotations: map[string]int{v1.AnnotationRestored: MaxAnnotation}, MoreLabels: maxHostLabels, Finalizers: true,
			},
		},
		{
			Name: "RoleTemplate", Resource: "roletemplates", Object: &v1.RoleTemplate{}, List: &v1.RoleTemplateList{},
			ClusterScoped: true,
			Sets:          []Set{{set.Role, withdrawn}},
		},
		{
			Name: "AuthProvider", Resource: "authproviders", Object: &v1.AuthProvider{}, List: &v1.AuthProviderList{},
			ClusterScoped: true,
			Metadata:      &untrusted.Metadata{},
		},
		{Name: "User", Resource: "users", Object: &v1.User{}, List: &v1.UserList{}, ClusterScoped: true},
	}
}

// trimBaseline removes the manifests, because they can take up a megabyte of memory. The controller reads them from the
// API server.
func trimBaseline(o client.Object) {
	if b, is := o.(*v1.Baseline); is {
		b.Spec.Manifests = nil
	}
}

var byType = sync.OnceValue(func() map[reflect.Type]Kind {
	found := map[reflect.Type]Kind{}
	for _, kind := range All() {
		found[reflect.TypeOf(kind.Object)] = kind
	}
	return found
})

// Of returns the kind of an object if the object belongs to api/v1. The Object and List of the result are shared and
// must not be changed.
func Of(object any) (kind Kind, known bool) {
	kind, known = byType()[reflect.TypeOf(object)]
	return kind, known
}

// Rules returns the rules for a restored hub, keyed by the kind of set.
func Rules() map[string]checkpoint.Rule {
	rules := map[string]checkpoint.Rule{}
	for _, kind := range All() {
		for _, s := range kind.Sets {
			rules[s.Kind] = s.Restored
		}
	}
	return rules
}
