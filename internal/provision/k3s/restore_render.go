// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Times that the parts of a restore may take, in seconds.
const (
	findTimeout    = 60
	stopTimeout    = 900
	restoreTimeout = 3600
)

// Part is a host's in restores of etcd.
type Part struct {
	// Epoch is the last restore of etcd that the host's data is of, or that it joins anew after.
	Epoch string `json:"epoch,omitempty"`
	// Finds is the restore for which the host looks for a file, and Stopped that for which it is stopped.
	Finds   string `json:"finds,omitempty"`
	Stopped string `json:"stopped,omitempty"`
	// Restores is the restore for which the host replaces its data, until it is up again.
	Restores string `json:"restores,omitempty"`
	// Resumes reports that the host has the data back that it had before it was stopped, until it is up again.
	Resumes bool `json:"resumes,omitempty"`
	// Rejoins reports that the host moves its data away before it starts, until it is up again.
	Rejoins bool `json:"rejoins,omitempty"`
}

// StoredRestores is what is stored of restores of etcd.
type StoredRestores struct {
	// Restore is under way, nil for none.
	Restore *Restoring `json:"restore,omitempty"`
	// Epoch is the last restore that has replaced the data of etcd. A server with data of another epoch does not start
	// with it.
	Epoch string `json:"epoch,omitempty"`
	// Stops is the last restore for which the servers were stopped: they are started again after it.
	Stops string `json:"stops,omitempty"`
}

// renderPart returns the instructions of a host for its part in a restore: the host keeps its files and what is
// remembered of it, and does one thing only.
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

// renderRestore has a host that is stopped replace its data. The host is not started by that: other servers have the
// old data until this has succeeded.
func (w *writer) renderRestore(host *member, r *Restoring) (*Instructions, error) {
	p, err := w.render(host, "", duties{}) // no server's URL may be in the configuration
	if err != nil {
		return nil, err
	}
	held := Held{Roles: p.Roles, Version: p.Version, Part: Part{Epoch: noEpoch}}
	if host.Held != nil {
		held = *host.Held
	}
	held.Version, held.Install, held.Installs, held.Stopped, held.Restores, held.Finds = p.Version, p.Install, p.Installs, r.ID, r.ID, ""
	install := p.Instructions[:2] // with its check
	p.Held, p.Probes = held, nil
	p.Instructions = append([]protocol.HostInstruction{w.stopServer(r.ID)}, install...)
	if host.Held != nil && host.Held.Restores != "" && host.Held.Restores == w.Stored.Epoch { // it has restored what is there now, and was not started since
		p.Instructions = append(p.Instructions, onDisk("keep-"+w.Stored.Epoch, w.dist.keep(w.Input)))
	}
	p.Instructions = append(p.Instructions, protocol.HostInstruction{
		ID: "restore-" + r.ID, Command: w.dist.restore(w.Input, r), TimeoutSeconds: restoreTimeout,
	})
	return p, nil
}

// onDisk is an instruction that moves data of a server.
func onDisk(id string, command []string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: command, TimeoutSeconds: stopTimeout}
}

// restored is the restore that a host is started again for, empty for none: a server for each for which servers were
// stopped, a worker for each that has replaced data.
func (w *writer) restored(host *member) string {
	if host.server() {
		return w.Stored.Stops
	}
	return w.Stored.Epoch
}

// noEpoch is the epoch of a host that had no data when it was to restore some.
const noEpoch = "none"

// beforeStart returns what a host does before it is started since a restore, and remembers that with the instructions
// until the host is up.
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
	case held.Epoch != p.Epoch || held.Rejoins: // whether it has moved its data away already is known to its disk alone
		p.Rejoins = true
		return []protocol.HostInstruction{onDisk("rejoin-"+digest(p.Epoch, p.Start), w.dist.rejoin(w.Input, p.Epoch))}
	case host.is(provisionv1.RoleEtcd) && held.Epoch == p.Epoch && (held.Stopped != "" || held.Resumes):
		p.Resumes = true
		return []protocol.HostInstruction{onDisk("resume-"+digest(w.Stored.Stops, p.Start), w.dist.resume(w.Input))}
	}
	return nil
}

// afterStart returns what a server does once it is started with the data of a snapshot: its own node is in that, too.
func (w *writer) afterStart(p *Instructions, host *member) []protocol.HostInstruction {
	if p.Restores == "" && !p.Rejoins || !host.is(provisionv1.RoleControlPlane) {
		return nil
	}
	return []protocol.HostInstruction{{
		ID: "password-" + digest(p.Epoch, p.Start), Command: w.dist.forget(w.Input, host.Name), TimeoutSeconds: removeTimeout}}
}

// removeNodes removes nodes that the snapshot has and the cluster has not.
func (w *writer) removeNodes(id string, keep []string) protocol.HostInstruction {
	return protocol.HostInstruction{
		ID: id, Command: w.dist.keepNodes(w.Input, keep), TimeoutSeconds: removeTimeout}
}
