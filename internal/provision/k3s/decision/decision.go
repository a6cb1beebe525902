// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package decision contains a decision about a cluster of Hosts, and the draft of a decision that is being made.
//
// The steps of a decision change the draft. They do not call each other.
package decision

import (
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// Decision lists the actions to take now.
type Decision struct {
	// Stored is the new state. If it has changed, it must be stored before anything else is done.
	Stored roster.Stored
	// Take and Release are the names of Hosts to claim and to release.
	Take, Release []string
	// Instructions are the instructions that hosts must have now, by host name.
	Instructions map[string]*distribution.Instructions
	// Waiting contains the hosts that are not ready. It maps each host's name to the reason why it is waiting.
	Waiting map[string]string
	// Hosts and Ready count the cluster's hosts, including hosts that are leaving.
	Hosts, Ready int
	// Missing is the number of additional Hosts that the pools need.
	Missing int
	// Lost is true if none of the hosts has the cluster's data any longer.
	Lost bool
	// Unselected is true if some hosts have the cluster's data, but no pool selects any of them.
	Unselected bool
	// Task is the ID of the task that TaskHost is carrying out. It is empty if there is no such task.
	Task, TaskHost string
	// Restore is the next restore, or the restore in progress.
	Restore CurrentRestore
	// Etcd is the progress of all snapshots and restores. It may be shown once Stored has been stored.
	Etcd progress.All
	// Configure is the spec that the caller must write back now, or nil if there is none. The caller must record the
	// new generation in Stored.Restore.
	Configure []byte
	// Stuck is true if etcd members must be removed, but there is no server that is both working and up to date and
	// could remove them.
	Stuck bool
}

// CurrentRestore describes the next restore or the restore in progress.
type CurrentRestore struct {
	// ID and Name identify the restore. They are empty if there is no restore.
	ID, Name string
	// Step is empty if the restore has not started.
	Step roster.Step
	// Host is the host that restores the data. It is empty if no host has been selected yet.
	Host string
	// Waits describes what the restore is waiting for.
	Waits string
	// Away is true if the restore is waiting for a disconnected host.
	Away bool
}

// WaitsFor describes what the restore is waiting for, as the end of a sentence.
func (r CurrentRestore) WaitsFor() string {
	if r.Waits == "" {
		return ""
	}
	return ": waits for " + r.Waits
}

// Task is a one-time instruction for one server. It restarts nothing, and is the last of the server's instructions.
type Task struct {
	protocol.HostInstruction
	// What describes the task for users.
	What string
	// Role is the role that the server must have.
	Role provisionv1.HostRole
	// Ended records the outcome.
	Ended func(roster.Outcome)
	// Calm is true if the task may start only while all servers are up and no server is being changed.
	Calm bool
	// Host is the host with the task, or "" if the task has not been assigned.
	Host string
}

// Draft is a decision that is being made. Its Roster holds the facts, including the stored state.
type Draft struct {
	Roster *roster.Roster
	Writer *distribution.Writer
	Out    Decision
	// Task is the task that a server is carrying out, or nil if there is none.
	Task *Task
	// Joining is a server with etcd that is joining, or "" if there is none.
	Joining string
}

// Begin returns a draft without actions, except that free Hosts are claimed for the pools.
func Begin(r *roster.Roster, dist distribution.Distribution) *Draft {
	return &Draft{Roster: r, Writer: &distribution.Writer{Input: &r.Input, Distribution: dist}, Out: Decision{
		Instructions: map[string]*distribution.Instructions{}, Waiting: map[string]string{}, Take: r.Free, Missing: r.Missing,
	}}
}

// Finish counts the hosts, and returns the decision without the progress of snapshots and restores.
func (d *Draft) Finish() Decision {
	d.Out.Hosts = len(d.Roster.Stay) + len(d.Roster.Leave)
	for _, m := range d.Roster.Stay {
		if d.Out.Waiting[m.Name] == "" {
			d.Out.Ready++
		}
	}
	slices.Sort(d.Out.Release)
	d.Out.Stored = d.Roster.Stored
	return d.Out
}

// Give gives a host the instructions to join through a URL, and to carry out its task.
func (d *Draft) Give(m *roster.Member, join string) error {
	instructions, err := d.Writer.Render(m, join, d.Duties(m, nil))
	if err == nil {
		d.Out.Instructions[m.Name] = instructions
	}
	return err
}

// Duties returns the duties of a host that must remove the given nodes.
func (d *Draft) Duties(m *roster.Member, removes []distribution.Removal) distribution.Duties {
	does := distribution.Duties{Removes: removes}
	if d.Task != nil && d.Task.Host == m.Name {
		does.Task = &d.Task.HostInstruction
	}
	return does
}

// IsCurrent reports whether a host has been started with its current instructions.
func (d *Draft) IsCurrent(m *roster.Member) bool {
	if m.Held == nil {
		return false
	}
	now, err := d.Writer.Render(m, m.Held.Join, distribution.Duties{})
	return err == nil && now.Start == m.Held.Start
}

// Release releases a host that leaves the cluster.
func (d *Draft) Release(host roster.Host) {
	d.Out.Waiting[host.Name] = "leaves, and is cleaned"
	d.Out.Release = append(d.Out.Release, host.Name)
}

// WaitAll makes all members wait.
func (d *Draft) WaitAll(why string) {
	for _, m := range d.Roster.Stay {
		d.Out.Waiting[m.Name] = "waits for " + why
	}
}
