// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package upgradecheck

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// certificateMargin is how long the certificate of the API server must remain valid. For certificates that are replaced
// often, a fifth of their lifetime is enough.
const certificateMargin = 30 * 24 * time.Hour

// budgets finds PodDisruptionBudgets that block the eviction of pods. It applies the rules of the eviction API.
func (c *checker) budgets() {
	for i := range c.Budgets {
		b := &c.Budgets[i]
		unready := b.Unready > 0 && !b.AlwaysAllow && (b.Healthy < b.Desired || b.Desired == 0)
		if b.Allowed > 0 || b.Ready == 0 && !unready {
			continue
		}
		remedy := "add replicas, or let minAvailable or maxUnavailable of the budget allow a disruption"
		if b.Healthy < b.Desired {
			remedy = "make its pods healthy"
		}
		c.add(CheckDisruptionBudgets, "poddisruptionbudget/"+b.Name,
			"it allows no disruption, and the drain evicts some of its pods", remedy)
		c.addDetail("%d pods to evict, %d pods healthy, %d required", b.Ready+b.Unready, b.Healthy, b.Desired)
	}
	if c.Shared != "" {
		c.add(CheckDisruptionBudgets, "pod/"+c.Shared,
			"several PodDisruptionBudgets select it, so Kubernetes refuses to evict it", "delete all but one of these budgets")
	}
}

// webhooks finds admission webhooks that reject all requests, including requests of the upgrade.
func (c *checker) webhooks() {
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		cause := "no endpoint of its Service " + w.Service + " is ready"
		switch {
		case !w.Exists:
			cause = "its Service " + w.Service + " does not exist"
		case w.Endpoints > 0:
			continue
		}
		c.add(CheckAdmissionWebhooks, w.Configuration,
			fmt.Sprintf("the webhook %s rejects requests when it cannot be called, and %s", w.Name, cause),
			"start the webhook's pods, or delete the configuration")
	}
}

// String returns the name of the API as in discovery, such as "flowschemas.v1beta3.flowcontrol.apiserver.k8s.io".
func (a *API) String() string {
	name := a.Resource
	if a.Subresource != "" {
		name += "/" + a.Subresource
	}
	return strings.TrimSuffix(name+"."+a.Version+"."+a.Group, ".")
}

// removedBy reports whether a release no longer serves the API. It returns false if the release that removes the API is
// not known.
func (a *API) removedBy(release int) bool {
	removed, ok := minor(a.Removed)
	return ok && removed <= release
}

// apis finds uses of APIs that the new version does not serve.
func (c *checker) apis() {
	for i := range c.Requested {
		a := &c.Requested[i]
		if a.removedBy(c.goal) {
			c.add(CheckRemovedAPIs, a.String(),
				"a client has requested this API since the API server started, and Kubernetes "+a.Removed+" does not serve it",
				"find the client in the audit log (annotation k8s.io/deprecated) and update it; the check passes after the API "+
					"server has restarted")
		}
	}
	for i := range c.Applied {
		a := &c.Applied[i]
		if a.removedBy(c.goal) {
			c.add(CheckRemovedAPIs, a.Resource+"/"+a.Name,
				fmt.Sprintf("%s applied it as %s/%s, which Kubernetes %s does not serve", a.Manager, a.Group, a.Version, a.Removed),
				"change apiVersion in the manifest and apply it again")
		}
	}
}

// room is the free room on nodes with the same taints.
type room struct {
	taints      []string
	total       Amounts
	cpu, memory largest
}

func (r *room) add(free Amounts) {
	r.total.add(free, 1)
	r.cpu.add(free.MilliCPU)
	r.memory.add(free.Memory)
}

func (r *room) merge(other *room) {
	r.total.add(other.total, 1)
	r.cpu.add(other.cpu.first)
	r.cpu.add(other.cpu.second)
	r.memory.add(other.memory.first)
	r.memory.add(other.memory.second)
}

// largest contains the two largest amounts of a resource that are free on one node.
type largest struct{ first, second int64 }

func (l *largest) add(amount int64) {
	if amount > l.first {
		l.first, amount = amount, l.first
	}
	l.second = max(l.second, amount)
}

// without returns the largest amount on any other node than one with the given amount.
func (l *largest) without(own int64) int64 {
	if own == l.first {
		return l.second
	}
	return l.first
}

// capacity finds nodes whose pods do not fit on the other nodes. Taints count, but affinity does not.
func (c *checker) capacity() {
	rooms := map[string]*room{}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		key := strings.Join(n.Taints, ",")
		if rooms[key] == nil {
			rooms[key] = &room{taints: n.Taints}
		}
		rooms[key].add(n.free())
	}
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if !n.Selected || n.Leaving == (Amounts{}) || !c.another(n) {
			continue
		}
		var free room
		for _, r := range rooms {
			// The pods of a node tolerate the taints of that node.
			if !slices.ContainsFunc(r.taints, func(taint string) bool { return !slices.Contains(n.Taints, taint) }) {
				free.merge(r)
			}
		}
		own := n.free()
		free.total.add(own, -1)
		if !c.lacks(n, "its pods", "they request", n.Leaving, free.total) {
			one := Amounts{MilliCPU: free.cpu.without(own.MilliCPU), Memory: free.memory.without(own.Memory), Pods: 1}
			c.lacks(n, "one of its pods", "it requests", n.LargestPod, one)
		}
	}
}

// lacks adds a finding for the first resource of which pods of a node request more than is free on other nodes. It
// reports whether there is such a resource.
func (c *checker) lacks(n *Node, pods, request string, want, free Amounts) bool {
	resource, wanted, left := "CPU", fmt.Sprintf("%dm", want.MilliCPU), fmt.Sprintf("%dm", free.MilliCPU)
	switch {
	case want.MilliCPU > free.MilliCPU:
	case want.Memory > free.Memory:
		resource = "memory"
		wanted, left = fmt.Sprintf("%dMi", mebibytes(want.Memory)), fmt.Sprintf("%dMi", free.Memory>>20)
	case want.Pods > free.Pods:
		resource, wanted, left = "room for pods", fmt.Sprint(want.Pods), fmt.Sprint(free.Pods)
	default:
		return false
	}
	c.add(CheckNodeCapacity, "node/"+n.Name, fmt.Sprintf("the other nodes cannot run %s: %s more %s than is free", pods,
		request, resource), "add nodes, scale workloads down, or omit drain from the Plan")
	c.addDetail("%s requested, %s free", wanted, left)
	return true
}

// another reports whether any other node can run pods. If there is none, the pods of a drained node wait for that node,
// as in every cluster with one node.
func (c *checker) another(n *Node) bool {
	return slices.ContainsFunc(c.Nodes, func(o Node) bool { return o.Name != n.Name && o.takesPods() })
}

// takesPods reports whether pods of drained nodes can move to the node.
func (n *Node) takesPods() bool { return n.Ready && !n.Unschedulable && !n.OtherOS && !n.Virtual }

// free returns the resources of a node that new pods can request.
func (n *Node) free() Amounts {
	if !n.takesPods() {
		return Amounts{}
	}
	a := n.Allocatable
	a.add(n.Requested, -1)
	return Amounts{MilliCPU: max(a.MilliCPU, 0), Memory: max(a.Memory, 0), Pods: max(a.Pods, 0)}
}

func (a *Amounts) add(b Amounts, sign int64) {
	a.MilliCPU += sign * b.MilliCPU
	a.Memory += sign * b.Memory
	a.Pods += sign * b.Pods
}

// raise raises each amount to at least the amount in b.
func (a *Amounts) raise(b Amounts) {
	a.MilliCPU, a.Memory, a.Pods = max(a.MilliCPU, b.MilliCPU), max(a.Memory, b.Memory), max(a.Pods, b.Pods)
}

// mebibytes rounds up, so that a request is never shown as less than the free memory that it exceeds.
func mebibytes(bytes int64) int64 { return (bytes + 1<<20 - 1) >> 20 }

// certificates finds a certificate that expires soon.
func (c *checker) certificates() {
	expires := c.CertificateExpires
	margin := min(certificateMargin, expires.Sub(c.CertificateIssued)/5)
	if expires.IsZero() || expires.Sub(c.At) > margin {
		return
	}
	verb := "expires"
	if expires.Before(c.At) {
		verb = "expired"
	}
	c.add(CheckCertificates, objectServer,
		fmt.Sprintf("its certificate %s on %s", verb, expires.UTC().Format(time.DateOnly)),
		"renew the certificates of the control plane, for example with \"kubeadm certs renew all\" or a restart of k3s")
}
