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

// Times that the parts of an installation may take, in seconds. A server that starts pulls images.
const (
	installTimeout = 1800
	startTimeout   = 1800
	cleanTimeout   = 1800
	removeTimeout  = 900
)

// Instructions are what a host is to do, and what is remembered with it.
type Instructions struct {
	protocol.HostInstructions
	Held
}

// Held is what is remembered with a host's plan.
type Held struct {
	// Unreadable reports that the host has a plan, and that nothing can be read of what was remembered with it. Nothing is done to such a host.
	Unreadable bool `json:"-"`
	// Roles of the host, sorted, with commas between.
	Roles string `json:"roles"`
	// Join is the URL by which the host has joined, empty for the one that began the cluster.
	Join string `json:"join,omitempty"`
	// Version that the plan installs.
	Version string `json:"version"`
	// Install identifies what is installed, and Start all that the host is started again for.
	Install string `json:"install"`
	Start   string `json:"start"`
	// Installs and Starts are numbers of these: what was there before, and is to be again, is another instruction.
	Installs int64 `json:"installs"`
	Starts   int64 `json:"starts"`
	// Changed reports that the host was part of the cluster before it was given this plan.
	Changed bool `json:"changed,omitempty"`
	// Task is the ID of the task that the plan has, empty for none.
	Task string `json:"task,omitempty"`
	// Removes are the IDs of the instructions that remove nodes.
	Removes []string `json:"removes,omitempty"`
	Part
}

// render returns what a host is to do.
func (in *Input) render(host *member, join string, removes []removal) (*Instructions, error) {
	dist := in.dist
	files, err := dist.files(in, host, join)
	if err != nil {
		return nil, err
	}
	p := &Instructions{Held: Held{Roles: host.roles(), Join: join, Version: in.Spec.Version}}
	p.Files = files
	install := protocol.HostInstruction{Command: dist.install(in, host), TimeoutSeconds: installTimeout}
	p.Install = digest(install.Command)
	p.Instructions = append(p.Instructions, install, protocol.HostInstruction{Command: dist.check(in), TimeoutSeconds: stopTimeout})
	rotation := int64(0)
	if host.server() {
		rotation = in.Spec.CertificateRotation
	}
	if rotation > 0 {
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: "certificates-" + strconv.FormatInt(rotation, 10), Command: dist.rotateCertificates(in, host), TimeoutSeconds: installTimeout})
	}
	takesEffect := []any{p.Files, p.Install, rotation, dist.service(host)}
	if keys := max(in.Stored.Keys, in.Stored.KeysFailed); host.server() && keys > 0 { // a server reads new encryption keys when it starts
		takesEffect = append(takesEffect, keys)
	}
	if restored := in.restored(host); restored != "" {
		takesEffect = append(takesEffect, "restore", restored)
	}
	p.Start = digest(takesEffect...)
	in.number(p, host.Held)
	p.Instructions[0].ID = fmt.Sprintf("install-%s-%d", p.Install, p.Installs)
	p.Instructions[1].ID = fmt.Sprintf("check-%s-%d", digest(p.Instructions[1].Command), p.Installs)
	p.Instructions = append(p.Instructions, in.beforeStart(p, host)...)
	p.Instructions = append(p.Instructions, protocol.HostInstruction{ID: p.startID(), Command: dist.start(in, host), TimeoutSeconds: startTimeout})
	p.Instructions = append(p.Instructions, in.afterStart(p, host)...)
	if host.is(provisionv1.RoleControlPlane) { // it takes effect without a start
		p.Files = append(p.Files, protocol.HostFile{Path: dist.manifest(in), Content: in.Manifest, Mode: "0600", Absent: in.Manifest == nil})
	}
	for _, r := range removes {
		p.Removes = append(p.Removes, r.id())
		p.Instructions = append(p.Instructions, protocol.HostInstruction{
			ID: r.id(), Command: dist.removeNode(in, r.Node), TimeoutSeconds: removeTimeout})
	}
	in.addTask(p, host)
	p.Probes = dist.probes(in, host)
	p.Clean = in.clean(p, host)
	return p, nil
}

// number numbers what a plan installs and starts: what the host has not been told last has a number that it never had.
func (in *Input) number(p *Instructions, held *Held) {
	before := Held{}
	if held != nil {
		before = *held
	}
	next := max(before.Starts+1, in.Now)
	if p.Starts = before.Starts; p.Start != before.Start {
		p.Starts = next
	}
	if p.Installs = before.Installs; p.Install != before.Install {
		p.Installs = next
	}
}

func (h *Held) startID() string { return fmt.Sprintf("start-%s-%d", h.Start, h.Starts) }

// clean returns the instructions that remove the distribution. A server leaves etcd first.
func (in *Input) clean(p *Instructions, host *member) []protocol.HostInstruction {
	clean := in.dist.clean(in, host)
	clean.ID, clean.TimeoutSeconds = "clean-"+p.Start, cleanTimeout
	if !host.is(provisionv1.RoleEtcd) {
		return []protocol.HostInstruction{clean}
	}
	leave := protocol.HostInstruction{ID: "leave-" + p.Start, Command: in.dist.leave(in, host.Name), TimeoutSeconds: cleanTimeout}
	return []protocol.HostInstruction{leave, clean}
}

// joinURL is where a host joins by a server.
func (in *Input) joinURL(server *member) string { return in.dist.joinURL(server.Address) }

// digest is a short one of values that JSON can hold.
func digest(values ...any) string {
	raw, _ := json.Marshal(values) // strings, numbers and structs of these
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:10])
}
