// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// member holds a Host that is claimed for the cluster, and the pool of the Host.
type member struct {
	Host
	pool *provisionv1.HostPool
}

func (m *member) is(role provisionv1.HostRole) bool { return slices.Contains(m.pool.Roles, role) }

func (m *member) server() bool {
	return m.is(provisionv1.RoleEtcd) || m.is(provisionv1.RoleControlPlane)
}

func (m *member) roles() string { return rolesOf(m.pool) }

func rolesOf(pool *provisionv1.HostPool) string {
	roles := slices.Sorted(slices.Values(pool.Roles))
	var names []string
	for _, role := range roles {
		names = append(names, string(role))
	}
	return strings.Join(names, ",")
}

// up reports whether a host is working and has carried out its instructions.
func (m *member) up() bool {
	return m.Connected && m.Held != nil && m.State == progress.Up && m.Held.Stopped == "" && m.Held.Finds == ""
}

// startOptions returns options for systemctl. For a server that runs only etcd, systemctl must not wait until the
// server is up, because it comes up only after a server with an API server has joined.
func (m *member) startOptions() []string {
	if m.is(provisionv1.RoleEtcd) && !m.is(provisionv1.RoleControlPlane) {
		return []string{"--no-block"}
	}
	return nil
}

// taints returns the taints for a server that is not a worker. Rancher uses the same taints.
func (m *member) taints() (taints []string) {
	if m.is(provisionv1.RoleWorker) {
		return nil
	}
	if m.is(provisionv1.RoleEtcd) {
		taints = append(taints, "node-role.kubernetes.io/etcd:NoExecute")
	}
	if m.is(provisionv1.RoleControlPlane) {
		taints = append(taints, "node-role.kubernetes.io/control-plane:NoSchedule")
	}
	return taints
}

// working reports whether a host fulfills its role in the cluster. Hosts that are removing a node or carrying out a
// task are working too, because these duties do not require a restart.
func (h *Host) working() bool {
	if !h.Connected || h.Held == nil || h.Held.Stopped != "" {
		return false
	}
	return h.State == progress.Up || h.hasDuties() && h.State != progress.Failed
}

// hasDuties reports whether a host is removing a node or has a task.
func (h *Host) hasDuties() bool { return len(h.Held.Removes) > 0 || h.Held.Task != "" }

// neverJoined reports whether a host failed before it belonged to the cluster.
func (h *Host) neverJoined() bool {
	return h.Held != nil && h.State == progress.Failed && !h.Held.Changed && !h.hasDuties()
}

func isEtcd(host *Host) bool {
	return host.Held != nil && slices.Contains(strings.Split(host.Held.Roles, ","), string(provisionv1.RoleEtcd))
}

// busy describes what a host with instructions is doing. It returns "" if the host is up to date and working.
func busy(m *member) string {
	switch {
	case !m.Connected:
		return "its agent is not connected"
	case m.State == progress.Up:
		return ""
	case m.State == progress.Failed:
		return "has failed: " + m.Message
	}
	return cmp.Or(m.Message, "carries out its instructions")
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}
