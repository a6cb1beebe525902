// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k3s decides, for a cluster of Hosts that k3s or RKE2 is installed on, which Hosts it has and what each of them is to do now.
//
// It is pure. The caller stores what was decided once, takes and gives back Hosts, and writes their plans, in this order; then it asks again.
package k3s

import (
	"cmp"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
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
	// Now is the time in seconds since 1970. Numbers that become part of IDs are not below it: a hub that was restored gives none a second time.
	Now int64
	// Restores that are wanted, or have ended, in the order in which they are done.
	Restores []Restore
	// Generation of the spec.
	Generation int64
	// Refused reports that the spec cannot be had as it is: nothing is done but to restore.
	Refused bool

	task *task        // that a server does now, nil for none
	dist distribution // that spec names
}

// S3Credentials are those of a store. All are optional.
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
	// Nodes are the hosts that have been given a plan to join, by name, until their nodes were removed.
	Nodes map[string]Node `json:"nodes,omitempty"`
	// Joins counts them.
	Joins int64 `json:"joins,omitempty"`
	// Keys is the last rotation of encryption keys that was done, and KeysFailed the last that was not, with KeysProblem for people.
	Keys        int64  `json:"keys,omitempty"`
	KeysFailed  int64  `json:"keysFailed,omitempty"`
	KeysProblem string `json:"keysProblem,omitempty"`
	// Outcomes of snapshots and restores, by their IDs.
	Outcomes map[string]Outcome `json:"outcomes,omitempty"`
	StoredRestores
}

// Node is a host that was given a plan to join.
type Node struct {
	// UID of the Host: another one of its name is another machine.
	UID string `json:"uid"`
	// Join is its number.
	Join int64 `json:"join"`
	// Etcd reports whether it is to have a part in etcd.
	Etcd bool `json:"etcd,omitempty"`
	// Planned reports that the host had a plan: one without it is being cleaned.
	Planned bool `json:"planned,omitempty"`
	// Address that its machine reported when it became a node.
	Address string `json:"address,omitempty"`
}

// Progress is how far a host is with the plan that it has.
type Progress int

// Progress of a host.
const (
	// None: it has no plan, or does not have the newest yet.
	None Progress = iota
	// Running: its instructions run.
	Running
	// Unwell: they have succeeded, and a probe is not successful yet, or no longer.
	Unwell
	// Up: all is done, and works.
	Up
	// Failed: an instruction has failed, or was interrupted. It is not repeated.
	Failed
)

// busy reports whether a host is on its way to being up.
func (p Progress) busy() bool { return p == None || p == Running || p == Unwell }

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
	// Held is what is remembered with its plan, nil without one.
	Held     *Held
	Progress Progress
	// Detail says what it is busy with, or what has failed, and Output is the last of what that wrote.
	Detail, Output string
}

// Decision is what to do now.
type Decision struct {
	// Stored is to be stored before anything else is done, if it has changed.
	Stored Stored
	// Take and Release are names of Hosts.
	Take, Release []string
	// Instructions that hosts are to have now, by name.
	Instructions map[string]*Instructions
	// Waiting says what hosts wait for that are not ready, by name.
	Waiting map[string]string
	// Hosts and Ready count those of the cluster, with those that leave it.
	Hosts, Ready int
	// Missing is how many Hosts the pools lack, of which none is free.
	Missing int
	// Lost reports that no host has the cluster's data any more.
	Lost bool
	// Unselected reports that hosts have the cluster's data, and no pool selects one of them.
	Unselected bool
	// Task is the ID of the task that TaskHost does now, empty for none.
	Task, TaskHost string
	// Restore is the one that is next or under way.
	Restore CurrentRestore
	// Configure is the spec that the caller is to write back now, and to note the generation of in Stored.Restore. Nil for none.
	Configure []byte
	// stuck reports that members of etcd are to be removed, and that no server can do that before it is changed.
	stuck bool
}

// removal is a node that is to be removed from the cluster.
type removal struct {
	Node string
	Join int64
	// host that leaves, nil if it is gone.
	host *Host
}

// id is another one whenever the node has joined again.
func (r removal) id() string { return "remove-" + digest(r.Node, r.Join) }

// decision is the state of one Decide.
type decision struct {
	*roster
	out Decision
	// joining is a server with etcd that joins, "" for none.
	joining string
}

// Decide decides what to do now. The same input always gives the same decision.
func Decide(in Input) (Decision, error) {
	dist, err := distributionOf(in.Spec.Distribution)
	if err != nil {
		return Decision{}, err
	}
	in.dist = dist
	d := &decision{roster: &roster{Input: &in}}
	d.out = Decision{Stored: in.Stored, Instructions: map[string]*Instructions{}, Waiting: map[string]string{}}
	d.out.Stored.Nodes, d.stored = maps.Clone(in.Stored.Nodes), &d.out.Stored
	in.Hosts = slices.Clone(in.Hosts)
	slices.SortFunc(in.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	d.pinAddresses()
	for i := range in.Hosts {
		if held := in.Hosts[i].Held; held != nil && held.Unreadable {
			d.assume(&in.Hosts[i])
		}
	}
	d.sort()
	if restores, err := d.restore(); restores || err != nil {
		d.count()
		return d.out, err
	}
	if d.Refused {
		d.out.Take = nil
		d.waitAll("a spec that can be had")
	}
	if d.Refused || !d.begin() {
		d.count()
		return d.out, nil
	}
	if err := d.change(d.removals()); err != nil {
		return Decision{}, err
	}
	if err := d.join(); err != nil {
		return Decision{}, err
	}
	d.count()
	return d.out, nil
}

// sort puts Hosts into pools, takes those that pools lack, and finds those that are to leave.
func (d *decision) sort() {
	for i := range d.Spec.Pools {
		pool := &d.Spec.Pools[i]
		var have []*member
		var free []string
		for _, host := range d.Hosts {
			if d.poolOf(host) != pool || host.Leaving || d.unplanned(&host) {
				continue
			}
			switch {
			case !host.Taken:
				free = append(free, host.Name)
			case host.Held == nil || host.Held.Roles == rolesOf(pool):
				have = append(have, &member{host, pool})
			}
		}
		want := len(have) + len(free)
		if pool.Replicas != nil {
			want = int(*pool.Replicas)
			d.out.Missing += max(want-len(have)-len(free), 0)
		}
		slices.SortStableFunc(have, func(a, b *member) int { return cmp.Compare(worth(b, d.Stored), worth(a, d.Stored)) })
		d.stay = append(d.stay, have[:min(want, len(have))]...)
		d.out.Take = append(d.out.Take, free[:min(max(want-len(have), 0), len(free))]...)
	}
	slices.SortFunc(d.stay, func(a, b *member) int { return cmp.Compare(a.Name, b.Name) })
	slices.Sort(d.out.Take)
	d.byName = make(map[string]*member, len(d.stay))
	for _, m := range d.stay {
		d.byName[m.Name] = m
	}
	for _, host := range d.Hosts {
		if host.Taken && d.named(host.Name) == nil {
			d.leave = append(d.leave, host)
		}
	}
}

// worth says which hosts of a pool are to stay where it has too many: those that work.
func worth(m *member, stored Stored) int {
	switch {
	case stored.Restore != nil && stored.Restore.By == m.Name && stored.Restore.UID == m.UID:
		return 4
	case m.working() && m.Name == stored.First:
		return 3
	case m.working():
		return 2
	case m.Held != nil && m.Connected:
		return 1
	}
	return 0
}

// begin chooses the host that begins the cluster, and reports whether hosts may have plans. The choice is stored before that host has one.
func (d *decision) begin() bool {
	s, etcd := &d.out.Stored, d.with(provisionv1.RoleEtcd)
	first := d.named(s.First)
	if first != nil && first.up() && first.Held.Join == "" {
		s.Begun = true
	}
	if s.Begun {
		return d.hasData() || d.stop()
	}
	// There is no cluster yet that a node could be removed from.
	for _, host := range d.leave {
		d.release(host)
	}
	maps.DeleteFunc(s.Nodes, func(name string, n Node) bool { m := d.named(name); return m == nil || m.UID != n.UID })
	switch {
	case first != nil:
		return true
	case len(d.leave) > 0:
		d.waitAll("the hosts that leave to be clean, before one begins the cluster")
		return false
	}
	slices.SortStableFunc(etcd, func(a, b *member) int {
		return count(b.is(provisionv1.RoleControlPlane)) - count(a.is(provisionv1.RoleControlPlane))
	})
	if i := slices.IndexFunc(etcd, func(m *member) bool { return m.Connected && m.Address != "" }); i >= 0 {
		s.First = etcd[i].Name
	}
	d.waitAll("a connected host with the role etcd that reports an address, to begin the cluster")
	return false
}

// stop leaves everything as it is, since no host stays that has the cluster's data. Hosts that are being deleted are let go. It returns false.
func (d *decision) stop() bool {
	why := "a decision: no host has the cluster's data any more"
	d.out.Unselected = slices.ContainsFunc(d.leave, func(h Host) bool { return isEtcd(&h) && !h.Leaving && !d.isOld(&h) })
	if d.out.Lost = !d.out.Unselected; d.out.Unselected {
		why = "a decision: no pool selects a host that has the cluster's data"
	}
	d.out.Take = nil
	d.waitAll(why)
	for _, host := range d.leave {
		d.out.Waiting[host.Name] = "waits for " + why
		if host.Leaving {
			d.release(host)
		}
	}
	return false
}

// release gives a host back, or lets one go that is being deleted.
func (d *decision) release(host Host) {
	d.out.Waiting[host.Name] = "leaves, and is cleaned"
	d.out.Release = append(d.out.Release, host.Name)
}

func (d *decision) waitAll(why string) {
	for _, m := range d.stay {
		d.out.Waiting[m.Name] = "waits for " + why
	}
}

// count counts the hosts, and those that are ready.
func (d *decision) count() {
	d.out.Hosts = len(d.stay) + len(d.leave)
	for _, m := range d.stay {
		if d.out.Waiting[m.Name] == "" {
			d.out.Ready++
		}
	}
	slices.Sort(d.out.Release)
}
