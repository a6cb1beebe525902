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
	// Hosts are the Hosts in the workspace that are free or taken for this cluster.
	Hosts []Host
	// Registries is the content of registries.yaml, or nil if there is none.
	Registries []byte
	// Manifest installs the agent of the Cluster. It is nil once an agent has joined.
	Manifest []byte
	// S3 contains the credentials for spec.etcd.s3.
	S3 S3Credentials
	// Snapshots are the snapshots that have been requested or taken, in the order in which they are taken.
	Snapshots []Snapshot
	// Now is the time in seconds since 1970. Numbers that become part of IDs are never smaller than Now, so a hub that
	// was restored from a backup does not use a number twice.
	Now int64
	// Restores are the restores that have been requested or have ended, in the order in which they are carried out.
	Restores []Restore
	// Generation is the generation of the spec.
	Generation int64
	// Refused is true if the spec cannot be applied. In that case, only restores are carried out.
	Refused bool
}

// S3Credentials are the credentials of an object store. All are optional.
type S3Credentials struct {
	AccessKey, SecretKey string
	CA                   []byte
}

// Spec is the user's spec after parsing.
type Spec struct {
	provisionv1.ClusterInstallationSpec
	// Config and ServerConfig are the results of CheckConfig.
	Config, ServerConfig map[string]any
	// Selectors are the selectors of the pools.
	Selectors []labels.Selector
}

// Stored contains the decisions that must not be made twice, and the tokens with which hosts join. It is stored in a
// Secret.
type Stored struct {
	Token      string `json:"token"`
	AgentToken string `json:"agentToken"`
	// First is the host that starts the cluster. If two hosts did, there would be two clusters.
	First string `json:"first,omitempty"`
	// Begun is true once the host in First has been up. From then on, no host starts the cluster again.
	Begun bool `json:"begun,omitempty"`
	// Nodes contains, by name, the hosts that were given instructions to join. A host stays in the map until its node
	// has been removed.
	Nodes map[string]Node `json:"nodes,omitempty"`
	// Joins counts the joins of nodes.
	Joins int64 `json:"joins,omitempty"`
	// Keys is the last rotation of encryption keys that succeeded, and KeysFailed is the last rotation that failed.
	// KeysProblem explains why it failed.
	Keys        int64  `json:"keys,omitempty"`
	KeysFailed  int64  `json:"keysFailed,omitempty"`
	KeysProblem string `json:"keysProblem,omitempty"`
	// Outcomes contains the outcomes of snapshots and restores, by ID.
	Outcomes map[string]Outcome `json:"outcomes,omitempty"`
	StoredRestores
}

// Node is a host that was given instructions to join.
type Node struct {
	// UID is the UID of the Host, because another Host with the same name is another machine.
	UID string `json:"uid"`
	// Join is the sequence number of the join.
	Join int64 `json:"join"`
	// Etcd reports whether the node is an etcd member.
	Etcd bool `json:"etcd,omitempty"`
	// Planned is true if the host has had instructions. A host whose instructions have been removed is being cleaned.
	// The name is part of the stored format.
	Planned bool `json:"planned,omitempty"`
	// Address is the address that the machine reported when it became a node.
	Address string `json:"address,omitempty"`
}

// Host holds the facts about a host.
type Host struct {
	Name, UID string
	Labels    map[string]string
	// Address is the address at which other hosts reach the host, or "" if it reports none.
	Address string
	// NodeIPs are the addresses of the host's node. There is one address, or in a dual-stack cluster a second one from
	// the other IP family if the machine reports it. If there are none, the distribution chooses the addresses.
	NodeIPs []string
	// NodeLabels and NodeTaints come from the host's join command.
	NodeLabels, NodeTaints []string
	// Taken is true if the host is taken for this cluster. Otherwise it is free.
	Taken bool
	// Leaving is true if the Host is being deleted. It is cleaned once it has been released.
	Leaving bool
	// Gone is true if the Host is being deleted and has not been connected since. Nothing waits for such a host.
	Gone      bool
	Connected bool
	// Lost is true if the host has been disconnected for so long that its work is abandoned.
	Lost bool
	// Held is stored together with the host's instructions. It is nil if the host has none.
	Held *Held
	// Host is the host's progress with its instructions.
	progress.Host
}

// poolOf returns the first pool that selects a host, or nil if none does.
func (in *Input) poolOf(host Host) *provisionv1.HostPool {
	for i, selector := range in.Spec.Selectors {
		if selector.Matches(labels.Set(host.Labels)) {
			return &in.Spec.Pools[i]
		}
	}
	return nil
}

// assumeUnreadable treats each host with unreadable instructions as a disconnected member of its pool. Such a host
// keeps its role in the cluster, and other hosts wait for it no longer than for a lost host.
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
