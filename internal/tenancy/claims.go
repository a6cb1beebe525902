// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy

import (
	"cmp"
	"slices"

	v1 "github.com/drover-dev/drover/api/v1"
)

// For each project of a member, Claims returns the namespaces that the project lists but that belong to another
// project. It also returns the name of that other project. A namespace belongs to the oldest project that lists it. If
// several projects have the same age, it belongs to the project whose name sorts first. The result does not depend on
// the order of the projects.
func Claims(projects []*v1.Project) map[string]map[string]string {
	ordered := slices.SortedFunc(slices.Values(projects), func(a, b *v1.Project) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	owners := map[string]string{}
	taken := map[string]map[string]string{}
	for _, p := range ordered {
		for _, namespace := range p.Spec.Namespaces {
			owner, claimed := owners[namespace]
			switch {
			case !claimed:
				owners[namespace] = p.Name
			case owner != p.Name:
				if taken[p.Name] == nil {
					taken[p.Name] = map[string]string{}
				}
				taken[p.Name][namespace] = owner
			}
		}
	}
	return taken
}
