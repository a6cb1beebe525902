// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"maps"
	"slices"
)

// mostWorkspaces is the maximum number of access reviews in workspaces, for one kind in one stream.
const mostWorkspaces = 100

// scope describes which objects of one kind a user can see.
type scope struct {
	all        bool
	workspaces map[string]bool // the results of reviews by workspace; not used if the user may see all objects
	incomplete bool            // the user may be allowed to see more
	unknown    bool            // a review failed
}

// may reports whether a user may watch a resource in a workspace, or in all workspaces if it is empty.
type may func(ctx context.Context, resource, workspace string) (bool, error)

// ask reviews which objects of a kind the user may see, in the given workspaces with objects. If a review fails, the
// previous result is used.
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

// look reviews one workspace, unless the result is already known, and reports whether the user may see objects there.
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

// same reports whether a later scope includes the same objects. Workspaces that were not reviewed before had no
// objects.
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

// seen returns the workspaces whose objects the user may see.
func (s scope) seen(workspaces []string) []string {
	return slices.DeleteFunc(slices.Clone(workspaces), func(workspace string) bool { return !s.workspaces[workspace] })
}
