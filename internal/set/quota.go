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
	// Total is the quota of all namespaces combined. A resource that is not in Total has no such quota.
	Total corev1.ResourceList `json:"total,omitempty"`
	// Default is the share of one namespace. If a resource is only in Total, no namespace gets a share of it.
	Default corev1.ResourceList `json:"default,omitempty"`
}

// Share is the share of one namespace.
type Share struct {
	Hard corev1.ResourceList
	// Short is true if the share contains less than the default share of at least one resource.
	Short bool
	// Spent is true if the share of at least one resource is zero. Pods that request this resource cannot start.
	Spent bool
}

// Divide returns the share of each namespace. It guarantees the following:
//
//   - The shares of a resource never add up to more than Total, including the shares of terminating namespaces.
//   - No namespace gets more than Default.
//   - A new namespace takes nothing from namespaces that already hold a share. Held shares are granted first. New
//     namespaces get whatever is left, which may be nothing.
//   - The same namespaces always get the same shares, regardless of their order.
//
// Divide first grants the held shares, and then the rest up to the default. In both steps, older namespaces come before
// newer ones. A nil or empty quota results in no shares.
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

// divideOne divides one resource among namespaces. The namespaces must be ordered by age.
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

// lesser returns the smaller of two quantities, or zero if it is negative.
func lesser(a, b resource.Quantity) resource.Quantity {
	if b.Cmp(a) < 0 {
		a = b
	}
	if a.Sign() < 0 {
		return resource.Quantity{Format: a.Format}
	}
	return a.DeepCopy()
}
