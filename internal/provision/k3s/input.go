// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Input is all that a decision depends on.
type Input struct {
	Spec   Spec
	Stored Stored
	// Hosts of the workspace that are taken for this cluster, or free.
	Hosts []Host
	// Registries is the content of registries.yaml, nil for none.
	Registries []byte
	// Manifest installs the agent of the Cluster. Nil once an agent has joined.
	Manifest []byte
	// S3 has the credentials of spec.etcd.s3.
	S3 S3Credentials
	// Snapshots that are wanted, or were made, in the order in which they are made.
	Snapshots []Snapshot
	// Now is the time in seconds since 1970. Numbers that become part of IDs are not below it, so that a hub that was
	// restored gives no number a second time.
	Now int64
	// Restores that are wanted, or have ended, in the order in which they are done.
	Restores []Restore
	// Generation of the spec.
	Generation int64
	// Refused reports that the spec cannot be had as it is: nothing is done but to restore.
	Refused bool
}

// S3Credentials are the credentials of a store. All are optional.
type S3Credentials struct {
	AccessKey, SecretKey string
	CA                   []byte
}

// Spec is what the user wants, as it was read.
type Spec struct {
	provisionv1.ClusterInstallationSpec
	// Config and ServerConfig are what CheckConfig returned.
	Config, ServerConfig map[string]any
	// Selectors of the pools.
	Selectors []labels.Selector
}

// Stored is what was decided once, and the tokens by which hosts join. It is kept in a Secret.
type Stored struct {
	Token      string `json:"token"`
	AgentToken string `json:"agentToken"`
	// First is the host that begins the cluster: of two that did, there would be two clusters.
	First string `json:"first,omitempty"`
	// Begun is true once that host was up: from then on none begins the cluster again.
	Begun bool `json:"begun,omitempty"`
	// Nodes are the hosts that were given instructions to join, by name, until their nodes were removed.
	Nodes map[string]Node `json:"nodes,omitempty"`
	// Joins counts them.
	Joins int64 `json:"joins,omitempty"`
	// Keys is the last rotation of encryption keys that was done, and KeysFailed the last rotation that failed, with
	// KeysProblem for people.
	Keys        int64  `json:"keys,omitempty"`
	KeysFailed  int64  `json:"keysFailed,omitempty"`
	KeysProblem string `json:"keysProblem,omitempty"`
	// Outcomes of snapshots and restores, by their IDs.
	Outcomes map[string]Outcome `json:"outcomes,omitempty"`
	StoredRestores
}

// Node is a host that was given instructions to join.
type Node struct {
	// UID of the Host: another one of its name is another machine.
	UID string `json:"uid"`
	// Join is its number.
	Join int64 `json:"join"`
	// Etcd reports whether it is to have a part in etcd.
	Etcd bool `json:"etcd,omitempty"`
	// Planned reports that the host had instructions: a host whose instructions were taken away is being cleaned. The
	// name comes from the format in which it is stored.
	Planned bool `json:"planned,omitempty"`
	// Address that its machine reported when it became a node.
	Address string `json:"address,omitempty"`
}

// Host is what is known of one.
type Host struct {
	Name, UID string
	Labels    map[string]string
	// Address at which other hosts reach it, "" if it reports none.
	Address string
	// NodeIPs are the address that its node has, and one of the other family of IP if the machine reports one,
	// which the node has too in a cluster of both. None leaves that to the distribution.
	NodeIPs []string
	// NodeLabels and NodeTaints are what its join command gave.
	NodeLabels, NodeTaints []string
	// Taken for this cluster; any other is free.
	Taken bool
	// Leaving hosts are being deleted. They are cleaned once they are given back.
	Leaving bool
	// Gone hosts are being deleted and have not been connected since: they are not waited for.
	Gone      bool
	Connected bool
	// Lost hosts have not been connected for so long that what runs on them is given up.
	Lost bool
	// Held is what is remembered with its instructions, nil without instructions.
	Held *Held
	// Host is how far it is with its instructions.
	progress.Host
}

// poolOf returns the first pool that selects a host, nil for none.
func (in *Input) poolOf(host Host) *provisionv1.HostPool {
	for i, selector := range in.Spec.Selectors {
		if selector.Matches(labels.Set(host.Labels)) {
			return &in.Spec.Pools[i]
		}
	}
	return nil
}

// assumeUnreadable has each host whose instructions cannot be read count as a member of its pool that is away: it keeps
// its part in the cluster, and no other host waits for it longer than for a lost one.
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
