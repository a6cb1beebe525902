// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package roster determines which Hosts belong to a cluster, and whether they are healthy.
//
// A Roster has only facts and predicates. It neither makes decisions nor creates instructions.
package roster

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/version"

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
	// Config and ServerConfig are the results of the distribution's CheckConfig.
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

// Remember records the outcome of a snapshot or restore.
func (in *Input) Remember(id string, o Outcome) {
	if in.Stored.Outcomes == nil {
		in.Stored.Outcomes = map[string]Outcome{}
	}
	in.Stored.Outcomes[id] = o
}

// Forget removes the outcomes of snapshots and restores that no longer exist.
func (in *Input) Forget() {
	before := in.Stored.Outcomes
	in.Stored.Outcomes = nil
	keep := func(id string) {
		if o, ended := before[id]; ended {
			in.Remember(id, o)
		}
	}
	for _, snap := range in.Snapshots {
		keep(snap.ID)
	}
	for _, restore := range in.Restores {
		keep(restore.ID)
	}
}

// Snapshot is a requested etcd snapshot.
type Snapshot struct {
	// ID is unique to the snapshot.
	ID string
	// Name is a prefix of the file name.
	Name string
}

// Outcome describes how a task or restore has ended.
type Outcome struct {
	Host string `json:"host"`
	// Problem tells users why the task failed. It is empty if the task succeeded.
	Problem string `json:"problem,omitempty"`
	// Canceled reports whether a restore was canceled before data was replaced. Restored reports whether data was
	// replaced.
	Canceled bool `json:"canceled,omitempty"`
	Restored bool `json:"restored,omitempty"`
}

// Held is the note that is stored with a host's instructions in the same Secret. It contains no secrets.
type Held struct {
	// Unreadable is true if the note cannot be read. The instructions of such a host are not changed.
	Unreadable bool `json:"-"`
	// Roles are the roles of the host, sorted and separated by commas.
	Roles string `json:"roles"`
	// Join is the URL that the host used to join. It is empty for the host that started the cluster.
	Join string `json:"join,omitempty"`
	// Version is the installed version.
	Version string `json:"version"`
	// Install identifies the installation. Start identifies the state of everything that requires a restart of the host
	// when it changes.
	Install string `json:"install"`
	Start   string `json:"start"`
	// Installs and Starts are sequence numbers for the values of Install and Start. If an earlier value recurs, it gets
	// a new number and therefore a new instruction.
	Installs int64 `json:"installs"`
	Starts   int64 `json:"starts"`
	// Changed is true if the host already belonged to the cluster when it got these instructions.
	Changed bool `json:"changed,omitempty"`
	// Task is the ID of the task in the instructions. It is empty if there is no task.
	Task string `json:"task,omitempty"`
	// Removes are the IDs of the instructions that remove nodes.
	Removes []string `json:"removes,omitempty"`
	Part
}

// Part describes a host's part in etcd restores.
type Part struct {
	// Epoch is the restore that the host's data comes from. A host that joins without data has the epoch of the
	// cluster.
	Epoch string `json:"epoch,omitempty"`
	// Finds is set while the host searches for the file of a restore, and Stopped is set while the host is stopped for
	// a restore. Each contains the ID of the restore.
	Finds   string `json:"finds,omitempty"`
	Stopped string `json:"stopped,omitempty"`
	// Restores is set while the host replaces its data, and until it is up again. It contains the ID of the restore.
	Restores string `json:"restores,omitempty"`
	// Resumes is true if the host is restarted with the data that it had before it was stopped. It remains set until
	// the host is up again.
	Resumes bool `json:"resumes,omitempty"`
	// Rejoins is true if the host moves its data away before it is started. It remains set until the host is up again.
	Rejoins bool `json:"rejoins,omitempty"`
}

// StoredRestores is the stored state of etcd restores.
type StoredRestores struct {
	// Restore is the restore in progress, or nil if there is none.
	Restore *Restoring `json:"restore,omitempty"`
	// Epoch is the last restore that replaced the etcd data. A server that has data from a different epoch is not
	// started with that data.
	Epoch string `json:"epoch,omitempty"`
	// Stops is the last restore that stopped the servers. The servers are restarted after that restore.
	Stops string `json:"stops,omitempty"`
}

// Restore is an EtcdRestore. It may already have ended.
type Restore struct {
	// ID is unique to the restore, and Name is its name for users.
	ID   string `json:"id"`
	Name string `json:"name"`
	// Host is the host that has the file on its disk. If Host is empty, the file is in the object store.
	Host string `json:"host,omitempty"`
	// File is the name of the snapshot file. If Begins is set, File is a prefix of the name.
	File   string `json:"file"`
	Begins bool   `json:"begins,omitempty"`
	// Configuration is the spec that must be written back before data is replaced. It is nil if there is none.
	Configuration []byte `json:"configuration,omitempty"`
	// Cancel ends the restore if no data has been replaced yet.
	Cancel bool `json:"-"`
	// Problem explains why the restore cannot be carried out. It is empty if the restore can be carried out.
	Problem string `json:"-"`
}

// Step is the current step of a restore.
type Step string

// Steps of a restore, in the order in which they are taken.
const (
	// StepFind means that the host searches for the file. If the file is missing, no server is stopped.
	StepFind Step = "Find"
	// StepStop means that all servers are stopped.
	StepStop Step = "Stop"
	// StepRestore means that one server replaces its data.
	StepRestore Step = "Restore"
	// StepJoin means that the server with the restored data is started and the other servers join it.
	StepJoin Step = "Join"
	// StepNodes means that nodes are removed if they come from the snapshot but no longer belong to the cluster.
	StepNodes Step = "Nodes"
)

// Restoring is the restore in progress. It is stored so that the choice of the host does not change.
type Restoring struct {
	Restore `json:",inline"`
	Step    Step `json:"step"`
	// By is the name of the Host that restores the data. UID is the UID of that Host.
	By  string `json:"by"`
	UID string `json:"uid"`
	// Configured is the generation of the installation after its spec was written back. It is 0 until then.
	Configured int64 `json:"configured,omitempty"`
}

// Replacing reports whether data may have been replaced. If so, it is too late to cancel the restore.
func (r *Restoring) Replacing() bool { return r.Step != StepFind && r.Step != StepStop }

// Joins reports whether data has been replaced and the other servers are joining the restored server.
func (r *Restoring) Joins() bool { return r.Step == StepJoin || r.Step == StepNodes }

// CheckVersion returns an error if the servers cannot be changed to the version in the spec. The minor version in the
// spec must not be older than the minor version of any working server. It must be at most one minor version newer than
// the version of each server.
func CheckVersion(in Input) error {
	want, err := version.ParseGeneric(in.Spec.Version)
	if err != nil {
		return fmt.Errorf("spec.version: %w", err)
	}
	for _, host := range in.Hosts {
		if !host.Taken || host.Gone || host.Held == nil || host.Held.Roles == "worker" || in.IsOld(&host) || in.replaces(&host) {
			continue
		}
		has, err := version.ParseGeneric(host.Held.Version)
		if err != nil {
			continue // not comparable
		}
		switch {
		case has.Major() == want.Major() && want.Minor() > has.Minor()+1:
			return fmt.Errorf("spec.version %s is more than one minor version above the %s of server %s: set the next minor version first", in.Spec.Version, host.Held.Version, host.Name)
		case host.State != progress.Failed && has.Major() == want.Major() && want.Minor() < has.Minor():
			return fmt.Errorf("spec.version %s is a minor version below the %s of server %s: Kubernetes cannot be downgraded", in.Spec.Version, host.Held.Version, host.Name)
		}
	}
	return nil
}

// replaces reports whether a stopped server replaces its data, or joins a cluster whose data was replaced. In both
// cases, the server's previous version no longer matters.
func (in *Input) replaces(host *Host) bool {
	r := in.Stored.Restore
	return host.Held.Stopped != "" && (r != nil && r.Replacing() || host.Held.Epoch != in.Stored.Epoch)
}
