// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package restore carries out restores of etcd, one step at a time.
//
// The stored Restoring holds the current step. A step changes the draft of a decision, and ends when it has to wait.
package restore

import (
	"cmp"
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// Continue performs the steps of a restore that are possible now, and reports whether a restore is in progress. If so,
// no other changes are made.
func Continue(d *decision.Draft) (bool, error) {
	d.Roster.Forget()
	if d.Roster.Stored.Restore == nil && !begin(d) {
		return false, nil
	}
	if d.Roster.Stored.Restore == nil { // waiting for hosts to be claimed for the restore
		return true, nil
	}
	r := *d.Roster.Stored.Restore
	d.Roster.Stored.Restore = &r
	d.Out.Take = nil
	return restoration{&r, d}.step()
}

// step performs the steps of the restore that are possible now, and reports whether the restore is still in progress.
func (r restoration) step() (bool, error) {
	wanted := slices.IndexFunc(r.Roster.Restores, func(w roster.Restore) bool { return w.ID == r.ID })
	switch {
	case !r.Replacing() && (wanted < 0 || r.Roster.Restores[wanted].Cancel), r.Joins() && wanted < 0:
		return r.end(roster.Outcome{Canceled: true})
	case r.Joins() && !r.Roster.HasData():
		return r.end(roster.Outcome{Problem: "no server stays that has the restored data"})
	}
	r.WaitAll("EtcdRestore " + r.Name)
	r.Out.Restore = decision.CurrentRestore{ID: r.ID, Name: r.Name, Step: r.Step, Host: r.By}
	for _, step := range []struct {
		name roster.Step
		do   func() (done bool, err error)
	}{
		{roster.StepFind, r.find}, {roster.StepStop, r.stopServers}, {roster.StepRestore, r.replace}, {roster.StepJoin, r.joinRestored},
		{roster.StepNodes, r.cleanNodes},
	} {
		if r.Step != step.name {
			continue
		}
		done, err := step.do()
		switch {
		case err != nil:
			return true, err
		case r.Roster.Stored.Restore == nil: // the restore has ended
			return false, nil
		case !done:
			return true, nil
		}
		r.Step = next(r.Step)
		r.Out.Restore.Step = r.Step
	}
	return true, nil
}

func next(step roster.Step) roster.Step {
	all := []roster.Step{roster.StepFind, roster.StepStop, roster.StepRestore, roster.StepJoin, roster.StepNodes}
	return all[min(slices.Index(all, step)+1, len(all)-1)]
}

// begin starts the next restore if possible. It reports whether a restore has started or is waiting for hosts.
// If so, no other changes may be made.
func begin(d *decision.Draft) bool {
	for _, wanted := range d.Roster.Restores {
		if _, ended := d.Roster.Stored.Outcomes[wanted.ID]; ended || wanted.Problem != "" && !wanted.Cancel {
			continue
		}
		if wanted.Cancel {
			d.Roster.Remember(wanted.ID, roster.Outcome{Canceled: true})
			continue
		}
		d.Out.Restore = decision.CurrentRestore{ID: wanted.ID, Name: wanted.Name}
		if !d.Roster.Stored.Begun {
			d.Out.Restore.Waits = "its cluster to begin: there is none yet whose data could be replaced"
			return false
		}
		by := restorer(d.Roster, wanted)
		if by == nil {
			return takeRestorer(d, wanted)
		}
		d.Out.Restore.Host = by.Name
		if why := serverAway(d.Roster); why != "" || !by.Connected {
			d.Out.Restore.Away, d.Out.Restore.Waits = true, cmp.Or(why, busyWith(by, "is to restore it"))
			return false
		}
		r := &roster.Restoring{Restore: wanted, Step: roster.StepFind, By: by.Name, UID: by.UID}
		if wanted.Host == "" || by.Held == nil { // no host can search for the file
			r.Step = roster.StepStop
		}
		d.Roster.Stored.Restore = r
		return true
	}
	return false
}

// takeRestorer describes what a restore is waiting for if no host can carry it out. If none of the hosts has the
// cluster's data, it claims free Hosts.
func takeRestorer(d *decision.Draft, wanted roster.Restore) bool {
	d.Out.Restore.Waits = "a connected server with etcd"
	if wanted.Host != "" {
		d.Out.Restore.Waits = fmt.Sprintf("Host %s to be a server with etcd of this cluster, which reports an address", wanted.Host)
	}
	return d.Roster.Lost() && len(d.Out.Take) > 0
}

// restorer returns the host that can carry out the restore, or nil if there is none. The host must have the file on its
// disk. If the file is in the object store, any server with etcd can carry out the restore.
func restorer(r *roster.Roster, wanted roster.Restore) *roster.Member {
	var best *roster.Member
	for _, m := range r.Ordered() {
		switch {
		case !m.Is(provisionv1.RoleEtcd) || m.Address == "" || wanted.Host != "" && m.Name != wanted.Host:
		case wanted.Host != "":
			return m
		case m.Connected && (best == nil || best.Held == nil && m.Held != nil):
			best = m
		}
	}
	return best
}
