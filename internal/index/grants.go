// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1 "github.com/drover-dev/drover/api/v1"
)

// errNotSynced is returned while the cache may still lack bindings.
var errNotSynced = errors.New("look up bindings: not all bindings have been read yet")

// Principals are the names of a user and of the user's groups, as used in bindings.
type Principals struct {
	User   string
	Groups []string
}

func (p Principals) subjects() []v1.Subject {
	subjects := make([]v1.Subject, 0, 1+len(p.Groups))
	subjects = append(subjects, v1.Subject{Kind: v1.SubjectUser, Name: p.User})
	for _, group := range p.Groups {
		subjects = append(subjects, v1.Subject{Kind: v1.SubjectGroup, Name: group})
	}
	return subjects
}

// Grants finds the bindings that give users access to Clusters. It is safe for concurrent use.
//
// For every request to a member, the hub looks up the user and each of the user's groups. Grants therefore uses the
// indexes of the informers, because listing the objects in a cache would double the time that the hub spends on a small
// request.
type Grants struct {
	reader             client.Reader                  // reads Projects and Clusters
	clusters, projects toolscache.SharedIndexInformer // bindings, by subject
}

// NewGrants returns Grants, and adds indexes to the informers for bindings. The reader must read from the same caches.
func NewGrants(ctx context.Context, informers cache.Informers, reader client.Reader) (*Grants, error) {
	g := &Grants{reader: reader}
	var err error
	if g.clusters, err = indexSubjects(ctx, informers, &v1.ClusterRoleTemplateBinding{}); err != nil {
		return nil, err
	}
	g.projects, err = indexSubjects(ctx, informers, &v1.ProjectRoleTemplateBinding{})
	return g, err
}

func indexSubjects(
	ctx context.Context, informers cache.Informers, kind client.Object,
) (toolscache.SharedIndexInformer, error) {
	informer, err := informers.GetInformer(ctx, kind)
	if err != nil {
		return nil, fmt.Errorf("index %T by %s: %w", kind, bySubject, err)
	}
	index, ok := informer.(toolscache.SharedIndexInformer)
	if !ok {
		return nil, fmt.Errorf("index %T by %s: its informer is a %T, which has no index", kind, bySubject, informer)
	}
	err = informer.AddIndexers(toolscache.Indexers{bySubject: func(object any) ([]string, error) {
		b, ok := object.(v1.Binding)
		if !ok {
			return nil, fmt.Errorf("index by %s: unexpected %T", bySubject, object)
		}
		return []string{subjectKey(b.GetNamespace(), b.Principal())}, nil
	}, byAnySubject: func(object any) ([]string, error) {
		if b, ok := object.(v1.Binding); ok {
			return []string{subjectKey("", b.Principal())}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("index %T by %s: %w", kind, bySubject, err)
	}
	return index, nil
}

// Bound reports whether one of the principals has an unexpired binding that targets a Cluster. The rights in the
// binding's role are not considered, because the member checks them. If Bound returns an error, the answer is unknown.
func (g *Grants) Bound(
	ctx context.Context, principals Principals, cluster types.NamespacedName, now time.Time,
) (bool, error) {
	if !g.clusters.HasSynced() || !g.projects.HasSynced() {
		return false, errNotSynced
	}
	target := lazyCluster{reader: g.reader, name: cluster}
	for _, subject := range principals.subjects() {
		key := subjectKey(cluster.Namespace, subject)
		for _, bindings := range []toolscache.SharedIndexInformer{g.clusters, g.projects} {
			if found, err := g.boundBy(ctx, bindings, key, &target, now); found || err != nil {
				return found, err
			}
		}
	}
	return false, nil
}

// Workspaces returns the workspaces in which at least one of the principals has a binding. For each workspace, it
// returns the principals with a binding there. Expired bindings are included.
func (g *Grants) Workspaces(principals Principals) (map[string]Principals, error) {
	if !g.clusters.HasSynced() || !g.projects.HasSynced() {
		return nil, errNotSynced
	}
	found := map[string]Principals{}
	for _, subject := range principals.subjects() {
		workspaces, err := g.naming(subject)
		if err != nil {
			return nil, err
		}
		for _, workspace := range workspaces {
			in := found[workspace]
			in.User = principals.User
			if subject.Kind == v1.SubjectGroup && !slices.Contains(in.Groups, subject.Name) {
				in.Groups = append(in.Groups, subject.Name)
			}
			found[workspace] = in
		}
	}
	return found, nil
}

// boundBy reports whether an index contains a binding that names a subject and targets the member.
func (g *Grants) boundBy(
	ctx context.Context, bindings toolscache.SharedIndexInformer, key string, cluster *lazyCluster, now time.Time,
) (bool, error) {
	objects, err := bindings.GetIndexer().ByIndex(bySubject, key) // the cache shares the objects
	if err != nil {
		return false, fmt.Errorf("look up bindings by %s: %w", bySubject, err)
	}
	for _, object := range objects {
		b, ok := object.(v1.Binding)
		if !ok || !b.GetDeletionTimestamp().IsZero() || Expired(b.Expires(), now) {
			continue
		}
		target, err := g.target(ctx, b)
		if err != nil {
			return false, err
		}
		if target == nil {
			continue
		}
		if is, err := cluster.selectedBy(ctx, *target); is || err != nil {
			return is, err
		}
	}
	return false, nil
}

// target returns the target of a binding, or nil if the binding's project does not exist.
func (g *Grants) target(ctx context.Context, b v1.Binding) (*v1.ClusterTarget, error) {
	switch b := b.(type) {
	case *v1.ClusterRoleTemplateBinding:
		return &b.Spec.ClusterTarget, nil
	case *v1.ProjectRoleTemplateBinding:
		project := &v1.Project{}
		err := g.reader.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Spec.ProjectName}, project)
		if err == nil && project.DeletionTimestamp.IsZero() {
			return &project.Spec.ClusterTarget, nil
		}
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("read project %s: %w", b.Spec.ProjectName, err)
		}
	}
	return nil, nil
}

// Named returns the given groups that are named by bindings in any workspace, without duplicates. If a token cannot
// hold all groups, it contains only the first ones. The groups of different workspaces therefore alternate, so that a
// workspace with many groups cannot crowd out the groups of other workspaces.
func (g *Grants) Named(groups []string) ([]string, error) {
	if !g.clusters.HasSynced() || !g.projects.HasSynced() {
		return nil, errNotSynced
	}
	named := map[string][]string{} // by workspace
	for _, group := range slices.Compact(slices.Sorted(slices.Values(groups))) {
		workspaces, err := g.naming(v1.Subject{Kind: v1.SubjectGroup, Name: group})
		if err != nil {
			return nil, err
		}
		for _, workspace := range workspaces {
			named[workspace] = append(named[workspace], group)
		}
	}
	return inTurn(named), nil
}

// naming returns the workspaces in which a binding names a subject. The result contains no duplicates.
func (g *Grants) naming(subject v1.Subject) ([]string, error) {
	var workspaces []string
	for _, index := range []toolscache.SharedIndexInformer{g.clusters, g.projects} {
		keys, err := index.GetIndexer().IndexKeys(byAnySubject, subjectKey("", subject))
		if err != nil {
			return nil, fmt.Errorf("look up bindings by %s: %w", byAnySubject, err)
		}
		for _, key := range keys {
			workspace, _, _ := strings.Cut(key, "/")
			workspaces = append(workspaces, workspace)
		}
	}
	slices.Sort(workspaces)
	return slices.Compact(workspaces), nil
}

// inTurn returns the groups of all workspaces without duplicates. The first group of each workspace comes first,
// followed by the second group of each workspace, and so on.
func inTurn(named map[string][]string) []string {
	var all []string
	taken := map[string]bool{}
	workspaces := slices.Sorted(maps.Keys(named))
	for turn := 0; len(workspaces) > 0; turn++ {
		workspaces = slices.DeleteFunc(workspaces, func(w string) bool { return len(named[w]) <= turn })
		for _, w := range workspaces {
			if group := named[w][turn]; !taken[group] {
				taken[group] = true
				all = append(all, group)
			}
		}
	}
	return all
}

// Disabled reports whether a User disables the given principal. The reader must be a cache with the index that Users
// adds.
func Disabled(ctx context.Context, reader client.Reader, principal string) (bool, error) {
	var users v1.UserList
	if err := reader.List(ctx, &users, client.MatchingFields{byPrincipal: principal},
		client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("look up Users by %s: %w", byPrincipal, err)
	}
	return slices.ContainsFunc(users.Items, func(u v1.User) bool { return u.Spec.Disabled }), nil
}

// subjectKey returns the key in the index bySubject for a subject's bindings in a workspace. If the workspace is empty,
// it returns the key in the index byAnySubject.
func subjectKey(workspace string, s v1.Subject) string {
	return workspace + "/" + string(s.Kind) + "/" + s.Name
}

// Expired reports whether a binding with the given expiry time has expired. A binding without an expiry time never
// expires.
func Expired(end *metav1.Time, now time.Time) bool { return end != nil && !now.Before(end.Time) }

// lazyCluster is a Cluster that is not read until its labels are needed.
type lazyCluster struct {
	reader  client.Reader
	name    types.NamespacedName
	read    bool
	cluster *v1.Cluster // nil if the Cluster does not exist
}

func (c *lazyCluster) selectedBy(ctx context.Context, t v1.ClusterTarget) (bool, error) {
	if t.ClusterSelector == nil {
		return t.ClusterName == c.name.Name, nil
	}
	if !c.read {
		cluster := &v1.Cluster{}
		if err := c.reader.Get(ctx, c.name, cluster); client.IgnoreNotFound(err) != nil {
			return false, fmt.Errorf("read cluster %s: %w", c.name, err)
		} else if err == nil {
			c.cluster = cluster
		}
		c.read = true
	}
	if c.cluster == nil {
		return false, nil
	}
	selected, err := t.Selects(c.name.Name, c.cluster.Labels)
	return err == nil && selected, nil // an invalid selector selects nothing
}
