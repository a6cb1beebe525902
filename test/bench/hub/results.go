// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"slices"
)

// results contains the measured values by name.
type results struct {
	values map[string][]float64
	notes  []string
}

func newResults() *results {
	return &results{values: map[string][]float64{}}
}

func (r *results) add(name string, value float64) {
	r.values[name] = append(r.values[name], value)
}

// note adds a line below the table.
func (r *results) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// quantile uses the nearest-rank method: it returns the smallest value that the share q of all values does not exceed.
// It returns NaN if there are no values, so that no comparison succeeds.
func (r *results) quantile(name string, q float64) float64 {
	sorted := slices.Sorted(slices.Values(r.values[name]))
	if len(sorted) == 0 {
		return math.NaN()
	}
	rank := int(math.Ceil(q * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func (r *results) median(name string) float64 { return r.quantile(name, 0.5) }

func (r *results) worst(name string) float64 { return r.quantile(name, 1) }

func (r *results) count(name string) int { return len(r.values[name]) }

// perMember returns the increase of a value of the manager with each additional member.
func (r *results) perMember(what string, members int) float64 {
	return (r.median("manager-many-"+what) - r.median("manager-one-"+what)) / float64(members)
}
