// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"maps"
	"slices"
)

// mostWorkspaces is the maximum number of workspaces in which a stream reviews the right to watch a kind.
const mostWorkspaces = 100

// scope describes which objects of one kind are visible to a user.
type scope struct {
	all        bool
	workspaces map[string]bool // the results of reviews, by workspace; not used if all is set
	incomplete bool            // whether the user may have more rights than the results show
	unknown    bool            // whether a review failed
}

// may reports whether a user may watch a resource in a workspace. If the workspace is empty, it reports whether the
// user may watch the resource in all workspaces.
type may func(ctx context.Context, resource, workspace string) (bool, error)

// ask determines which objects of a kind are visible to the user in the given workspaces. If a review fails, it uses
// the previous result.
func (k kind) ask(ctx context.Context, may may, workspaces []string, known scope) scope {
	now := scope{workspaces: map[string]bool{}}
	all, err := may(ctx, k.Resource, "")
	if err != nil {
		all, now.incomplete, now.unknown = known.all, !known.all, true
	}
	now.all = all
	if all || k.ClusterScoped {
		return now
	}
	for _, workspace := range slices.Concat(slices.Sorted(maps.Keys(known.workspaces)), workspaces) {
		now.look(ctx, k, may, workspace, known)
	}
	return now
}

// look reports whether objects in a workspace are visible to the user. It reviews the user's right only if the result
// is not known yet.
func (s *scope) look(ctx context.Context, k kind, may may, workspace string, before scope) bool {
	if s.all || k.ClusterScoped {
		return s.all
	}
	if sees, known := s.workspaces[workspace]; known {
		return sees
	}
	if len(s.workspaces) >= mostWorkspaces {
		s.incomplete = true
		return false
	}
	sees, err := may(ctx, k.Resource, workspace)
	if err != nil {
		sees = before.all || before.workspaces[workspace]
		s.incomplete, s.unknown = s.incomplete || !sees, true
	}
	s.workspaces[workspace] = sees
	return sees
}

// same reports whether a later scope contains the same objects. A workspace without a review in the earlier scope
// contained no objects at that time.
func (s scope) same(later scope) bool {
	if s.all != later.all {
		return false
	}
	for workspace, sees := range s.workspaces {
		if !s.all && later.workspaces[workspace] != sees {
			return false
		}
	}
	return true
}

// seen returns the workspaces whose objects are visible to the user.
func (s scope) seen(workspaces []string) []string {
	return slices.DeleteFunc(slices.Clone(workspaces), func(workspace string) bool { return !s.workspaces[workspace] })
}
