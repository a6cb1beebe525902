// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	leasesv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func TestForgot(t *testing.T) {
	t.Parallel()
	// Three leaders: a renewed the Lease 200 times, b 300 times, and c 350 times so far.
	h := parseHistory("lease", "4/a/200 5/b/300 6/c/350")
	for name, test := range map[string]struct {
		checkpoint string
		forgot     bool
	}{
		"the latest of the present leader":                 {"lease/6/c/350", false},
		"later than every renewal of the present leader":   {"lease/6/c/351", true},
		"the last of a former leader":                      {"lease/5/b/300", false},
		"an early one of a former leader":                  {"lease/4/a/10", false},
		"later than the backup, in the term of the backup": {"lease/5/b/301", true},
		"from a leader that the hub never had":             {"lease/6/x/10", true},
		"from a later leader":                              {"lease/9/y/10", true},
		"from a leader that is too old for the history":    {"lease/3/z/9999", false},
		"from another Lease":                               {"other/9/y/9999", false},
		"an empty text":                                    {"", false},
		"an incomplete checkpoint":                         {"lease/9", false},
		"a number that is too large":                       {"lease/9/y/99999999999999999999", false},
	} {
		p, ok := parsePoint(test.checkpoint)
		if got := ok && h.forgot(p); got != test.forgot {
			t.Errorf("%s: forgot is %t, want %t", name, got, test.forgot)
		}
		if ok && p.String() != test.checkpoint {
			t.Errorf("%s is written as %s, want it unchanged", test.checkpoint, p)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	h := history{lease: "lease"}
	for n := range int32(maxTerms + 10) {
		for range n%2 + 1 {
			h = h.renew(n, fmt.Sprintf("process%05d", n))
		}
	}
	last := h.terms[len(h.terms)-1]
	if len(h.terms) != 500 || h.terms[0].number != 10 || h.terms[0].renewals != 1 || last.renewals != 2 {
		t.Errorf("the history is %s, want 500 terms from number 10", h)
	}
	if size := len(h.String()); size > 13<<10 {
		t.Errorf("the history takes %d bytes, want at most %d", size, 13<<10)
	}
	for number, forgot := range map[int32]bool{9: false, 10: true} { // terms of processes that are not in the history
		if h.forgot(point{lease: "lease", term: term{number: number, id: "x", renewals: 1}}) != forgot {
			t.Errorf("for term %d, forgot is %t, want %t", number, !forgot, forgot)
		}
	}
	if again := parseHistory("lease", h.String()); again.String() != h.String() {
		t.Errorf("the history is read as %s, want %s", again, h)
	}
	for _, text := range []string{"nonsense", "1/a", strings.Repeat("1/a/2 ", 3) + "x"} {
		if h := parseHistory("lease", text); len(h.terms) > 0 {
			t.Errorf("%q is read as %s, want an empty history", text, h)
		}
	}
}

// fakeLeases is a client for one Lease. It implements only the methods that are called.
type fakeLeases struct {
	leasesv1.LeaseInterface
	lease    *coordinationv1.Lease
	revision int
}

func (f *fakeLeases) Leases(string) leasesv1.LeaseInterface { return f }

func (f *fakeLeases) Get(context.Context, string, metav1.GetOptions) (*coordinationv1.Lease, error) {
	if f.lease == nil {
		return nil, apierrors.NewNotFound(coordinationv1.Resource("leases"), "")
	}
	return f.lease.DeepCopy(), nil
}

func (f *fakeLeases) Create(
	_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions,
) (*coordinationv1.Lease, error) {
	f.revision += 10
	f.lease = lease.DeepCopy()
	f.lease.UID, f.lease.ResourceVersion = "lease", strconv.Itoa(f.revision)
	return f.lease.DeepCopy(), nil
}

func (f *fakeLeases) Update(
	ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions,
) (*coordinationv1.Lease, error) {
	if lease.ResourceVersion != f.lease.ResourceVersion {
		return nil, errors.New("conflict")
	}
	return f.Create(ctx, lease, metav1.CreateOptions{})
}

// restore restores an earlier Lease. The revision still grows, as after "etcdutl snapshot restore --bump-revision".
func (f *fakeLeases) restore(lease *coordinationv1.Lease) {
	f.revision += 1000
	f.lease = lease.DeepCopy()
	f.lease.ResourceVersion = strconv.Itoa(f.revision)
}

// write writes the Lease for a holder and returns the stored Lease. An empty holder releases the Lease.
func (r *Recorder) write(t *testing.T, number int32, holder string) *coordinationv1.Lease {
	t.Helper()
	lease, err := r.Leases("").Get(t.Context(), "", metav1.GetOptions{})
	create := apierrors.IsNotFound(err)
	if create {
		lease, err = &coordinationv1.Lease{}, nil
	}
	if err != nil {
		t.Fatal(err)
	}
	lease.Spec.HolderIdentity, lease.Spec.LeaseTransitions = &holder, &number
	if create {
		lease, err = r.Leases("").Create(t.Context(), lease, metav1.CreateOptions{})
	} else {
		lease, err = r.Leases("").Update(t.Context(), lease, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

func TestRecorder(t *testing.T) {
	t.Parallel()
	for name, revision := range map[string]int{"revisions grow": 0, "revisions start again": -1_000_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := &fakeLeases{}
			first, second, restored := NewRecorder(client), NewRecorder(client), NewRecorder(client)
			if first.Current() != "" || first.Forgot("lease/1/a/1") {
				t.Error("a manager that never led has a checkpoint, want none")
			}
			first.write(t, 0, "first")
			early := first.Current()
			backup := first.write(t, 0, "first")
			kept := first.Current()
			client.revision += revision // the data was copied into another etcd, including all UIDs
			client.restore(backup)
			first.write(t, 0, "first")
			later := first.Current()
			first.write(t, 0, "") // the first leader releases the Lease
			if early == kept || kept == later {
				t.Errorf("got the checkpoints %s, %s and %s, want three different ones", early, kept, later)
			}
			lease := second.write(t, 1, "second")
			last := second.Current()
			for _, checkpoint := range []string{early, kept, later, last} {
				if second.Forgot(checkpoint) {
					t.Errorf("the next leader has forgotten %s, want it remembered by its history %s",
						checkpoint, lease.Annotations[v1.AnnotationTerms])
				}
			}
			client.restore(backup)
			restored.write(t, 1, "third")
			for checkpoint, forgot := range map[string]bool{
				early: false, kept: false, later: true, last: true, restored.Current(): false,
			} {
				if restored.Forgot(checkpoint) != forgot {
					t.Errorf("after a restore, forgot is %t for %s, want %t", !forgot, checkpoint, forgot)
				}
			}
		})
	}
}

// A replica that runs during a restore must not lead afterward, because the state in its memory differs from the hub's.
func TestReplicaNoticesARestoredLease(t *testing.T) {
	t.Parallel()
	client := &fakeLeases{}
	leader, standby := NewRecorder(client), NewRecorder(client)
	noticed := map[string]int{}
	leader.Restored, standby.Restored = func() { noticed["leader"]++ }, func() { noticed["standby"]++ }
	look := func(r *Recorder) error {
		_, err := r.Leases("").Get(t.Context(), "", metav1.GetOptions{})
		return err
	}
	backup := leader.write(t, 0, "leader")
	held := leader.write(t, 0, "leader")
	if err := errors.Join(look(standby), look(leader)); err != nil || len(noticed) > 0 {
		t.Fatalf("before the restore: got %v, noticed %v, want neither an error nor a notice", err, noticed)
	}
	client.restore(held)
	if err := errors.Join(look(standby), look(leader)); err != nil || len(noticed) > 0 {
		t.Errorf("after a restore that lost nothing: got %v, noticed %v, want neither an error nor a notice", err, noticed)
	}
	client.restore(backup)
	if err := look(standby); !errors.Is(err, ErrRestored) {
		t.Errorf("the standby reads the Lease with %v, want %v", err, ErrRestored)
	}
	if _, err := leader.Leases("").Update(t.Context(), held, metav1.UpdateOptions{}); err == nil {
		t.Error("the leader renewed a restored Lease, want an error")
	}
	for range 2 { // it does not lead later either
		if err := look(leader); !errors.Is(err, ErrRestored) {
			t.Errorf("the leader reads the Lease with %v, want %v", err, ErrRestored)
		}
	}
	if noticed["leader"] != 2 || noticed["standby"] != 1 {
		t.Errorf("noticed %v, want twice by the leader and once by the standby", noticed)
	}
	if err := look(NewRecorder(client)); err != nil {
		t.Errorf("a replica that started after the restore: got %v, want no error", err)
	}
}

func TestRemovedHistoryIsWrittenAgain(t *testing.T) {
	t.Parallel()
	client := &fakeLeases{}
	r := NewRecorder(client)
	r.write(t, 0, "leader")
	r.write(t, 0, "leader")
	sent := r.Current()
	client.lease.Annotations = nil
	if r.write(t, 0, "leader"); r.Forgot(sent) || r.Current() == sent {
		t.Errorf("after %s the checkpoint is %s, want another one and %s remembered", sent, r.Current(), sent)
	}
}
