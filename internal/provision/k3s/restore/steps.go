// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package restore

import (
	"cmp"
	"fmt"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// restoration carries out the restore in progress. Its steps change the decision and the stored Restoring.
type restoration struct {
	*roster.Restoring
	*decision.Draft
}

// find makes the host search for the file.
func (r restoration) find() (bool, error) {
	m := r.Roster.Named(r.By)
	switch {
	case m == nil || m.UID != r.UID || m.Held == nil:
		return r.end(roster.Outcome{Problem: "the host leaves the cluster"})
	case m.Held.Finds == r.ID && m.Connected && m.State == progress.Up:
		return true, nil
	case m.Held.Finds == r.ID && m.Connected && m.State == progress.Failed:
		return r.end(roster.Outcome{Problem: m.Problem()})
	case m.Held.Finds == r.ID:
		return r.wait(busyWith(m, "looks for the file"))
	}
	looks, err := r.Writer.RenderPart(m, roster.Part{Finds: r.ID}, r.Writer.FindFile(r.Restoring))
	r.Out.Instructions[m.Name], r.Out.Restore.Waits = looks, fmt.Sprintf("host %s, which looks for the file", m.Name)
	return false, err
}

// stopServers stops all servers at the same time.
func (r restoration) stopServers() (bool, error) {
	r.Roster.Stored.Stops = r.ID // servers that start later are restarted too
	waits := serverAway(r.Roster)
	r.Out.Restore.Away = waits != ""
	for _, host := range r.Roster.Leave { // it no longer matters whether the host is an etcd member
		if host.Leaving && host.Held != nil && host.Held.Roles != string(provisionv1.RoleWorker) {
			r.Release(host)
			if !host.Gone {
				waits = fmt.Sprintf("host %s, which is being deleted, to be gone", host.Name)
			}
		}
	}
	for _, m := range r.Roster.Servers() {
		switch {
		case m.Held.Stopped != r.ID:
			stops, err := r.Writer.RenderPart(m, roster.Part{Stopped: r.ID}, r.Writer.StopServer(r.ID))
			if err != nil {
				return false, err
			}
			r.Out.Instructions[m.Name], waits = stops, fmt.Sprintf("host %s to stop", m.Name)
		case m.Connected && m.State == progress.Failed:
			return r.end(roster.Outcome{Problem: fmt.Sprintf("host %s could not be stopped: %s", m.Name, m.Problem())})
		case m.State != progress.Up:
			waits = busyWith(m, "stops")
		}
		r.Out.Waiting[m.Name] = fmt.Sprintf("is stopped for EtcdRestore %s", r.Name)
	}
	return r.wait(waits)
}

// replace makes the selected host replace its data.
func (r restoration) replace() (bool, error) {
	m := r.Roster.Named(r.By)
	switch {
	case m == nil || m.UID != r.UID:
		return r.end(roster.Outcome{Problem: "the host that was to restore it has left the cluster"})
	case r.Configuration != nil && r.Configured == 0:
		r.Out.Configure = r.Configuration
		return r.wait("the spec of the installation to be written back")
	case r.Configured > r.Roster.Generation:
		return r.wait("the spec of the installation, which was written back, to be read")
	case m.Held != nil && m.Held.Restores == r.ID && m.Connected && m.State == progress.Up:
		r.replaced(m)
		return true, nil
	case m.Held != nil && m.Held.Restores == r.ID && m.Connected && m.State == progress.Failed:
		return r.end(roster.Outcome{Problem: m.Problem()})
	case m.Held != nil && m.Held.Restores == r.ID:
		return r.wait(busyWith(m, "replaces its data"))
	}
	if _, known := r.Roster.Stored.Nodes[m.Name]; !known {
		r.Roster.AddNode(m)
	}
	replaces, err := r.Writer.RenderRestore(m, r.Restoring)
	r.Out.Instructions[m.Name], r.Out.Restore.Waits = replaces, fmt.Sprintf("host %s, which replaces its data", m.Name)
	return false, err
}

// replaced records that a host has the data from the snapshot. From then on, the data of all other servers is outdated,
// and hosts that are gone are no longer etcd members.
func (r restoration) replaced(m *roster.Member) {
	s := &r.Roster.Stored
	s.Epoch, s.First = r.ID, m.Name
	for name, node := range s.Nodes {
		node.Etcd = node.Etcd && r.Roster.Present(name, node)
		s.Nodes[name] = node
	}
}

// joinRestored starts the host with the restored data, and then makes the other servers join it.
func (r restoration) joinRestored() (bool, error) {
	waits := ""
	for _, m := range r.Roster.Ordered() {
		if !m.IsServer() || m.Held == nil {
			continue
		}
		if r.Roster.WaitsToStart(m) {
			if err := StartAgain(r.Draft, m); err != nil {
				return false, err
			}
			waits = cmp.Or(waits, fmt.Sprintf("host %s, which %s", m.Name, r.Out.Waiting[m.Name]))
			continue
		}
		switch r.Out.Waiting[m.Name] = m.Busy(); {
		case m.Up():
		case m.Connected && m.State == progress.Failed:
			return r.end(roster.Outcome{Problem: fmt.Sprintf("host %s did not start: %s", m.Name, m.Problem())})
		default:
			waits = cmp.Or(waits, busyWith(m, "starts"))
		}
	}
	return r.wait(waits)
}

// cleanNodes makes a server remove nodes that came from the snapshot but no longer belong to the cluster.
func (r restoration) cleanNodes() (bool, error) {
	id := "nodes-" + r.ID
	switch m := r.Roster.Holder(id); {
	case m != nil && m.Up():
		return r.end(roster.Outcome{})
	case m != nil && m.Connected && m.State == progress.Failed:
		return r.end(roster.Outcome{Problem: fmt.Sprintf("host %s could not remove nodes of the snapshot that no longer belong to the cluster: %s", m.Name, m.Problem())})
	case m != nil:
		return r.wait(busyWith(m, "removes nodes of the snapshot that no longer belong to the cluster"))
	}
	for _, m := range r.Roster.Ordered() {
		if m.Is(provisionv1.RoleControlPlane) && m.Up() {
			removes, err := r.Writer.RenderPart(m, roster.Part{}, r.Writer.RemoveNodes(id, r.Roster.PresentNodes()))
			if err != nil {
				return false, err
			}
			removes.Task = id
			r.Out.Instructions[m.Name] = removes
			return r.wait(fmt.Sprintf("host %s, which removes nodes of the snapshot that no longer belong to the cluster", m.Name))
		}
	}
	return r.wait("a server with the role control-plane that is up, to remove nodes of the snapshot that no longer belong to the cluster")
}

// wait ends a step that waits for something, or completes the step if why is empty.
func (r restoration) wait(why string) (done bool, err error) {
	r.Out.Restore.Waits = why
	return why == "", nil
}

// end records the outcome of the restore. Later steps of the decision restart the stopped servers.
func (r restoration) end(o roster.Outcome) (done bool, err error) {
	o.Host, o.Restored = r.By, r.Roster.Stored.Epoch == r.ID
	r.Roster.Remember(r.ID, o)
	r.Roster.Stored.Restore = nil
	r.Out.Restore = decision.CurrentRestore{}
	clear(r.Out.Waiting)
	return false, nil
}

func busyWith(m *roster.Member, what string) string {
	if !m.Connected {
		return fmt.Sprintf("the agent of host %s, which %s and is not connected", m.Name, what)
	}
	return fmt.Sprintf("host %s, which %s", m.Name, what)
}

// serverAway returns a message about a disconnected server, or "" if all servers are connected. A disconnected server
// could not be stopped and would continue with the old data.
func serverAway(r *roster.Roster) string {
	for _, m := range r.Servers() {
		if !m.Connected {
			return fmt.Sprintf("the agent of host %s, which is not connected: a server that is not stopped would go on "+
				"with the old data; if its machine is gone, delete the Host; to go on without the restore, set spec.cancel",
				m.Name)
		}
	}
	return ""
}
