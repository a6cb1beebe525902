// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package k3s decides which Hosts a cluster of k3s or RKE2 has, and what each of them does now.
//
// It is pure. The caller stores what was decided once, takes and gives back Hosts, and writes their instructions, in
// this order. Then it asks again.
//
// Decide is the table of contents. The roster says who is in the cluster and how it works, and changes nothing. The
// writer makes the instructions of a host. Each step of a decision has a file: restore, begin, leave, task, change and
// join.
package k3s

import (
	"cmp"
	"maps"
	"slices"
)

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
	// Hosts and Ready count the hosts of the cluster, with those that leave it.
	Hosts, Ready int
	// Missing is the number of Hosts that the pools lack, and for which no Host is free.
	Missing int
	// Lost reports that no host has the cluster's data any more.
	Lost bool
	// Unselected reports that hosts have the cluster's data, and no pool selects one of them.
	Unselected bool
	// Task is the ID of the task that TaskHost does now, empty for none.
	Task, TaskHost string
	// Restore is the restore that is next or under way.
	Restore CurrentRestore
	// Configure is the spec that the caller is to write back now, and to note the generation of in Stored.Restore. Nil
	// for none.
	Configure []byte
	// stuck reports that members of etcd are to be removed, and that no server can do that before it is changed.
	stuck bool
}

// decision is a Decision in the making. Its steps change Stored of the input, which is a copy, and out.
type decision struct {
	*roster
	out Decision
	// task is the task that a server does now, nil for none.
	task *task
	// joining is a server with etcd that joins, "" for none.
	joining string
}

// Decide decides what to do now. The same input always gives the same decision.
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
	return d.out, nil
}

// steps takes the steps in their order, as far as they can be taken now.
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

// give gives a host the instructions that it is to have.
func (d *decision) give(m *member, join string) error {
	instructions, err := d.write.render(m, join, d.dutiesOf(m, nil))
	if err == nil {
		d.out.Instructions[m.Name] = instructions
	}
	return err
}

// release gives a host back, or lets a host go that is being deleted.
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
