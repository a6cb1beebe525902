// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package k3s

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/provision/k3s/decision"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
	"github.com/drover-dev/drover/internal/provision/progress"
)

// machine is a Host of the model together with its machine.
type machine struct {
	roster.Host
	given *distribution.Instructions
	// registered is the start with which the node became part of the cluster, and runs is the last start.
	registered, runs string
	// journal holds the outcomes of instructions, by their IDs. No instruction runs twice.
	journal map[string]bool
	// data is the restore from which the etcd data comes, before is the restore from which the former data comes, and
	// mark is the last restore after which the machine has joined without data.
	data, before, mark string
	// serves reports whether etcd runs, and replaced whether the former data can come back.
	serves, replaced bool
}

// world is a workspace of the model.
type world struct {
	t        *testing.T
	random   *rand.Rand
	spec     roster.Spec
	stored   roster.Stored
	machines map[string]*machine
	made     int
	// begun holds the hosts that were told to start a cluster, and nodes has the nodes of the cluster.
	begun     map[string]bool
	nodes     map[string]bool
	snapshots []roster.Snapshot
	restores  []roster.Restore
	// asked counts the requested restores, and restored the restores that have replaced data.
	asked, restored int
	// trouble makes machines fail and disconnect.
	trouble bool
}

func newWorld(t *testing.T, seed uint64, pools ...provisionv1.HostPool) *world {
	t.Helper()
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 1)), machines: map[string]*machine{}, begun: map[string]bool{}, nodes: map[string]bool{}}
	w.stored = roster.Stored{Token: "t", AgentToken: "a"}
	w.spec.ClusterInstallationSpec = provisionv1.ClusterInstallationSpec{Distribution: provisionv1.DistributionK3s, Version: "v1.35.1+k3s1", Pools: pools, MaxUnavailable: 3}
	for i := range pools {
		selector, err := metav1.LabelSelectorAsSelector(&pools[i].Selector)
		if err != nil {
			t.Fatal(err)
		}
		w.spec.Selectors = append(w.spec.Selectors, selector)
	}
	return w
}

func pool(name string, replicas int32, roles ...provisionv1.HostRole) provisionv1.HostPool {
	p := provisionv1.HostPool{Name: name, Roles: roles, Selector: metav1.LabelSelector{MatchLabels: map[string]string{"pool": name}}}
	if replicas >= 0 {
		p.Replicas = &replicas
	}
	return p
}

// add adds free machines for a pool.
func (w *world) add(pool string, n int) {
	for range n {
		w.made++
		name := fmt.Sprintf("m%04d", w.made)
		w.machines[name] = &machine{Host: roster.Host{
			Name: name, UID: fmt.Sprint("u", w.made), Labels: labels.Set{"pool": pool}, Address: fmt.Sprintf("10.0.%d.%d", w.made/250, w.made%250), Connected: true}}
	}
}

func (w *world) names() []string {
	var names []string
	for name := range w.machines {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (w *world) input() roster.Input {
	in := roster.Input{Spec: w.spec, Stored: w.stored, Manifest: []byte("manifest"), Snapshots: w.snapshots, Restores: w.restores}
	for _, name := range w.names() {
		in.Hosts = append(in.Hosts, w.machines[name].Host)
	}
	return in
}

// decide makes a decision, checks the invariants, and carries the decision out.
func (w *world) decide() decision.Decision {
	w.t.Helper()
	out, err := Decide(w.input())
	if err != nil {
		w.t.Fatal(err)
	}
	shuffled := w.input()
	w.random.Shuffle(len(shuffled.Hosts), func(i, j int) { shuffled.Hosts[i], shuffled.Hosts[j] = shuffled.Hosts[j], shuffled.Hosts[i] })
	if again, err := Decide(shuffled); err != nil || !reflect.DeepEqual(out, again) {
		w.t.Fatalf("the same input gave another decision (%v)", err)
	}
	w.check(out)
	w.stored = out.Stored
	for _, name := range out.Take {
		w.machines[name].Taken = true
	}
	for _, name := range out.Release {
		m := w.machines[name]
		if m.Held != nil && w.nodes[name] && w.stored.Begun && !m.Gone && !out.Lost && !out.Unselected && out.Restore.Step != roster.StepStop {
			w.t.Fatalf("%s is given back, and its node is part of the cluster: %+v, restore %+v, stored %+v", name, m.Host, out.Restore, out.Stored)
		}
		delete(w.nodes, name)
		if m.Leaving {
			delete(w.machines, name)
			continue
		}
		*m = machine{Host: roster.Host{Name: m.Name, UID: m.UID, Labels: m.Labels, Address: m.Address, Connected: m.Connected}}
	}
	for name, given := range out.Instructions {
		m := w.machines[name]
		if m.Held == nil || instructions(m.Held) != instructions(&given.Held) {
			m.State = progress.None
		}
		held := given.Held
		m.Held, m.given = &held, given
	}
	return out
}

// carryOut runs the instructions that a machine has not run yet, and reports whether all have succeeded. With trouble,
// a new one may fail.
func (w *world) carryOut(m *machine) bool {
	for _, i := range m.given.Instructions {
		if ok, ended := m.journal[i.ID]; ended && !ok {
			return false
		} else if ended {
			continue
		}
		if m.journal == nil {
			m.journal = map[string]bool{}
		}
		m.journal[i.ID] = !w.trouble || w.random.IntN(20) > 0
		switch {
		case !m.journal[i.ID]:
			if w.random.IntN(2) == 0 { // it was interrupted
				w.move(m, i.ID)
			}
			return false
		case i.ID == startID(m.Held):
			w.serve(m)
			m.runs = m.Held.Start
		case slices.Contains(m.Held.Removes, i.ID):
			w.removeNode(i.ID)
		default:
			w.move(m, i.ID)
		}
	}
	return true
}

// move simulates the effect of a restore's instruction on a server's data.
func (w *world) move(m *machine, id string) {
	kind, what, _ := strings.Cut(id, "-")
	switch {
	case kind == "stop":
		m.serves = false
	case kind == "restore":
		if w.restored++; !m.replaced { // existing data comes from an attempt that was interrupted
			m.before, m.replaced = m.data, true
		}
		m.data = what
	case kind == "keep":
		m.replaced = false
	case kind == "resume" && m.replaced:
		m.data, m.replaced = m.before, false
	case kind == "rejoin" && m.mark != m.Held.Epoch:
		m.data, m.mark, m.replaced = m.Held.Epoch, m.Held.Epoch, false
	}
}

// serve starts the etcd of a machine, and checks that its data is not the replaced data.
func (w *world) serve(m *machine) {
	w.t.Helper()
	if !m.IsEtcd() {
		return
	}
	if m.runs == "" && m.data == "" { // it joins
		m.data = m.Held.Epoch
	}
	if m.serves = true; m.data != w.stored.Epoch && w.machines[m.Name] == m && !m.Leaving {
		w.t.Fatalf("%s starts with the data of %q, and that of the cluster is of %q: %+v", m.Name, m.data, w.stored.Epoch, m.Held)
	}
}

// instructions identifies the instructions of a host.
func instructions(h *roster.Held) string { return fmt.Sprint(h.Start, h.Task, h.Removes, h.Part) }

// checkRestore checks that only one host restores, while all others with etcd are stopped.
func (w *world) checkRestore(out decision.Decision) {
	w.t.Helper()
	for name, given := range out.Instructions {
		if given.Restores == "" || given.Restores != given.Stopped {
			continue
		}
		if r := out.Stored.Restore; r == nil || r.By != name || r.ID != given.Restores {
			w.t.Fatalf("%s is to restore %s, and what is stored is %+v", name, given.Restores, r)
		}
		for other, m := range w.machines {
			if other != name && m.Taken && m.serves && !m.Leaving {
				w.t.Fatalf("%s is to restore %s, and %s serves (%+v)", name, given.Restores, other, m.Host)
			}
		}
	}
}

// check checks the invariants of every decision.
func (w *world) check(out decision.Decision) {
	w.t.Helper()
	etcd, up := 0, 0
	w.checkRestore(out)
	after := &roster.Input{Stored: out.Stored}
	for name, node := range out.Stored.Nodes {
		m := w.machines[name]
		if present := m != nil && m.UID == node.UID; node.Etcd && (!present || (m.Held != nil || node.Planned) && !m.NeverJoined() && !after.IsOld(&m.Host)) {
			etcd++
			up += count(present && m.Working())
		}
	}
	servers, workers, joins, tasks := 0, 0, 0, 0
	for name, given := range out.Instructions {
		m := w.machines[name]
		if tasks += count(given.Task != ""); tasks > 1 {
			w.t.Fatalf("%s has a task, and another has one, too", name)
		}
		isServer := given.Roles != "worker"
		if m.Held == nil && w.nodes[name] && w.stored.Begun && given.Restores == "" {
			w.t.Fatalf("%s joins, and its former node is part of the cluster", name)
		}
		switch {
		case m.Held != nil && m.Held.Stopped != "" || given.Stopped != "":
		case m.Held == nil && given.Join == "":
			if w.begun[name] = true; len(w.begun) > 1 && w.stored.Begun {
				w.t.Fatalf("%v begin a cluster each", w.begun)
			}
		case m.Held == nil && isServer:
			joins++
		case m.Held != nil && given.Start != m.Held.Start && m.Working() && isServer:
			servers++
			if m.IsEtcd() && etcd > 2 && up-1 < etcd/2+1 && !out.Stuck {
				w.t.Fatalf("%s is changed, and %d of %d servers with etcd are up", name, up, etcd)
			}
		case m.Held != nil && given.Start != m.Held.Start && m.Connected && m.State == progress.Up:
			workers++
		}
		if !m.Taken || m.Leaving {
			w.t.Fatalf("%s is given instructions, and is not taken, or is being deleted", name)
		}
	}
	busy := 0
	for _, m := range w.machines {
		if m.Taken && m.Held != nil && m.Held.Roles == "worker" && m.Held.Changed && m.Connected && m.State != progress.Up && !m.Leaving && m.Labels["pool"] == "worker" {
			busy++
		}
	}
	if servers > 1 || workers > 0 && workers+busy > int(w.spec.MaxUnavailable)+w.stale() {
		w.t.Fatalf("%d servers and %d workers are changed while %d are", servers, workers, busy)
	}
}

// stale counts workers that were changed to an outdated state. Nothing waits for them.
func (w *world) stale() (n int) {
	for _, m := range w.machines {
		if m.Taken && m.Held != nil && m.Held.Roles == "worker" && m.State != progress.Up && m.Held.Version != w.spec.Version {
			n++
		}
	}
	return n
}

// pass simulates the passing of time on the machines.
func (w *world) pass() {
	for _, name := range w.names() {
		m := w.machines[name]
		if w.trouble && w.random.IntN(40) == 0 {
			m.Connected = !m.Connected
		}
		if !w.trouble {
			m.Connected = true
		}
		if m.Gone = m.Leaving && !m.Connected; !m.Taken && m.Leaving {
			delete(w.machines, name)
			continue
		}
		if m.Held == nil || !m.Connected {
			continue
		}
		switch {
		case m.State == progress.None:
			m.State = progress.Running
		case m.State == progress.Running && w.random.IntN(2) == 0:
			if !w.carryOut(m) {
				m.State = progress.Failed
			} else if m.Held.Finds != "" || m.Held.Stopped != "" {
				m.State = progress.Up
				// systemctl returns when the distribution says that its node is up
			} else if m.State = progress.Unwell; m.registered != m.Held.Start {
				m.registered, w.nodes[name] = m.Held.Start, true
			}
		case m.State == progress.Up && w.trouble && w.random.IntN(50) == 0:
			m.State = progress.Unwell
		case m.State == progress.Unwell && w.random.IntN(2) == 0:
			m.State = progress.Up
		}
	}
}

// removeNode simulates a removal.
func (w *world) removeNode(id string) {
	for name, node := range w.stored.Nodes {
		if id == (distribution.Removal{Node: name, Join: node.Join}).ID() {
			delete(w.nodes, name)
		}
	}
}

// settle decides until nothing is left to do.
func (w *world) settle(within int) decision.Decision {
	w.t.Helper()
	var out decision.Decision
	for range within {
		out = w.decide()
		w.pass()
		if out.Restore.ID == "" && out.Ready == out.Hosts && out.Hosts > 0 && len(out.Take)+len(out.Release) == 0 && len(out.Stored.Nodes) == out.Hosts {
			return out
		}
	}
	shown := 0
	for host, why := range out.Waiting {
		if shown++; why != "" && shown < 40 {
			w.t.Logf("%s %s (%+v)", host, why, w.machines[host].Host)
		}
	}
	w.t.Fatalf("after %d rounds %d of %d hosts are ready, %d missing, restore %+v, stored %+v, %s", within, out.Ready, out.Hosts, out.Missing, out.Restore, out.Stored.Nodes, w.Servers())
	return out
}

// Servers describes the servers with etcd for messages.
func (w *world) Servers() (text string) {
	for _, name := range w.names() {
		if m := w.machines[name]; m.Taken && m.Held != nil && m.IsEtcd() {
			text += fmt.Sprintf("\n%s connected %t, leaving %t, progress %d, serves %t, data %q: %+v", name, m.Connected, m.Leaving, m.State, m.serves, m.data, *m.Held)
		}
	}
	return text
}

// A settling is a model of fleets that change all the time: seeds fleets of a size, each disturbed for some rounds.
type settling struct{ seeds, servers, controls, workers, rounds int }

func TestConstantlyChangingFleetSettles(t *testing.T) {
	t.Parallel()
	changeAndSettle(t, settling{6, 3, 2, 12, 120}, settling{1, 5, 0, 60, 150}, settling{1, 5, 3, 192, 12})
}

// TestLong_ManyConstantlyChangingFleetsSettle runs the same model with more seeds, and with a thousand
// Hosts.
func TestLong_ManyConstantlyChangingFleetsSettle(t *testing.T) {
	t.Parallel()
	changeAndSettle(t, settling{24, 3, 2, 12, 120}, settling{4, 5, 0, 60, 150}, settling{1, 5, 3, 992, 12})
}

func changeAndSettle(t *testing.T, settlings ...settling) {
	t.Helper()
	for _, tt := range settlings {
		for seed := range tt.seeds {
			t.Run(fmt.Sprintf("%d workers, seed %d", tt.workers, seed), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t, uint64(seed), pool("server", int32(tt.servers), provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("control", -1, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker))
				w.spec.MaxUnavailable = int32(max(3, tt.workers/5))
				w.add("server", tt.servers)
				w.add("control", tt.controls)
				w.add("worker", tt.workers)
				w.settle(4*tt.servers + 60)
				w.trouble = true
				for range tt.rounds {
					w.disturb()
					w.decide()
					w.pass()
				}
				w.trouble = false
				w.spec.Version, w.spec.CertificateRotation = "v1.36.0+k3s1", w.spec.CertificateRotation+1
				w.spec.EncryptionKeyRotation++
				w.add("server", tt.servers)
				w.decide()
				w.repair()
				if out := w.decide(); out.Lost { // all of etcd was deleted: nothing is installed in its place
					return
				}
				w.settle(8*len(w.machines) + 400)
				if w.stored.Keys != w.spec.EncryptionKeyRotation {
					t.Errorf("the keys are those of rotation %d (%d failed), want %d", w.stored.Keys, w.stored.KeysFailed, w.spec.EncryptionKeyRotation)
				}
				for _, snap := range w.snapshots {
					if _, ended := w.stored.Outcomes[snap.ID]; !ended {
						t.Errorf("snapshot %s has not ended", snap.ID)
					}
				}
				for _, r := range w.restores {
					if _, ended := w.stored.Outcomes[r.ID]; !ended {
						t.Errorf("restore %s has not ended", r.ID)
					}
				}
				t.Logf("%d restores have replaced data", w.restored)
				for name, m := range w.machines {
					if m.Taken && (m.Held.Version != w.spec.Version || m.runs != m.Held.Start) {
						t.Errorf("%s has version %s, and runs what was started as %s, want %s", name, m.Held.Version, m.runs, m.Held.Start)
					}
				}
			})
		}
	}
}

// disturb simulates actions of users and machines.
func (w *world) disturb() {
	names := w.names()
	if len(names) == 0 {
		w.add("server", 1)
		return
	}
	m := w.machines[names[w.random.IntN(len(names))]]
	switch w.random.IntN(17) {
	case 16:
		w.asked++
		r := roster.Restore{ID: fmt.Sprint("r", w.asked), Name: "a", File: "f"}
		if m.IsEtcd() {
			r.Host = m.Name
		}
		w.restores = append(w.restores, r)
	case 15:
		if n := len(w.restores); n > 0 {
			if r := &w.restores[w.random.IntN(n)]; w.random.IntN(2) == 0 {
				r.Cancel = true
			} else {
				w.restores = slices.DeleteFunc(w.restores, func(other roster.Restore) bool { return other.ID == r.ID })
			}
		}
	case 14:
		if m.Taken && m.Held != nil { // its instructions were deleted, so it is cleaned
			*m = machine{Host: roster.Host{Name: m.Name, UID: m.UID, Labels: m.Labels, Address: m.Address, Connected: m.Connected, Taken: true}}
		}
	case 13:
		w.snapshots = append(w.snapshots, roster.Snapshot{ID: fmt.Sprint(len(w.snapshots)), Name: "a"})
	case 12:
		w.spec.EncryptionKeyRotation++
	case 0:
		delete(w.machines, m.Name) // its Host was deleted
		delete(w.nodes, m.Name)
	case 1:
		m.Leaving = true
	case 2:
		w.add("worker", 1)
	case 3:
		w.add("server", 1)
	case 4:
		w.spec.Version = fmt.Sprintf("v1.35.%d+k3s1", w.random.IntN(5))
	case 5:
		w.spec.CertificateRotation++
	case 6:
		n := int32(1 + 2*w.random.IntN(3))
		w.spec.Pools[0].Replicas = &n
	case 7:
		if m.Labels["pool"] == "worker" {
			m.Labels = labels.Set{"pool": "none"}
		}
	}
}

// repair deletes the Hosts of machines that were given away, and servers that do not work, as a user would.
func (w *world) repair() {
	for name, m := range w.machines {
		if m.Leaving || m.State == progress.Failed && m.IsEtcd() {
			delete(w.machines, name)
			delete(w.nodes, name)
		}
	}
	for i := range w.restores { // the file is also in the store
		w.restores[i].Host = ""
	}
}

func BenchmarkDecide(b *testing.B) {
	w := newWorld(&testing.T{}, 1, pool("server", 5, provisionv1.RoleEtcd, provisionv1.RoleControlPlane), pool("worker", -1, provisionv1.RoleWorker))
	w.add("server", 5)
	w.add("worker", 995)
	w.settle(200)
	in := w.input()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Decide(in); err != nil {
			b.Fatal(err)
		}
	}
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// startID returns the ID of the instruction that starts a host.
func startID(h *roster.Held) string { return fmt.Sprintf("start-%s-%d", h.Start, h.Starts) }
