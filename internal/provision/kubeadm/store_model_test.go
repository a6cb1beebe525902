// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

// fixture is a cluster whose snapshots are taken by a schedule and by a user, with hubs that are killed between writes.
type fixture struct {
	t         *testing.T
	random    *rand.Rand
	machines  []Machine
	disks     map[string]map[string]bool // files, by host
	objects   []*snap                    // the newest first
	retention int
	restore   *RestoreWish
	named     *snap // the snapshot that the restore names
	// torn are files that a host has removed, although no hub learned of it in time: the task was interrupted
	// afterward, could not report its outcome, or was dropped before the objects were deleted. Their EtcdSnapshots are
	// forgotten with the next task.
	torn    map[string]bool
	trouble bool
	log     []string
}

// snap is an EtcdSnapshot.
type snap struct {
	Stored
	manual bool
	phase  provisionv1.EtcdSnapshotPhase // empty while the snapshot has not ended
}

func (s *fixture) say(format string, args ...any) {
	s.log = append(s.log, fmt.Sprintf(format, args...))
}

// fail ends the test with the log of the events.
func (s *fixture) fail(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), strings.Join(s.log, "\n"))
}

// killed reports whether the hub is killed now.
func (s *fixture) killed() bool { return s.trouble && s.random.IntN(5) == 0 }

// decide is a reconcile.
func (s *fixture) decide() {
	in := Input{Machines: slices.Clone(s.machines), Retention: s.retention, Restore: s.restore, Paused: true}
	for i := range in.Machines {
		in.Machines[i].Tasks = slices.Clone(in.Machines[i].Tasks)
	}
	for _, o := range slices.Backward(s.objects) {
		if o.phase == "" {
			in.Snapshots = append(in.Snapshots, SnapshotWish{UID: o.UID, File: o.File})
		}
	}
	if s.restore != nil { // as the controller finds the source
		switch {
		case !slices.Contains(s.objects, s.named):
			s.restore.Problem = "there is no such snapshot"
		case Removing(in.Machines, s.named.Host, s.named.File, Waiting, Running, Succeeded):
			s.restore.Problem = "it is being removed"
		}
	}
	for _, o := range s.objects {
		if o.Held = s.restore != nil && s.restore.Problem == "" && o == s.named; o.phase != "" && !o.manual {
			in.Stored = append(in.Stored, o.Stored)
		}
	}
	d := Decide(in)
	defer s.untold(d.Expired)
	for i := range s.machines {
		if s.killed() {
			return
		}
		s.machines[i].Tasks = d.Tasks[s.machines[i].Name]
	}
	for _, o := range s.objects {
		if p := d.Snapshots[o.UID]; o.phase == "" && (p.Phase == provisionv1.SnapshotSucceeded || p.Phase == provisionv1.SnapshotFailed) && !s.killed() {
			o.phase, o.Host, o.Saved = p.Phase, p.Host, p.Saved
			s.say("%s %s on %s", o.UID, o.phase, o.Host)
		}
	}
	for _, uid := range d.Expired {
		if s.killed() {
			return
		}
		s.objects = slices.DeleteFunc(s.objects, func(o *snap) bool {
			if o.UID == uid && (o.manual || o.Held) {
				s.fail("%+v was deleted", o)
			}
			return o.UID == uid
		})
		s.say("%s is forgotten", uid)
	}
	if s.restore != nil && d.Restore.Ended() && !s.killed() {
		s.say("restore %s: %s", d.Restore.Phase, d.Restore.Message)
		s.restore = nil
	}
}

// untold finds the objects that a killed hub did not delete, although there is no longer a task that says that their
// files have been removed.
func (s *fixture) untold(expired []string) {
	for _, o := range s.objects {
		if slices.Contains(expired, o.UID) && !Removing(s.machines, o.Host, o.File, Succeeded) {
			s.torn[o.File] = true
		}
	}
}

// work makes a host carry out its first task that has not ended.
func (s *fixture) work(m *Machine) {
	for i := range m.Tasks {
		t := &m.Tasks[i]
		if t.Status.State == Succeeded || t.Status.State == Failed {
			continue
		}
		t.Status.State = Succeeded
		disk := s.disks[m.Host]
		switch t.Action {
		case Snapshot:
			if s.trouble && s.random.IntN(4) == 0 {
				t.Status.State = Failed
				disk[t.Etcd.File] = s.random.IntN(2) == 0 // killed before or after it was saved
				return
			}
			disk[t.Etcd.File] = true
			for n, old := range t.Etcd.Remove {
				if s.trouble && s.random.IntN(10) == 0 { // killed in between
					t.Status.State = Failed
					t.Etcd.Remove = slices.Clone(t.Etcd.Remove)
					s.say("%s removed %d of %v", m.Host, n, t.Etcd.Remove)
					return
				}
				if strings.HasPrefix(old, "manual") {
					s.fail("%s removes the file of a user: %s", m.Host, old)
				}
				delete(disk, old)
				s.torn[old] = s.trouble
			}
			for _, old := range t.Etcd.Remove {
				if m.Connected {
					delete(s.torn, old)
				}
			}
		case Prepare:
			if t.Status.State = Failed; disk[t.Etcd.File] {
				t.Status.State = Succeeded
			} else if s.restore != nil && !s.torn[t.Etcd.File] {
				s.fail("%s was told to restore %s, which is not there", m.Host, t.Etcd.File)
			}
		}
		s.say("%s: %s %s %s", m.Host, verb(t.Action), t.Etcd.File, t.Status.State)
		return
	}
}

// happens simulates the schedule, users and machines.
func (s *fixture) happens(n int) {
	busy := slices.ContainsFunc(s.objects, func(o *snap) bool { return o.phase == "" && !o.manual })
	switch s.random.IntN(8) {
	case 0, 1, 2:
		if !busy && s.restore == nil {
			s.objects = slices.Insert(s.objects, 0, &snap{Stored: Stored{UID: fmt.Sprint("s", n), File: fmt.Sprintf("s%d.db", n)}})
		}
	case 3:
		if s.random.IntN(4) == 0 {
			s.objects = slices.Insert(s.objects, 0, &snap{Stored: Stored{UID: fmt.Sprint("manual", n), File: fmt.Sprintf("manual%d.db", n)}, manual: true})
		}
	case 4:
		if o := s.objects[s.random.IntN(len(s.objects)+1)%max(len(s.objects), 1):]; len(o) > 0 && s.restore == nil && o[0].phase == provisionv1.SnapshotSucceeded {
			s.named, s.restore = o[0], &RestoreWish{UID: fmt.Sprint("r", n), Host: o[0].Host, File: o[0].File}
			s.say("restore of %s", o[0].UID)
		}
	case 5:
		m := &s.machines[s.random.IntN(len(s.machines))]
		switch {
		case m.Connected:
			m.Connected = false
		case !m.Lost && s.random.IntN(2) == 0: // it stays disconnected
			m.Lost = true
		default:
			m.Connected, m.Lost = true, false
		}
	case 6:
		if s.restore != nil {
			s.restore.Cancel = true
		}
	case 7:
		s.retention = 1 + s.random.IntN(4)
	}
}

func TestNoSnapshotIsLostToARestoreAndNoneAreKeptForEver(t *testing.T) {
	removed := 0
	for seed := range uint64(500) {
		s := &fixture{t: t, random: rand.New(rand.NewPCG(seed, 3)), disks: map[string]map[string]bool{}, torn: map[string]bool{}, retention: 2, trouble: true}
		for n := range 1 + s.random.IntN(3) {
			host := fmt.Sprint("h", n)
			s.machines = append(s.machines, Machine{Name: "m" + host, Host: host, Endpoints: []string{host}, Provisioned: true, Connected: true})
			s.disks[host] = map[string]bool{}
		}
		s.log = []string{fmt.Sprint("seed ", seed)}
		for step := range 450 {
			if step == 250 {
				s.trouble, s.retention = false, 2
			}
			if s.happens(step); !s.trouble {
				s.retention = 2
				for i := range s.machines {
					s.machines[i].Connected, s.machines[i].Lost = true, false
				}
			}
			s.decide()
			for i := range s.machines {
				switch m := s.machines[i]; {
				case m.Connected && s.random.IntN(2) == 0:
					s.work(&s.machines[i])
				case !m.Connected && s.random.IntN(8) == 0: // it carries out its task, but no hub learns of it
					m.Tasks = slices.Clone(m.Tasks)
					s.work(&m)
				}
			}
		}
		removed += s.bounded()
	}
	if removed < 1000 {
		t.Errorf("%d files were removed in all, want the model to remove some", removed)
	}
}

// bounded checks the files and objects that are left at the end, and returns how many files of the schedule were
// removed.
func (s *fixture) bounded() (removed int) {
	s.t.Helper()
	failures := 0
	for _, o := range s.objects {
		switch {
		case o.manual && o.phase == provisionv1.SnapshotSucceeded && !s.disks[o.Host][o.File]:
			s.fail("the file of %s is gone", o.UID)
		case !o.manual && o.phase != "" && !o.Saved:
			failures++
		}
	}
	if failures > keptFailures+1 {
		s.fail("%d snapshots that failed are kept", failures)
	}
	made := strings.Count(strings.Join(s.log, "\n"), ": snapshot s")
	for _, m := range s.machines {
		kept, files := 0, 0
		for _, o := range s.objects {
			if !o.manual && o.Saved && o.Host == m.Host {
				kept++
			}
		}
		for file, there := range s.disks[m.Host] {
			if there && !strings.HasPrefix(file, "manual") {
				files++
			}
		}
		removed += made - files
		if kept > 2+1 { // every host has some in the end
			s.fail("%s keeps %d snapshots with %d files", m.Host, kept, files)
		}
	}
	return removed
}
