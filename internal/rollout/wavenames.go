// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"slices"
	"strings"
	"time"

	v1 "github.com/drover-dev/drover/api/v1"
)

// WaveNames returns the names of all waves.
func (p *FleetPlan) WaveNames() []string {
	names := []string{Rest}
	for _, w := range p.Pace.Waves {
		names = append(names, w.Name)
	}
	return names
}

// InWave returns the sorted names of the Clusters that a target selects and that are in a wave.
func (p *FleetPlan) InWave(target v1.ClusterTarget, clusters []v1.Cluster, wave string) ([]string, error) {
	all := make([]Cluster, len(clusters))
	for i := range clusters {
		c := &clusters[i]
		selected, err := target.Selects(c.Name, c.Labels)
		if err != nil {
			return nil, err
		}
		all[i] = Cluster{Name: c.Name, Labels: c.Labels, Selected: selected}
	}
	slices.SortFunc(all, func(a, b Cluster) int { return strings.Compare(a.Name, b.Name) })
	f, err := NewFleet(all, *p, time.Time{})
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range all {
		if f.WaveOf(i) == wave {
			names = append(names, all[i].Name)
		}
	}
	return names, nil
}
