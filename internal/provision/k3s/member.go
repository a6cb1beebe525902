// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// member is a taken Host in its pool.
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

// up reports whether a host works as its plan says.
func (m *member) up() bool {
	return m.Connected && m.Held != nil && m.Progress == Up && m.Held.Stopped == "" && m.Held.Finds == ""
}

// startOptions are those of systemctl. A server with etcd alone is not up before one with an API server has joined, which waits for it.
func (m *member) startOptions() []string {
	if m.is(provisionv1.RoleEtcd) && !m.is(provisionv1.RoleControlPlane) {
		return []string{"--no-block"}
	}
	return nil
}

// taints of a server that is no worker, as Rancher gives them.
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
