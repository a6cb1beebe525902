// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k3s decides which Hosts belong to a k3s or RKE2 cluster, and which instructions each Host has to carry out.
//
// The package has no side effects. The caller first stores the decisions that must not be made twice. Then it claims
// and releases Hosts, and writes their instructions. After that, it calls Decide again.
//
// Decide lists all steps of a decision. Each step is in its own file: restore, begin, leave, task, change and join. The
// roster determines which hosts are in the cluster and whether they are healthy, without changing anything. The writer
// creates the instructions for a host.
package k3s

import (
	"cmp"
	"maps"
	"slices"

	"github.com/drover-dev/drover/internal/provision/progress"
)

// Decision lists the actions to take now.
type Decision struct {
	// Stored is the new state. If it has changed, it must be stored before anything else is done.
	Stored Stored
	// Take and Release are the names of Hosts to claim and to release.
	Take, Release []string
	// Instructions are the instructions that hosts must have now, by host name.
	Instructions map[string]*Instructions
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
	// stuck is true if etcd members must be removed, but there is no server that is both working and up to date and
	// could remove them.
	stuck bool
}

// decision builds a Decision. Its steps change the out field and the input's Stored, which is a copy.
type decision struct {
	*roster
	out Decision
	// task is the task that a server is carrying out, or nil if there is none.
	task *task
	// joining is a server with etcd that is joining, or "" if there is none.
	joining string
}

// Decide returns the actions to take now. The same input always results in the same decision.
func Decide(in Input) (Decision, error) {
	dist, err := distributionOf(in.Spec.Distribution)
	if err != nil {
		return Decision{}, err
	}
	in.Stored.Nodes = maps.Clone(in.Stored.Nodes)
	in.Hosts = slices.Clone(in.Hosts)
	slices.SortFunc(in.Hosts, func(a, b Host) int { return cmp.Compare(a.Name, b.Name) })
	in.pinAddresses()
	in.assumeUnreadable()
	d := &decision{roster: newRoster(&writer{Input: &in, dist: dist})}
	d.out = Decision{
		Instructions: map[string]*Instructions{}, Waiting: map[string]string{}, Take: d.free, Missing: d.missing,
	}
	if err := d.steps(); err != nil {
		return Decision{}, err
	}
	d.count()
	d.out.Stored = d.Stored
	d.out.Etcd, err = d.progress()
	return d.out, err
}

// steps performs the steps of the decision in order. It returns when a step has to wait.
func (d *decision) steps() error {
	if restores, err := d.restore(); restores || err != nil {
		return err
	}
	if d.Refused {
		d.out.Take = nil
		d.waitAll("a spec that can be had")
		return nil
	}
	if !d.begin() {
		return nil
	}
	removes := d.leaves()
	d.decideTask(len(removes))
	if err := d.change(removes); err != nil {
		return err
	}
	return d.join()
}

func (d *decision) give(m *member, join string) error {
	instructions, err := d.write.render(m, join, d.dutiesOf(m, nil))
	if err == nil {
		d.out.Instructions[m.Name] = instructions
	}
	return err
}

func (d *decision) release(host Host) {
	d.out.Waiting[host.Name] = "leaves, and is cleaned"
	d.out.Release = append(d.out.Release, host.Name)
}

func (d *decision) waitAll(why string) {
	for _, m := range d.stay {
		d.out.Waiting[m.Name] = "waits for " + why
	}
}

func (d *decision) count() {
	d.out.Hosts = len(d.stay) + len(d.leave)
	for _, m := range d.stay {
		if d.out.Waiting[m.Name] == "" {
			d.out.Ready++
		}
	}
	slices.Sort(d.out.Release)
}
