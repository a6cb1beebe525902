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
	"github.com/drover-dev/drover/internal/provision/progress"
)

// host is a control plane of the model: the origin of its etcd's data, and whether etcd runs.
type host struct {
	Machine
	data     string // "old", or the UID of the restore whose data it has
	running  bool
	by       string // the restore that has stopped etcd
	prepared string
	deleted  bool // its Host was deleted
	queue    []string
}

// world is a cluster with three control planes, hubs that are killed at any time, and users who change their minds.
type world struct {
	t       *testing.T
	random  *rand.Rand
	hosts   []*host
	wish    *RestoreWish
	last    progress.Restore
	paused  string              // the restore that has paused the Cluster
	begun   map[string][]string // the hosts on which etcd was begun anew, by restore
	trouble bool
	calm    bool // no earlier restore has left the control plane stopped
	log     []string
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, random: rand.New(rand.NewPCG(seed, 7)), begun: map[string][]string{}, trouble: true}
	for n := range 1 + w.random.IntN(4) {
		name := fmt.Sprint("m", n)
		w.hosts = append(w.hosts, &host{Machine: Machine{Name: name, Host: "h" + name, Endpoints: []string{name}, Provisioned: true, Connected: true}, data: "old", running: true})
	}
	return w
}

func (w *world) wants(uid string, on *host) {
	w.wish = &RestoreWish{UID: uid, Host: on.Host, File: "f"}
	switch w.random.IntN(4) { // a file that is also, or only, in a bucket
	case 0:
		w.wish.S3 = object()
	case 1:
		w.wish.S3, w.wish.Host = object(), "of a machine that is gone"
	}
	w.last = progress.Restore{}
}

// decide is a reconcile of a hub that may be killed after any write. Writes that are lost are decided again.
func (w *world) decide() {
	in := Input{Restore: w.wish, Paused: w.paused != ""}
	for _, h := range w.hosts {
		m := h.Machine
		m.Gone = h.deleted && !h.Connected
		m.Tasks = slices.Clone(h.Tasks)
		in.Machines = append(in.Machines, m)
	}
	d := Decide(in)
	if d.Pause == Hold && w.paused == "" {
		w.paused = w.wish.UID
	}
	for _, h := range w.hosts {
		if w.trouble && w.random.IntN(4) == 0 {
			return // killed
		}
		w.given(h, d.Tasks[h.Name])
	}
	if w.wish == nil {
		return
	}
	w.last = d.Restore
	if w.last.Ended() {
		w.log = append(w.log, string(w.last.Phase)+": "+w.last.Message)
		if d.Pause == ReleaseAll || d.Pause == Release && w.paused == w.wish.UID {
			w.paused = ""
		}
		w.wish = nil
	}
}

// given writes the tasks of a machine, keeps their states, and checks that no task is given twice.
func (w *world) given(h *host, want []Task) {
	for i, task := range want {
		n := slices.IndexFunc(h.Tasks, func(t Task) bool { return t.ID == task.ID })
		if n >= 0 {
			want[i].Status = h.Tasks[n].Status
			continue
		}
		if slices.Contains(h.queue, task.ID) {
			w.t.Fatalf("%s was given %s twice\n%s", h.Name, task.ID, strings.Join(w.log, "\n"))
		}
		h.queue = append(h.queue, task.ID)
	}
	h.Tasks = want
}

// work makes a host carry out its first task that has not ended.
func (w *world) work(h *host) {
	for i := range h.Tasks {
		t := &h.Tasks[i]
		if t.Status.State == Succeeded || t.Status.State == Failed {
			continue
		}
		t.Status.State = Running
		if w.trouble && w.random.IntN(6) == 0 { // before or after the action
			if w.random.IntN(2) == 0 {
				w.act(h, t)
			}
			t.Status.State, t.Status.Message = Failed, "trouble"
		} else {
			w.act(h, t)
		}
		w.log = append(w.log, fmt.Sprintf("%s: %s %s %s: %s running %t", h.Name, t.Action, t.Etcd.Of, t.Status.State, h.data, h.running))
		w.check()
		return
	}
}

// act simulates the script.
func (w *world) act(h *host, t *Task) {
	fail := func(why string) { t.Status.State, t.Status.Message = Failed, why }
	t.Status.State = Succeeded
	switch t.Action {
	case Prepare:
		h.prepared = t.Etcd.Of
	case Stop:
		if h.running {
			h.running, h.by = false, t.Etcd.Of
		}
	case Resume:
		if h.by == t.Etcd.Of {
			h.running, h.by = true, ""
		}
		h.prepared = ""
	case Replace:
		switch {
		case h.data == t.Etcd.Of:
		case h.running:
			fail("not stopped")
			return
		case h.prepared != t.Etcd.Of:
			fail("not prepared")
			return
		default:
			h.data, h.prepared = t.Etcd.Of, ""
			w.begun[t.Etcd.Of] = append(w.begun[t.Etcd.Of], h.Name)
		}
		h.running, h.by = true, ""
	case Join:
		if !slices.ContainsFunc(w.hosts, func(o *host) bool {
			return slices.Contains(t.Etcd.Endpoints, o.Name) && o.running && o.data == t.Etcd.Of
		}) {
			fail("no etcd to join")
			return
		}
		if h.running && h.data != t.Etcd.Of {
			fail("not stopped")
			return
		}
		h.data, h.running, h.by = t.Etcd.Of, true, ""
	}
}

// check checks the invariants: no restore starts a new etcd on two hosts, and no etcd runs with other data alongside a
// restored etcd. A machine that a user has declared gone does not count.
func (w *world) check() {
	w.t.Helper()
	for restore, where := range w.begun {
		if len(where) > 1 {
			w.t.Fatalf("%s began etcd on %v\n%s", restore, where, strings.Join(w.log, "\n"))
		}
	}
	data := map[string]bool{}
	for _, h := range w.hosts {
		if h.running && !h.deleted {
			data[h.data] = true
		}
	}
	if len(data) > 1 {
		w.t.Fatalf("etcds run with the data of %v\n%s", data, strings.Join(w.log, "\n"))
	}
}

// happens simulates actions of users and machines.
func (w *world) happens() {
	h := w.hosts[w.random.IntN(len(w.hosts))]
	switch n := w.random.IntN(200); {
	case n < 30 && !h.deleted:
		h.Connected = !h.Connected
	case n < 33 && !h.Connected && len(w.hosts) > 1:
		h.deleted = true
		w.log = append(w.log, h.Name+" is deleted")
	case n < 38 && w.wish != nil:
		w.wish.Cancel = true
		w.log = append(w.log, "cancel")
	}
}

func TestRestoreStartsOneNewEtcdAndNeverRunsOldDataBesideIt(t *testing.T) {
	outcomes := map[provisionv1.EtcdRestorePhase]int{}
	for seed := range uint64(3000) {
		w, broken := newWorld(t, seed), false
		w.calm = true
		for n := range 3 {
			w.wants(fmt.Sprint("r", n), w.hosts[w.random.IntN(len(w.hosts))])
			w.trouble = true
			for step := 0; w.wish != nil; step++ {
				if step > 150 { // no more failures from here on
					w.trouble = false
					for _, h := range w.hosts {
						h.Connected = !h.deleted
					}
				}
				if step > 400 {
					t.Fatalf("seed %d: does not end: %+v\n%s", seed, w.last, strings.Join(w.log, "\n"))
				}
				if w.trouble {
					w.happens()
				}
				w.decide()
				for _, h := range w.hosts {
					if h.Connected && w.random.IntN(2) == 0 {
						w.work(h)
					}
				}
			}
			outcomes[w.last.Phase]++
			w.settled(seed)
			broken = broken || w.last.Phase == provisionv1.RestoreFailed && strings.Contains(w.last.Message, "stays paused")
			if !broken && w.paused != "" {
				t.Fatalf("seed %d: the cluster stays paused\n%s", seed, strings.Join(w.log, "\n"))
			}
			w.calm = w.calm && (w.last.Phase != provisionv1.RestoreFailed || strings.Contains(w.last.Message, "as it was before"))
			if w.last.Phase == provisionv1.RestoreSucceeded {
				broken, w.calm = false, true
			}
			w.decide() // tasks of snapshots and restores that have ended are dropped
			if slices.ContainsFunc(w.hosts, func(h *host) bool { return h.deleted }) {
				break
			}
		}
	}
	for _, phase := range []provisionv1.EtcdRestorePhase{provisionv1.RestoreSucceeded, provisionv1.RestoreFailed, provisionv1.RestoreCanceled} {
		if outcomes[phase] < 50 {
			t.Errorf("got the outcomes %v, want some of each", outcomes)
		}
	}
	t.Logf("outcomes %v", outcomes)
}

// settled checks that the status of a restore is true.
func (w *world) settled(seed uint64) {
	w.t.Helper()
	for _, h := range w.hosts {
		if h.deleted {
			continue
		}
		switch {
		case w.last.Phase == provisionv1.RestoreSucceeded && (!h.running || h.data == "old" || w.paused != ""):
			w.t.Fatalf("seed %d: %s after a restore that has succeeded: %+v, paused by %q\n%s", seed, h.Name, h, w.paused, strings.Join(w.log, "\n"))
		case strings.Contains(w.last.Message, "as it was before") && w.calm && !h.running:
			w.t.Fatalf("seed %d: %s after %q: %+v\n%s", seed, h.Name, w.last.Message, h, strings.Join(w.log, "\n"))
		}
	}
}
