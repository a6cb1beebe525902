// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Timeouts of the parts of a restore, in seconds.
const (
	findTimeout    = 60
	stopTimeout    = 900
	restoreTimeout = 3600
)

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

// renderPart returns the instructions for a host's part in a restore. The host keeps its files and its note, and
// carries out only the given instruction.
func (w *writer) renderPart(host *member, part Part, does protocol.HostInstruction) (*Instructions, error) {
	p, err := w.render(host, host.Held.Join, duties{})
	if err != nil {
		return nil, err
	}
	p.Held = *host.Held
	p.Task, p.Removes, p.Finds = "", nil, part.Finds
	if part.Stopped != "" {
		p.Stopped = part.Stopped
	}
	p.Instructions, p.Probes = []protocol.HostInstruction{does}, nil
	return p, nil
}

func (w *writer) findFile(r *Restoring) protocol.HostInstruction {
	return protocol.HostInstruction{ID: "find-" + r.ID, Command: w.dist.find(w.Input, r), TimeoutSeconds: findTimeout}
}

func (w *writer) stopServer(id string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: "stop-" + id, Command: w.dist.stop(w.Input), TimeoutSeconds: stopTimeout}
}

// renderRestore returns the instructions for a stopped host to replace its data. They do not start the host, because
// other servers have the old data until the restore has succeeded.
func (w *writer) renderRestore(host *member, r *Restoring) (*Instructions, error) {
	p, err := w.render(host, "", duties{}) // the configuration must not contain a server's URL
	if err != nil {
		return nil, err
	}
	held := Held{Roles: p.Roles, Version: p.Version, Part: Part{Epoch: noEpoch}}
	if host.Held != nil {
		held = *host.Held
	}
	held.Version, held.Install, held.Installs, held.Stopped, held.Restores, held.Finds = p.Version, p.Install, p.Installs, r.ID, r.ID, ""
	install := p.Instructions[:2] // including the command that checks the installation
	p.Held, p.Probes = held, nil
	p.Instructions = append([]protocol.HostInstruction{w.stopServer(r.ID)}, install...)
	// the host has restored the current data and has not been started since
	if host.Held != nil && host.Held.Restores != "" && host.Held.Restores == w.Stored.Epoch {
		p.Instructions = append(p.Instructions, onDisk("keep-"+w.Stored.Epoch, w.dist.keep(w.Input)))
	}
	p.Instructions = append(p.Instructions, protocol.HostInstruction{
		ID: "restore-" + r.ID, Command: w.dist.restore(w.Input, r), TimeoutSeconds: restoreTimeout,
	})
	return p, nil
}

// onDisk returns an instruction that moves data on a server's disk.
func onDisk(id string, command []string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: command, TimeoutSeconds: stopTimeout}
}

// restored returns the last restore that requires a restart of the host, or "" if there is none. Servers are restarted
// after each restore that stopped them. Workers are restarted only after a restore that replaced data.
func (w *writer) restored(host *member) string {
	if host.server() {
		return w.Stored.Stops
	}
	return w.Stored.Epoch
}

// noEpoch is the epoch of a host that had no data before a restore.
const noEpoch = "none"

// beforeStart returns the instructions that a host carries out before its first start after a restore. The note records
// them until the host is up.
func (w *writer) beforeStart(p *Instructions, host *member) []protocol.HostInstruction {
	p.Epoch = w.Stored.Epoch
	held := host.Held
	if held == nil || !host.server() || held.Epoch == p.Epoch && host.up() {
		return nil
	}
	switch {
	case held.Restores != "" && held.Restores == p.Epoch:
		p.Restores = held.Restores
		return []protocol.HostInstruction{onDisk("keep-"+held.Restores, w.dist.keep(w.Input))}
	case held.Epoch != p.Epoch || held.Rejoins: // only the disk shows whether the data was already moved away
		p.Rejoins = true
		return []protocol.HostInstruction{onDisk("rejoin-"+digest(p.Epoch, p.Start), w.dist.rejoin(w.Input, p.Epoch))}
	case host.is(provisionv1.RoleEtcd) && held.Epoch == p.Epoch && (held.Stopped != "" || held.Resumes):
		p.Resumes = true
		return []protocol.HostInstruction{onDisk("resume-"+digest(w.Stored.Stops, p.Start), w.dist.resume(w.Input))}
	}
	return nil
}

// afterStart returns the instructions that a server carries out after its first start with data from a snapshot. The
// snapshot also contains an old Node object for this server.
func (w *writer) afterStart(p *Instructions, host *member) []protocol.HostInstruction {
	if p.Restores == "" && !p.Rejoins || !host.is(provisionv1.RoleControlPlane) {
		return nil
	}
	return []protocol.HostInstruction{{
		ID: "password-" + digest(p.Epoch, p.Start), Command: w.dist.forget(w.Input, host.Name), TimeoutSeconds: removeTimeout}}
}

// removeNodes returns the instruction that removes nodes that came from the snapshot but no longer belong to the
// cluster.
func (w *writer) removeNodes(id string, keep []string) protocol.HostInstruction {
	return protocol.HostInstruction{
		ID: id, Command: w.dist.keepNodes(w.Input, keep), TimeoutSeconds: removeTimeout}
}
