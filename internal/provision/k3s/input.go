// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Input contains everything that a decision depends on.
type Input struct {
	Spec   Spec
	Stored Stored
	// Hosts contains the Hosts in the workspace that are free or claimed for this cluster.
	Hosts []Host
	// Registries is the content of registries.yaml, or nil if there is none.
	Registries []byte
	// Manifest is the manifest that installs the Cluster's agent. It is nil after an agent has joined.
	Manifest []byte
	// S3 contains the credentials for spec.etcd.s3.
	S3 S3Credentials
	// Snapshots contains the snapshots that have been requested or taken, in the order in which they are taken.
	Snapshots []Snapshot
	// Now is the current time in Unix seconds. Numbers in IDs are never smaller than Now. As a result, a hub that was
	// restored from a backup does not reuse a number.
	Now int64
	// Restores contains the restores that have been requested or have ended, in the order in which they are carried
	// out.
	Restores []Restore
	// Generation is the generation of the spec.
	Generation int64
	// Refused is true if the spec cannot be applied. In that case, only restores are carried out.
	Refused bool
}

// S3Credentials are the credentials for an object store. All fields are optional.
type S3Credentials struct {
	AccessKey, SecretKey string
	CA                   []byte
}

// Spec is the parsed spec.
type Spec struct {
	provisionv1.ClusterInstallationSpec
	// Config and ServerConfig are the results of CheckConfig.
	Config, ServerConfig map[string]any
	// Selectors are the selectors of the pools, in the order of the pools.
	Selectors []labels.Selector
}

// Stored contains the decisions that must not be made twice, and the tokens that hosts need to join. It is stored in a
// Secret.
type Stored struct {
	Token      string `json:"token"`
	AgentToken string `json:"agentToken"`
	// First is the host that starts the cluster. It is stored, because a second host would create a second cluster.
	First string `json:"first,omitempty"`
	// Begun is true once the host in First has been up. After that, no host may start the cluster again.
	Begun bool `json:"begun,omitempty"`
	// Nodes contains the hosts that have instructions to join, by name. A host stays in the map until its node has been
	// removed.
	Nodes map[string]Node `json:"nodes,omitempty"`
	// Joins is the sequence number of the last join.
	Joins int64 `json:"joins,omitempty"`
	// Keys is the last rotation of encryption keys that succeeded. KeysFailed is the last rotation that failed, and
	// KeysProblem explains why.
	Keys        int64  `json:"keys,omitempty"`
	KeysFailed  int64  `json:"keysFailed,omitempty"`
	KeysProblem string `json:"keysProblem,omitempty"`
	// Outcomes contains the outcomes of snapshots and restores, by ID.
	Outcomes map[string]Outcome `json:"outcomes,omitempty"`
	StoredRestores
}

// Node is a host that has been instructed to join.
type Node struct {
	// UID is the UID of the Host. Another Host with the same name is a different machine.
	UID string `json:"uid"`
	// Join is the sequence number of the join.
	Join int64 `json:"join"`
	// Etcd reports whether the node is an etcd member.
	Etcd bool `json:"etcd,omitempty"`
	// Planned is true if the host has been given instructions. If its instructions are removed, the host is being
	// cleaned. The name is part of the stored format.
	Planned bool `json:"planned,omitempty"`
	// Address is the address that the machine reported when it became a node.
	Address string `json:"address,omitempty"`
}

// Host describes a Host that is free or claimed for the cluster.
type Host struct {
	Name, UID string
	Labels    map[string]string
	// Address is the address at which other hosts reach the host. It is empty if the host reports no address.
	Address string
	// NodeIPs are the addresses of the host's node. In a dual-stack cluster there may be a second address from the
	// other IP family, if the machine reports one. If NodeIPs is empty, the distribution chooses the addresses.
	NodeIPs []string
	// NodeLabels and NodeTaints come from the host's join command.
	NodeLabels, NodeTaints []string
	// Taken is true if the host is claimed for this cluster. Otherwise, it is free.
	Taken bool
	// Leaving is true if the Host is being deleted. Its machine is cleaned after the Host has been released.
	Leaving bool
	// Gone is true if the Host is being deleted, its agent is not connected, and the waiting period for the agent has
	// passed. The cluster does not wait for such a host.
	Gone      bool
	Connected bool
	// Lost is true if the host has been disconnected for so long that the cluster no longer waits for it.
	Lost bool
	// Held is the note that is stored with the host's instructions. It is nil if the host has none.
	Held *Held
	// Host is the host's progress with its instructions.
	progress.Host
}

// poolOf returns the first pool whose selector matches a host, or nil if there is none.
func (in *Input) poolOf(host Host) *provisionv1.HostPool {
	for i, selector := range in.Spec.Selectors {
		if selector.Matches(labels.Set(host.Labels)) {
			return &in.Spec.Pools[i]
		}
	}
	return nil
}

// assumeUnreadable treats a host with unreadable instructions as a disconnected member of its pool. The host keeps its
// role in the cluster. Other hosts wait for it as they would for a disconnected host.
func (in *Input) assumeUnreadable() {
	for i := range in.Hosts {
		host := &in.Hosts[i]
		if host.Held == nil || !host.Held.Unreadable {
			continue
		}
		host.Connected, host.State = false, progress.None
		host.Held = &Held{Part: Part{Epoch: in.Stored.Epoch}, Unreadable: true}
		if pool := in.poolOf(*host); pool != nil {
			host.Held.Roles = rolesOf(pool)
		}
	}
}
