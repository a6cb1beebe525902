// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution/rancher"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// distributions contains all distributions that can be installed. A new distribution requires a folder in package
// distribution and an entry here.
var distributions = map[provisionv1.Distribution]distribution.Distribution{
	provisionv1.DistributionK3s:  rancher.K3s,
	provisionv1.DistributionRKE2: rancher.RKE2,
}

// distributionOf returns the distribution with the given name. It returns an error if the name is unknown. Otherwise, a
// different distribution might be installed.
func distributionOf(name provisionv1.Distribution) (distribution.Distribution, error) {
	if found, ok := distributions[name]; ok {
		return found, nil
	}
	return nil, fmt.Errorf("spec.distribution: there is no distribution %q, only %q", name, slices.Sorted(maps.Keys(distributions)))
}

// CheckConfig parses spec.config or spec.serverConfig, and checks that the distribution accepts it. field is the name
// of the spec field, for errors. Errors name forbidden options, but contain no values.
func CheckConfig(name provisionv1.Distribution, field string, raw []byte) (map[string]any, error) {
	dist, err := distributionOf(name)
	if err != nil {
		return nil, err
	}
	return dist.CheckConfig(field, raw)
}

// CheckSpec returns an error if the configuration prevents the requested rotation of encryption keys, or the scheduled
// snapshots.
func CheckSpec(spec roster.Spec) error {
	dist, err := distributionOf(spec.Distribution)
	if err != nil {
		return err
	}
	return dist.CheckSpec(spec)
}

// Removals returns the commands that remove distributions from a machine, by distribution name. If several
// distributions are removed by the same command, only one of them has an entry.
func Removals() map[string][]string {
	all, seen := map[string][]string{}, map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(distributions)) {
		command := distributions[name].Machine().Remove
		if key := strings.Join(command, "\x00"); !seen[key] {
			seen[key], all[string(name)] = true, command
		}
	}
	return all
}

// Machines describes all distributions on machines.
func Machines() (all []distribution.Machine) {
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(distributions))) {
		all = append(all, distributions[name].Machine())
	}
	return all
}
