// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"slices"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/progress"
)

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

// joins reports whether data has been replaced and the other servers are joining the restored server.
func (r *Restoring) joins() bool { return r.Step == StepJoin || r.Step == StepNodes }

// CurrentRestore describes the next restore or the restore in progress.
type CurrentRestore struct {
	// ID and Name identify the restore. They are empty if there is no restore.
	ID, Name string
	// Step is empty if the restore has not started.
	Step Step
	// Host is the host that restores the data. It is empty if no host has been selected yet.
	Host string
	// Waits describes what the restore is waiting for.
	Waits string
	// Away is true if the restore is waiting for a disconnected host.
	Away bool
}

// restoration carries out the restore in progress. Its steps change the decision and the stored Restoring.
type restoration struct {
	*Restoring
	d *decision
}

// restore performs the steps of a restore that are possible now, and reports whether a restore is in progress. If so,
// no other changes are made.
func (d *decision) restore() (bool, error) {
	d.forget()
	if d.Stored.Restore == nil && !d.beginRestore() {
		return false, nil
	}
	if d.Stored.Restore == nil { // waiting for hosts to be claimed for the restore
		return true, nil
	}
	r := *d.Stored.Restore
	d.Stored.Restore = &r
	d.out.Take = nil
	return restoration{&r, d}.step()
}

// step performs the steps of the restore that are possible now, and reports whether the restore is still in progress.
func (r restoration) step() (bool, error) {
	d := r.d
	wanted := slices.IndexFunc(d.Restores, func(w Restore) bool { return w.ID == r.ID })
	switch {
	case !r.Replacing() && (wanted < 0 || d.Restores[wanted].Cancel), r.joins() && wanted < 0:
		r.end(Outcome{Canceled: true})
		return false, nil
	case r.joins() && !d.hasData():
		r.end(Outcome{Problem: "no server stays that has the restored data"})
		return false, nil
	}
	d.waitAll("EtcdRestore " + r.Name)
	d.out.Restore = CurrentRestore{ID: r.ID, Name: r.Name, Step: r.Step, Host: r.By}
	for _, step := range []struct {
		name Step
		do   func() (done bool, err error)
	}{
		{StepFind, r.find}, {StepStop, r.stopServers}, {StepRestore, r.replace}, {StepJoin, r.joinRestored},
		{StepNodes, r.cleanNodes},
	} {
		if r.Step != step.name {
			continue
		}
		done, err := step.do()
		switch {
		case err != nil:
			return true, err
		case d.Stored.Restore == nil: // the restore has ended
			return false, nil
		case !done:
			return true, nil
		}
		r.Step = next(r.Step)
		d.out.Restore.Step = r.Step
	}
	return true, nil
}

func next(step Step) Step {
	all := []Step{StepFind, StepStop, StepRestore, StepJoin, StepNodes}
	return all[min(slices.Index(all, step)+1, len(all)-1)]
}

// end records the outcome of the restore. Later steps of the decision restart the stopped servers.
func (r restoration) end(o Outcome) {
	d := r.d
	o.Host, o.Restored = r.By, d.Stored.Epoch == r.ID
	d.remember(r.ID, o)
	d.Stored.Restore = nil
	d.out.Restore = CurrentRestore{}
	clear(d.out.Waiting)
}

// beginRestore starts the next restore if possible. It reports whether a restore has started or is waiting for hosts.
// If so, no other changes may be made.
func (d *decision) beginRestore() bool {
	for _, wanted := range d.Restores {
		if _, ended := d.Stored.Outcomes[wanted.ID]; ended || wanted.Problem != "" && !wanted.Cancel {
			continue
		}
		if wanted.Cancel {
			d.remember(wanted.ID, Outcome{Canceled: true})
			continue
		}
		d.out.Restore = CurrentRestore{ID: wanted.ID, Name: wanted.Name}
		if !d.Stored.Begun {
			d.out.Restore.Waits = "its cluster to begin: there is none yet whose data could be replaced"
			return false
		}
		by := d.restorer(wanted)
		if by == nil {
			return d.takeRestorer(wanted)
		}
		d.out.Restore.Host = by.Name
		if why := d.serverAway(); why != "" || !by.Connected {
			d.out.Restore.Away, d.out.Restore.Waits = true, cmp.Or(why, busyWith(by, "is to restore it"))
			return false
		}
		r := &Restoring{Restore: wanted, Step: StepFind, By: by.Name, UID: by.UID}
		if wanted.Host == "" || by.Held == nil { // no host can search for the file
			r.Step = StepStop
		}
		d.Stored.Restore = r
		return true
	}
	return false
}

// takeRestorer describes what a restore is waiting for if no host can carry it out. If none of the hosts has the
// cluster's data, it claims free Hosts.
func (d *decision) takeRestorer(wanted Restore) bool {
	d.out.Restore.Waits = "a connected server with etcd"
	if wanted.Host != "" {
		d.out.Restore.Waits = fmt.Sprintf("Host %s to be a server with etcd of this cluster, which reports an address", wanted.Host)
	}
	return d.lost() && len(d.out.Take) > 0
}

// find makes the host search for the file.
func (r restoration) find() (bool, error) {
	d := r.d
	m := d.named(r.By)
	switch {
	case m == nil || m.UID != r.UID || m.Held == nil:
		r.end(Outcome{Problem: "the host leaves the cluster"})
		return false, nil
	case m.Held.Finds == r.ID && m.Connected && m.State == progress.Up:
		return true, nil
	case m.Held.Finds == r.ID && m.Connected && m.State == progress.Failed:
		r.end(Outcome{Problem: m.problem()})
		return false, nil
	case m.Held.Finds == r.ID:
		d.out.Restore.Waits = busyWith(m, "looks for the file")
		return false, nil
	}
	looks, err := d.write.renderPart(m, Part{Finds: r.ID}, d.write.findFile(r.Restoring))
	d.out.Instructions[m.Name], d.out.Restore.Waits = looks, fmt.Sprintf("host %s, which looks for the file", m.Name)
	return false, err
}

// stopServers stops all servers at the same time.
func (r restoration) stopServers() (bool, error) {
	d := r.d
	d.Stored.Stops = r.ID // servers that start later are restarted too
	waits := d.serverAway()
	d.out.Restore.Away = waits != ""
	for _, host := range d.leave { // it no longer matters whether the host is an etcd member
		if host.Leaving && host.Held != nil && host.Held.Roles != string(provisionv1.RoleWorker) {
			d.release(host)
			if !host.Gone {
				waits = fmt.Sprintf("host %s, which is being deleted, to be gone", host.Name)
			}
		}
	}
	for _, m := range d.servers() {
		switch {
		case m.Held.Stopped != r.ID:
			stops, err := d.write.renderPart(m, Part{Stopped: r.ID}, d.write.stopServer(r.ID))
			if err != nil {
				return false, err
			}
			d.out.Instructions[m.Name], waits = stops, fmt.Sprintf("host %s to stop", m.Name)
		case m.Connected && m.State == progress.Failed:
			r.end(Outcome{Problem: fmt.Sprintf("host %s could not be stopped: %s", m.Name, m.problem())})
			return false, nil
		case m.State != progress.Up:
			waits = busyWith(m, "stops")
		}
		d.out.Waiting[m.Name] = fmt.Sprintf("is stopped for EtcdRestore %s", r.Name)
	}
	d.out.Restore.Waits = waits
	return waits == "", nil
}

// replace makes the selected host replace its data.
func (r restoration) replace() (bool, error) {
	d := r.d
	m := d.named(r.By)
	switch {
	case m == nil || m.UID != r.UID:
		r.end(Outcome{Problem: "the host that was to restore it has left the cluster"})
		return false, nil
	case r.Configuration != nil && r.Configured == 0:
		d.out.Configure = r.Configuration
		d.out.Restore.Waits = "the spec of the installation to be written back"
		return false, nil
	case r.Configured > d.Generation:
		d.out.Restore.Waits = "the spec of the installation, which was written back, to be read"
		return false, nil
	case m.Held != nil && m.Held.Restores == r.ID && m.Connected && m.State == progress.Up:
		r.replaced(m)
		return true, nil
	case m.Held != nil && m.Held.Restores == r.ID && m.Connected && m.State == progress.Failed:
		r.end(Outcome{Problem: m.problem()})
		return false, nil
	case m.Held != nil && m.Held.Restores == r.ID:
		d.out.Restore.Waits = busyWith(m, "replaces its data")
		return false, nil
	}
	if _, known := d.Stored.Nodes[m.Name]; !known {
		d.addNode(m)
	}
	replaces, err := d.write.renderRestore(m, r.Restoring)
	d.out.Instructions[m.Name], d.out.Restore.Waits = replaces, fmt.Sprintf("host %s, which replaces its data", m.Name)
	return false, err
}

// replaced records that a host has the data from the snapshot. From then on, the data of all other servers is outdated,
// and hosts that are gone are no longer etcd members.
func (r restoration) replaced(m *member) {
	d := r.d
	s := &d.Stored
	s.Epoch, s.First = r.ID, m.Name
	for name, node := range s.Nodes {
		node.Etcd = node.Etcd && d.present(name, node)
		s.Nodes[name] = node
	}
}

func busyWith(m *member, what string) string {
	if !m.Connected {
		return fmt.Sprintf("the agent of host %s, which %s and is not connected", m.Name, what)
	}
	return fmt.Sprintf("host %s, which %s", m.Name, what)
}

// restorer returns the host that can carry out the restore, or nil if there is none. The host must have the file on its
// disk. If the file is in the object store, any server with etcd can carry out the restore.
func (r *roster) restorer(wanted Restore) *member {
	var best *member
	for _, m := range r.ordered() {
		switch {
		case !m.is(provisionv1.RoleEtcd) || m.Address == "" || wanted.Host != "" && m.Name != wanted.Host:
		case wanted.Host != "":
			return m
		case m.Connected && (best == nil || best.Held == nil && m.Held != nil):
			best = m
		}
	}
	return best
}

// serverAway returns a message about a disconnected server, or "" if all servers are connected. A disconnected server
// could not be stopped and would continue with the old data.
func (r *roster) serverAway() string {
	for _, m := range r.servers() {
		if !m.Connected {
			return fmt.Sprintf("the agent of host %s, which is not connected: a server that is not stopped would go on "+
				"with the old data; if its machine is gone, delete the Host; to go on without the restore, set spec.cancel",
				m.Name)
		}
	}
	return ""
}
