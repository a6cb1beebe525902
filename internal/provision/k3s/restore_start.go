// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// isOld reports whether a host still has etcd data from before the last restore. The host must not be started with this
// data.
func (in *Input) isOld(h *Host) bool {
	return isEtcd(h) && h.Held.Epoch != in.Stored.Epoch && h.Held.Restores != in.Stored.Epoch
}

// startAgain restarts a server that was stopped for a restore. Servers whose data was not replaced start at the same
// time, because no server comes up without quorum. Servers whose data was replaced join one at a time.
func (d *decision) startAgain(m *member) error {
	url, why := m.Held.Join, ""
	switch {
	case !m.Connected:
		why = "its agent, which is not connected"
	case m.Held.Restores != "" && m.Held.Restores == d.Stored.Epoch: // the others join this host
		url = ""
	case m.Held.Epoch != d.Stored.Epoch:
		url, why = d.wayBack(m)
	}
	if why != "" {
		d.out.Waiting[m.Name] = "waits for " + why
		return nil
	}
	anew := m.is(provisionv1.RoleEtcd) && m.Held.Epoch != d.Stored.Epoch
	if anew {
		d.joining = m.Name
	}
	d.out.Waiting[m.Name] = "is started again"
	err := d.give(m, url)
	if err == nil {
		again := m.is(provisionv1.RoleEtcd) && (anew || m.Held.Rejoins) // the host is not an etcd member until it joins
		d.out.Instructions[m.Name].Changed = url == "" || !again
	}
	return err
}

// wayBack returns the URL through which a server joins the restored cluster, or the reason why the server must wait.
func (d *decision) wayBack(m *member) (url, why string) {
	for _, s := range d.ordered() {
		if !s.is(provisionv1.RoleEtcd) || s.Held == nil || d.waitsToStart(s) {
			continue
		}
		if m.is(provisionv1.RoleEtcd) && s.Connected && s.State.Busy() {
			d.joining = cmp.Or(d.joining, s.Name)
		}
		if s.up() && s.Address != "" && url == "" {
			url = d.write.joinURL(s)
		}
	}
	switch {
	case url == "":
		return "", "a server with the restored data to be up"
	case m.is(provisionv1.RoleEtcd) && d.joining != "":
		return "", fmt.Sprintf("host %s: servers with etcd join one at a time", d.joining)
	}
	return url, ""
}

// resume restarts servers that are leaving the cluster, if they were stopped for a restore that replaced no data. The
// servers remain etcd members until they have left.
func (d *decision) resume(removes []removal) error {
	for _, m := range d.servers() {
		isRemoved := slices.ContainsFunc(removes, func(r removal) bool { return r.Node == m.Name })
		if d.named(m.Name) != nil || !m.Connected || !d.resumes(&m.Host) || isRemoved {
			continue
		}
		if err := d.give(m, m.Held.Join); err != nil {
			return err
		}
		d.out.Instructions[m.Name].Changed = true
	}
	return nil
}

// problem explains why a host has failed, and includes the end of the command output.
func (h *Host) problem() string {
	text := protocol.Cut(h.Message, 256)
	if output := strings.TrimSpace(h.Output); output != "" {
		text += "; its last lines: " + output[max(0, len(output)-512):]
	}
	return strings.ToValidUTF8(text, "")
}

// joinRestored starts the host with the restored data, and then makes the other servers join it.
func (r restoration) joinRestored() (bool, error) {
	d := r.d
	waits := ""
	for _, m := range d.ordered() {
		if !m.server() || m.Held == nil {
			continue
		}
		if d.waitsToStart(m) {
			if err := d.startAgain(m); err != nil {
				return false, err
			}
			waits = cmp.Or(waits, fmt.Sprintf("host %s, which %s", m.Name, d.out.Waiting[m.Name]))
			continue
		}
		switch d.out.Waiting[m.Name] = busy(m); {
		case m.up():
		case m.Connected && m.State == progress.Failed:
			r.end(Outcome{Problem: fmt.Sprintf("host %s did not start: %s", m.Name, m.problem())})
			return false, nil
		default:
			waits = cmp.Or(waits, busyWith(m, "starts"))
		}
	}
	d.out.Restore.Waits = waits
	return waits == "", nil
}

// cleanNodes makes a server remove nodes that came from the snapshot but no longer belong to the cluster.
func (r restoration) cleanNodes() (bool, error) {
	d := r.d
	id := "nodes-" + r.ID
	switch m := d.holder(id); {
	case m != nil && m.up():
		r.end(Outcome{})
		return false, nil
	case m != nil && m.Connected && m.State == progress.Failed:
		r.end(Outcome{Problem: fmt.Sprintf("host %s could not remove nodes of the snapshot that no longer belong to the cluster: %s", m.Name, m.problem())})
		return false, nil
	case m != nil:
		d.out.Restore.Waits = busyWith(m, "removes nodes of the snapshot that no longer belong to the cluster")
		return false, nil
	}
	for _, m := range d.ordered() {
		if m.is(provisionv1.RoleControlPlane) && m.up() {
			removes, err := d.write.renderPart(m, Part{}, d.write.removeNodes(id, d.presentNodes()))
			if err != nil {
				return false, err
			}
			removes.Task = id
			d.out.Instructions[m.Name] = removes
			d.out.Restore.Waits = fmt.Sprintf("host %s, which removes nodes of the snapshot that no longer belong to the cluster", m.Name)
			return false, nil
		}
	}
	d.out.Restore.Waits = "a server with the role control-plane that is up, to remove nodes of the snapshot that no longer belong to the cluster"
	return false, nil
}

// waitsToStart reports whether a server was stopped for a restore, or still has data from before the last restore.
func (r *roster) waitsToStart(m *member) bool { return m.Held.Stopped != "" || r.isOld(&m.Host) }

// resumes reports whether a host was stopped for a restore that replaced no data.
func (r *roster) resumes(h *Host) bool {
	return h.Held != nil && h.Held.Stopped != "" && h.Held.Epoch == r.Stored.Epoch
}
