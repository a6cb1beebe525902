// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package set

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Quota is the quota of a project in one member.
type Quota struct {
	// Total is the quota of all namespaces together. A resource that is not in it has no limit in sum.
	Total corev1.ResourceList `json:"total,omitempty"`
	// Default is the share of one namespace. A resource that is only in Total is not granted to any namespace.
	Default corev1.ResourceList `json:"default,omitempty"`
}

// Share is what one namespace gets.
type Share struct {
	Hard corev1.ResourceList
	// Short reports whether some resource is less than the default.
	Short bool
	// Spent reports whether nothing is left of some resource: no pod that requests it can start.
	Spent bool
}

// Divide gives each namespace its share. Whatever is given:
//
//   - the shares of a resource never sum to more than Total, terminating namespaces included;
//   - no namespace gets more than Default;
//   - a namespace that is added takes nothing from those that hold a share: what they hold is served first, newcomers get what
//     is left, down to zero;
//   - the same namespaces always give the same shares, whatever their order.
//
// Served are, in order: what is held, then the rest up to the default, each time the older namespace before the
// younger. A nil quota, or an empty one, gives no shares.
func (q *Quota) Divide(namespaces []Namespace) map[string]Share {
	if q == nil || len(q.Default) == 0 && len(q.Total) == 0 {
		return nil
	}
	ordered := slices.SortedFunc(slices.Values(namespaces), older)
	shares := make(map[string]Share, len(ordered))
	for _, ns := range ordered {
		shares[ns.Name] = Share{Hard: corev1.ResourceList{}}
	}
	for key := range q.resources() {
		for name, amount := range q.divideOne(key, ordered) {
			share := shares[name]
			share.Hard[key] = amount
			if full, wanted := q.Default[key]; wanted && amount.Cmp(full) < 0 {
				share.Short, share.Spent = true, share.Spent || amount.IsZero()
			}
			shares[name] = share
		}
	}
	return shares
}

func older(a, b Namespace) int {
	if c := a.Created.Compare(b.Created.Time); c != 0 {
		return c
	}
	return cmp.Compare(a.Name, b.Name)
}

func (q *Quota) resources() map[corev1.ResourceName]bool {
	keys := make(map[corev1.ResourceName]bool, len(q.Default))
	for key := range q.Default {
		keys[key] = true
	}
	for key := range q.Total {
		keys[key] = true
	}
	return keys
}

// divideOne divides one resource over namespaces that are in order of age.
func (q *Quota) divideOne(key corev1.ResourceName, ordered []Namespace) map[string]resource.Quantity {
	full := q.Default[key]
	total, limited := q.Total[key]
	left := total.DeepCopy()
	given := make(map[string]resource.Quantity, len(ordered))
	grant := func(name string, wanted resource.Quantity) {
		amount := wanted.DeepCopy()
		if limited {
			if amount.Cmp(left) > 0 {
				amount = left.DeepCopy()
			}
			left.Sub(amount)
		}
		sum := given[name]
		if sum.IsZero() {
			given[name] = amount
			return
		}
		sum.Add(amount)
		given[name] = sum
	}
	for _, ns := range ordered {
		grant(ns.Name, lesser(ns.Held[key], full))
	}
	for _, ns := range ordered {
		if ns.Terminating {
			continue
		}
		rest := full.DeepCopy()
		rest.Sub(given[ns.Name])
		grant(ns.Name, rest)
	}
	return given
}

// lesser of two quantities, and never below zero.
func lesser(a, b resource.Quantity) resource.Quantity {
	if b.Cmp(a) < 0 {
		a = b
	}
	if a.Sign() < 0 {
		return resource.Quantity{Format: a.Format}
	}
	return a.DeepCopy()
}
