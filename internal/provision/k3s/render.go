// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
)

// Timeouts of the parts of an installation, in seconds. They include the time that a server needs to pull images.
const (
	installTimeout = 1800
	startTimeout   = 1800
	cleanTimeout   = 1800
	removeTimeout  = 900
)

// Instructions are a host's instructions and their note. Agents receive instructions in this form and store them in
// their journals.
type Instructions struct {
	protocol.HostInstructions
	Held
}

// Held is the note that is stored with a host's instructions in the same Secret. It contains no secrets.
type Held struct {
	// Unreadable is true if the note cannot be read. The instructions of such a host are not changed.
	Unreadable bool `json:"-"`
	// Roles are the roles of the host, sorted and separated by commas.
	Roles string `json:"roles"`
	// Join is the URL that the host used to join. It is empty for the host that started the cluster.
	Join string `json:"join,omitempty"`
	// Version is the installed version.
	Version string `json:"version"`
	// Install identifies the installation. Start identifies the state of everything that requires a restart of the host
	// when it changes.
	Install string `json:"install"`
	Start   string `json:"start"`
	// Installs and Starts are sequence numbers for the values of Install and Start. If an earlier value recurs, it gets
	// a new number and therefore a new instruction.
	Installs int64 `json:"installs"`
	Starts   int64 `json:"starts"`
	// Changed is true if the host already belonged to the cluster when it got these instructions.
	Changed bool `json:"changed,omitempty"`
	// Task is the ID of the task in the instructions. It is empty if there is no task.
	Task string `json:"task,omitempty"`
	// Removes are the IDs of the instructions that remove nodes.
	Removes []string `json:"removes,omitempty"`
	Part
}

// writer creates the instructions of hosts.
type writer struct {
	*Input
	dist distribution
}

// render returns the instructions for a host. They include its files, the commands that install and start it, and its
// duties.
func (w *writer) render(host *member, join string, does duties) (*Instructions, error) {
	files, err := w.dist.files(w.Input, host, join)
	if err != nil {
		return nil, err
	}
	p := &Instructions{Held: Held{Roles: host.roles(), Join: join, Version: w.Spec.Version}}
	p.Files = files
	install := protocol.HostInstruction{Command: w.dist.install(w.Input, host), TimeoutSeconds: installTimeout}
	check := protocol.HostInstruction{Command: w.dist.check(w.Input), TimeoutSeconds: stopTimeout}
	p.Install = digest(install.Command)
	p.Start = w.startOf(p, host)
	w.number(p, host.Held)
	install.ID = fmt.Sprintf("install-%s-%d", p.Install, p.Installs)
	check.ID = fmt.Sprintf("check-%s-%d", digest(check.Command), p.Installs)
	p.Instructions = []protocol.HostInstruction{install, check}
	if rotation := w.rotation(host); rotation > 0 {
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: "certificates-" + strconv.FormatInt(rotation, 10), Command: w.dist.rotateCertificates(w.Input, host),
			TimeoutSeconds: installTimeout})
	}
	p.Instructions = append(p.Instructions, w.beforeStart(p, host)...)
	p.Instructions = append(p.Instructions, protocol.HostInstruction{
		ID: p.startID(), Command: w.dist.start(w.Input, host), TimeoutSeconds: startTimeout})
	p.Instructions = append(p.Instructions, w.afterStart(p, host)...)
	if host.is(provisionv1.RoleControlPlane) { // takes effect without a restart
		p.Files = append(p.Files, protocol.HostFile{Path: w.dist.manifest(w.Input), Content: w.Manifest, Mode: "0600", Absent: w.Manifest == nil})
	}
	for _, r := range does.removes {
		p.Removes = append(p.Removes, r.id())
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: r.id(), Command: w.dist.removeNode(w.Input, r.Node), TimeoutSeconds: removeTimeout})
	}
	if does.task != nil {
		p.Task = does.task.ID
		p.Instructions = append(p.Instructions, does.task.HostInstruction)
	}
	p.Probes = w.dist.probes(w.Input, host)
	p.Clean = w.clean(p, host)
	return p, nil
}

// rotation returns the number of the last certificate rotation that a host must carry out, or 0 if there is none.
func (w *writer) rotation(host *member) int64 {
	if !host.server() {
		return 0
	}
	return w.Spec.CertificateRotation
}

// startOf identifies the state of everything that requires a restart of the host when it changes.
func (w *writer) startOf(p *Instructions, host *member) string {
	takesEffect := []any{p.Files, p.Install, w.rotation(host), w.dist.service(host)}
	if keys := max(w.Stored.Keys, w.Stored.KeysFailed); host.server() && keys > 0 {
		takesEffect = append(takesEffect, keys) // a server reads new encryption keys when it starts
	}
	if restored := w.restored(host); restored != "" {
		takesEffect = append(takesEffect, "restore", restored)
	}
	return digest(takesEffect...)
}

// number assigns numbers to installs and starts. A state that differs from the state in the host's last instructions
// gets a new number.
func (w *writer) number(p *Instructions, held *Held) {
	before := Held{}
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

func (h *Held) startID() string { return fmt.Sprintf("start-%s-%d", h.Start, h.Starts) }

// clean returns the instructions that remove the distribution from a host. A server leaves etcd first.
func (w *writer) clean(p *Instructions, host *member) []protocol.HostInstruction {
	clean := w.dist.clean(w.Input, host)
	clean.ID, clean.TimeoutSeconds = "clean-"+p.Start, cleanTimeout
	if !host.is(provisionv1.RoleEtcd) {
		return []protocol.HostInstruction{clean}
	}
	leave := protocol.HostInstruction{ID: "leave-" + p.Start, Command: w.dist.leave(w.Input, host.Name), TimeoutSeconds: cleanTimeout}
	return []protocol.HostInstruction{leave, clean}
}

func (w *writer) joinURL(server *member) string { return w.dist.joinURL(server.Address) }

// digest returns a short digest of values. Each value must be encodable as JSON.
func digest(values ...any) string {
	raw, _ := json.Marshal(values) // strings, numbers and structs of them can always be encoded
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:10])
}
