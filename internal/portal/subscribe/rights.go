// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"maps"
	"slices"
)

// mostWorkspaces bounds the workspaces that the API server is asked about, for one kind of one stream.
const mostWorkspaces = 100

// scope is what a user may see of one kind.
type scope struct {
	all        bool
	workspaces map[string]bool // whether they may see it there, as far as it was asked; not used if they may see all
	incomplete bool            // reports whether they may be able to see more
	unknown    bool            // reports whether something could not be found out
}

// may asks whether a user may watch a resource in a workspace, or in all if it is empty.
type may func(ctx context.Context, resource, workspace string) (bool, error)

// ask finds out what may be seen of a kind, in these workspaces that have objects. What is known already counts where
// it cannot be found out.
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

// look finds out about one workspace, unless that is known, and reports whether objects there may be seen.
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

// same reports whether a later scope shows the same objects: workspaces that were not asked about before had none.
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

// seen are the workspaces of a list whose objects may be seen.
func (s scope) seen(workspaces []string) []string {
	return slices.DeleteFunc(slices.Clone(workspaces), func(workspace string) bool { return !s.workspaces[workspace] })
}
