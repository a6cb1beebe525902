// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// Timeouts of the parts of an installation or restore, in seconds. They include the time that a server needs to pull images.
const (
	installTimeout = 1800
	startTimeout   = 1800
	cleanTimeout   = 1800
	removeTimeout  = 900
	findTimeout    = 60
	stopTimeout    = 900
	restoreTimeout = 3600
)

// Instructions are a host's instructions and their note. Agents receive instructions in this form and store them in
// their journals.
type Instructions struct {
	protocol.HostInstructions
	roster.Held
}

// Duties are the work that a server does for the cluster after it has been started.
type Duties struct {
	Removes []Removal
	// Task is a one-time instruction. It is nil if there is none.
	Task *protocol.HostInstruction
}

// Removal is a node that must be removed from the cluster.
type Removal struct {
	Node string
	Join int64
	// Host is the leaving host, or nil if it is gone.
	Host *roster.Host
}

// ID returns the ID of the instruction that removes the node. The ID changes each time the node joins again.
func (r Removal) ID() string { return "remove-" + digest(r.Node, r.Join) }

// Writer creates the instructions of hosts.
type Writer struct {
	*roster.Input
	Distribution Distribution
	// check is the result of checking. It is empty before the first call.
	check protocol.HostInstruction
}

// Render returns the instructions for a host. They include its files, the commands that install and start it, and its
// duties.
func (w *Writer) Render(host *roster.Member, join string, does Duties) (*Instructions, error) {
	files, err := w.Distribution.Files(w.Input, host, join)
	if err != nil {
		return nil, err
	}
	p := &Instructions{Held: roster.Held{Roles: host.Roles(), Join: join, Version: w.Spec.Version}}
	p.Files = files
	install := protocol.HostInstruction{Command: w.Distribution.Install(w.Input, host), TimeoutSeconds: installTimeout}
	check := w.checking()
	p.Install = digest(install.Command)
	p.Start = w.startOf(p, host)
	w.number(p, host.Held)
	install.ID = fmt.Sprintf("install-%s-%d", p.Install, p.Installs)
	check.ID = fmt.Sprintf("%s-%d", check.ID, p.Installs)
	p.Instructions = []protocol.HostInstruction{install, check}
	if rotation := w.rotation(host); rotation > 0 {
		p.add("certificates-"+strconv.FormatInt(rotation, 10), installTimeout, w.Distribution.RotateCertificates(w.Input, host))
	}
	w.beforeStart(p, host)
	p.add(fmt.Sprintf("start-%s-%d", p.Start, p.Starts), startTimeout, w.Distribution.Start(w.Input, host))
	w.afterStart(p, host)
	if host.Is(provisionv1.RoleControlPlane) { // takes effect without a restart
		p.Files = append(p.Files, protocol.HostFile{Path: w.Distribution.Manifest(w.Input), Content: w.Manifest, Mode: "0600", Absent: w.Manifest == nil})
	}
	for _, r := range does.Removes {
		p.Removes = append(p.Removes, r.ID())
		p.add(r.ID(), removeTimeout, w.Distribution.RemoveNode(w.Input, r.Node))
	}
	if does.Task != nil {
		p.Task = does.Task.ID
		p.Instructions = append(p.Instructions, *does.Task)
	}
	p.Probes = w.Distribution.Probes(w.Input, host)
	p.Clean = w.clean(p, host)
	return p, nil
}

func (p *Instructions) add(id string, seconds int, command []string) {
	p.Instructions = append(p.Instructions, Instruction(id, seconds, command))
}

// Instruction returns an instruction with a time limit.
func Instruction(id string, seconds int, command []string) protocol.HostInstruction {
	return protocol.HostInstruction{ID: id, Command: command, TimeoutSeconds: seconds}
}

// checking returns the instruction that checks the installed version. It is the same for all hosts, except that Render
// appends a number to its ID.
func (w *Writer) checking() protocol.HostInstruction {
	if w.check.ID == "" {
		command := w.Distribution.Check(w.Input)
		w.check = Instruction("check-"+digest(command), stopTimeout, command)
	}
	return w.check
}

// rotation returns the number of the last certificate rotation that a host must carry out, or 0 if there is none.
func (w *Writer) rotation(host *roster.Member) int64 {
	if !host.IsServer() {
		return 0
	}
	return w.Spec.CertificateRotation
}

// startOf identifies the state of everything that requires a restart of the host when it changes.
func (w *Writer) startOf(p *Instructions, host *roster.Member) string {
	takesEffect := []any{p.Files, p.Install, w.rotation(host), w.Distribution.Service(host)}
	if keys := max(w.Stored.Keys, w.Stored.KeysFailed); host.IsServer() && keys > 0 {
		takesEffect = append(takesEffect, keys) // a server reads new encryption keys when it starts
	}
	if restored := w.restored(host); restored != "" {
		takesEffect = append(takesEffect, "restore", restored)
	}
	return digest(takesEffect...)
}

// number assigns numbers to installs and starts. A state that differs from the state in the host's last instructions
// gets a new number.
func (w *Writer) number(p *Instructions, held *roster.Held) {
	before := roster.Held{}
	if held != nil {
		before = *held
	}
	next := max(before.Starts+1, w.Now)
	if p.Starts = before.Starts; p.Start != before.Start {
		p.Starts = next
	}
	if p.Installs = before.Installs; p.Install != before.Install {
		p.Installs = next
	}
}

// clean returns the instructions that remove the distribution from a host. A server leaves etcd first.
func (w *Writer) clean(p *Instructions, host *roster.Member) []protocol.HostInstruction {
	clean := w.Distribution.Clean(w.Input, host)
	clean.ID, clean.TimeoutSeconds = "clean-"+p.Start, cleanTimeout
	if !host.Is(provisionv1.RoleEtcd) {
		return []protocol.HostInstruction{clean}
	}
	leave := Instruction("leave-"+p.Start, cleanTimeout, w.Distribution.Leave(w.Input, host.Name))
	return []protocol.HostInstruction{leave, clean}
}

// RenderPart returns the instructions for a host's part in a restore. The host keeps its files and its note, and
// carries out only the given instruction.
func (w *Writer) RenderPart(host *roster.Member, part roster.Part, does protocol.HostInstruction) (*Instructions, error) {
	p, err := w.Render(host, host.Held.Join, Duties{})
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

// FindFile returns the instruction that searches for the file of a restore.
func (w *Writer) FindFile(r *roster.Restoring) protocol.HostInstruction {
	return Instruction("find-"+r.ID, findTimeout, w.Distribution.Find(w.Input, r))
}

// StopServer returns the instruction that stops a server for a restore.
func (w *Writer) StopServer(id string) protocol.HostInstruction {
	return Instruction("stop-"+id, stopTimeout, w.Distribution.Stop(w.Input))
}

// RenderRestore returns the instructions for a stopped host to replace its data. They do not start the host, because
// other servers have the old data until the restore has succeeded.
func (w *Writer) RenderRestore(host *roster.Member, r *roster.Restoring) (*Instructions, error) {
	p, err := w.Render(host, "", Duties{}) // the configuration must not contain a server's URL
	if err != nil {
		return nil, err
	}
	held := roster.Held{Roles: p.Roles, Version: p.Version, Part: roster.Part{Epoch: noEpoch}}
	if host.Held != nil {
		held = *host.Held
	}
	held.Version, held.Install, held.Installs, held.Stopped, held.Restores, held.Finds = p.Version, p.Install, p.Installs, r.ID, r.ID, ""
	install := p.Instructions[:2] // including the command that checks the installation
	p.Held, p.Probes = held, nil
	p.Instructions = append([]protocol.HostInstruction{w.StopServer(r.ID)}, install...)
	// the host has restored the current data and has not been started since
	if host.Held != nil && host.Held.Restores != "" && host.Held.Restores == w.Stored.Epoch {
		p.add("keep-"+w.Stored.Epoch, stopTimeout, w.Distribution.Keep(w.Input))
	}
	p.add("restore-"+r.ID, restoreTimeout, w.Distribution.Restore(w.Input, r))
	return p, nil
}

// restored returns the last restore that requires a restart of the host, or "" if there is none. Servers are restarted
// after each restore that stopped them. Workers are restarted only after a restore that replaced data.
func (w *Writer) restored(host *roster.Member) string {
	if host.IsServer() {
		return w.Stored.Stops
	}
	return w.Stored.Epoch
}

// noEpoch is the epoch of a host that had no data before a restore.
const noEpoch = "none"

// beforeStart adds the instructions that a host carries out before its first start after a restore. The note records
// them until the host is up.
func (w *Writer) beforeStart(p *Instructions, host *roster.Member) {
	p.Epoch = w.Stored.Epoch
	held := host.Held
	switch {
	case held == nil || !host.IsServer() || held.Epoch == p.Epoch && host.Up():
	case held.Restores != "" && held.Restores == p.Epoch:
		p.Restores = held.Restores
		p.add("keep-"+held.Restores, stopTimeout, w.Distribution.Keep(w.Input))
	case held.Epoch != p.Epoch || held.Rejoins: // only the disk shows whether the data was already moved away
		p.Rejoins = true
		p.add("rejoin-"+digest(p.Epoch, p.Start), stopTimeout, w.Distribution.Rejoin(w.Input, p.Epoch))
	case host.Is(provisionv1.RoleEtcd) && held.Epoch == p.Epoch && (held.Stopped != "" || held.Resumes):
		p.Resumes = true
		p.add("resume-"+digest(w.Stored.Stops, p.Start), stopTimeout, w.Distribution.Resume(w.Input))
	}
}

// afterStart adds the instructions that a server carries out after its first start with data from a snapshot. The
// snapshot also contains an old Node object for this server.
func (w *Writer) afterStart(p *Instructions, host *roster.Member) {
	if (p.Restores != "" || p.Rejoins) && host.Is(provisionv1.RoleControlPlane) {
		p.add("password-"+digest(p.Epoch, p.Start), removeTimeout, w.Distribution.Forget(w.Input, host.Name))
	}
}

// RemoveNodes returns the instruction that removes nodes that came from the snapshot but no longer belong to the
// cluster.
func (w *Writer) RemoveNodes(id string, keep []string) protocol.HostInstruction {
	return Instruction(id, removeTimeout, w.Distribution.KeepNodes(w.Input, keep))
}

// digest returns a short digest of values. Each value must be encodable as JSON.
func digest(values ...any) string {
	raw, _ := json.Marshal(values) // strings, numbers and structs of them can always be encoded
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:10])
}
