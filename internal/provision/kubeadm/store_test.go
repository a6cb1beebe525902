// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeadm

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
)

func object() *Object {
	return &Object{EtcdS3Object: provisionv1.EtcdS3Object{Endpoint: "s3.example.com:9000", Bucket: "b", Region: "r", BucketLookup: provisionv1.BucketLookupDNS, Key: "f/a.db"}, CredentialsSecretName: "keys"}
}

func TestASnapshotIsCopiedAfterItWasSaved(t *testing.T) {
	saved := task("snapshot-a", Snapshot, infrav1.EtcdTask{Of: "a"}, Succeeded)
	upload := func(n int, state State) Task {
		return task(fmt.Sprint("upload-a-upload-", n), Upload, infrav1.EtcdTask{Of: "a", S3: object()}, state, "access denied")
	}
	for name, c := range map[string]struct {
		has    []Task
		change func(*Input)
		want   []string
		phase  provisionv1.EtcdSnapshotPhase
		says   string
		saved  bool
	}{
		"it is saved first":            {[]Task{task("snapshot-a", Snapshot, infrav1.EtcdTask{Of: "a"}, Running)}, nil, nil, provisionv1.SnapshotRunning, "is making the snapshot", false},
		"then the same host copies it": {[]Task{saved}, nil, []string{"h2:upload"}, provisionv1.SnapshotRunning, "has saved it, and copies it to the bucket b", true},
		"without a bucket it is done":  {[]Task{saved}, func(in *Input) { in.Snapshots[0].S3 = nil }, []string{"h1:snapshot"}, provisionv1.SnapshotSucceeded, "has made it", true},
		"a restore goes first": {[]Task{saved}, func(in *Input) { in.Restore = &RestoreWish{UID: "r", Host: "h1", File: "f"} }, []string{}, provisionv1.SnapshotRunning,
			"when the EtcdRestore of this cluster has ended", true},
		"a copy that was begun goes on without a bucket in spec": {[]Task{saved, upload(1, Running)}, func(in *Input) { in.Snapshots[0].S3 = nil }, nil, provisionv1.SnapshotRunning, "copies it", true},
		"the next snapshot waits":                                {[]Task{saved, upload(1, Running)}, nil, nil, provisionv1.SnapshotRunning, "copies it", true},
		"a copy that fails is tried again":                       {[]Task{saved, upload(1, Failed)}, nil, []string{"h2:upload"}, provisionv1.SnapshotRunning, "copies it", true},
		"and then the snapshot has failed, and the file is there": {[]Task{saved, upload(1, Failed), upload(2, Failed)}, nil, []string{"h1:snapshot"}, provisionv1.SnapshotFailed,
			"it is saved as a.db on host h2, and could not be copied to the bucket b: access denied", true},
		"copied":             {[]Task{saved, upload(1, Succeeded)}, nil, []string{"h1:snapshot"}, provisionv1.SnapshotSucceeded, "copied it to the bucket b", true},
		"the host goes away": {[]Task{saved, upload(1, Running)}, func(in *Input) { in.Machines[1].Connected = false }, []string{"h1:snapshot"}, provisionv1.SnapshotRunning, "not connected", true},
		"the host stays away while it copies it": {[]Task{saved, upload(1, Running)}, func(in *Input) { in.Machines[1].Connected, in.Machines[1].Lost = false, true }, []string{"h1:snapshot"}, provisionv1.SnapshotFailed,
			"it is saved as a.db on host h2, which was not connected for ten minutes", true},
		"the host stays away before it copies it": {[]Task{saved}, func(in *Input) { in.Machines[1].Connected, in.Machines[1].Lost = false, true }, []string{"h1:snapshot"}, provisionv1.SnapshotFailed,
			"it is saved as a.db on host h2, which was not connected for ten minutes", true},
		"its machine is being deleted before it copies it": {[]Task{saved}, func(in *Input) { in.Machines[1].Leaving = true }, []string{"h1:snapshot"}, provisionv1.SnapshotFailed, "its DroverMachine is being deleted", true},
		"the host is gone before it is copied":             {[]Task{saved, upload(1, Running)}, func(in *Input) { in.Machines[1].Gone = true }, nil, provisionv1.SnapshotFailed, "is gone, and had not copied it", false},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "a", File: "a.db", S3: object()}, {UID: "b", File: "b.db"}}}
			in.Machines[1].Tasks = c.has
			if c.change != nil {
				c.change(&in)
			}
			d := Decide(in)
			got := news(in, d)
			if strings.Contains(name, "restore") { // other tests cover restores
				got = slices.DeleteFunc(got, func(s string) bool { return !strings.HasSuffix(s, "upload") })
			}
			if strings.Contains(name, "is gone") {
				got = slices.DeleteFunc(got, func(s string) bool { return strings.HasSuffix(s, "snapshot") })
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("new tasks %v, want %v", got, c.want)
			}
			p := d.Snapshots["a"]
			if p.Phase != c.phase || !strings.Contains(p.Message, c.says) || p.Saved != c.saved || p.Host != "h2" || (p.S3 != nil) != (name == "copied") {
				t.Errorf("%+v, want %s with %q, saved %t", p, c.phase, c.says, c.saved)
			}
		})
	}
}

func TestACopyToNoBucketHasFailed(t *testing.T) {
	in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "a", File: "a.db"}}}
	in.Machines[0].Tasks = []Task{task("snapshot-a", Snapshot, infrav1.EtcdTask{Of: "a"}, Succeeded), task("upload-a-upload-2", Upload, infrav1.EtcdTask{Of: "a"}, Failed, "the task upload has no bucket")}
	if p := Decide(in).Snapshots["a"]; p.Phase != provisionv1.SnapshotFailed || !strings.Contains(p.Message, "no bucket") {
		t.Errorf("%+v, want it to have failed", p)
	}
}

// storedOn returns snapshots of the schedule, the newest first: "h1" is a snapshot on that host, "h1!" left no file,
// and "h1*" is named by a restore.
func storedOn(hosts ...string) (all []Stored) {
	for n, text := range hosts {
		host := strings.TrimRight(text, "!*")
		all = append(all, Stored{UID: fmt.Sprint("u", n), Host: host, File: fmt.Sprint(n, ".db"), Saved: !strings.HasSuffix(text, "!"), Held: strings.HasSuffix(text, "*")})
	}
	return all
}

func TestEachControlPlaneKeepsTheLatestSnapshotsOfTheSchedule(t *testing.T) {
	for name, c := range map[string]struct {
		stored    []Stored
		retention int
		want      string // files that the task of the next snapshot removes
		expired   string
	}{
		"none are there":                                              {nil, 2, "", ""},
		"as many as are kept, with the next":                          {storedOn("h1"), 2, "", ""},
		"one too many":                                                {storedOn("h1", "h1"), 2, "1.db", ""},
		"the retention was lowered":                                   {storedOn("h1", "h1", "h1", "h1"), 2, "1.db 2.db 3.db", ""},
		"retention 1 keeps the next only":                             {storedOn("h1"), 1, "0.db", ""},
		"those of other hosts do not count":                           {storedOn("h1", "h2", "h2", "h3"), 2, "", ""},
		"one that a restore names":                                    {storedOn("h1", "h1*", "h1"), 2, "2.db", ""},
		"without a schedule all stay":                                 {storedOn("h1", "h1", "h1", "h9", "h9!", "h9!", "h9!", "h9!"), 0, "", ""},
		"what one that failed may have left":                          {storedOn("h1!", "h1", "h2!"), 2, "0.db", ""},
		"those that failed stay while a host may have a file of them": {storedOn("h1!", "h2!", "!", "h1!", "h2!"), 2, "0.db 3.db", ""},
		"three that failed are kept":                                  {storedOn("h9!", "!", "h9!", "h9!", "!"), 5, "", "u3 u4"},
		"one that failed and is named stays":                          {storedOn("h9!", "h9!", "h9!", "h9*", "h9!"), 5, "", "u4"},
		"as many that failed as there may be":                         {storedOn(slices.Repeat([]string{"h2!"}, 34)...), 5, "", "u32 u33"},
		"of hosts that are none any more as many":                     {storedOn("h9", "h1", "h9", "h8"), 2, "", "u3"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "new", File: "new.db"}}, Stored: c.stored, Retention: c.retention}
			in.Machines[1].Connected, in.Machines[2].Connected = false, false
			d := Decide(in)
			if got := strings.Join(d.Tasks["mh1"][0].Etcd.Remove, " "); got != c.want {
				t.Errorf("%q is removed, want %q", got, c.want)
			}
			if got := strings.Join(d.Expired, " "); got != c.expired {
				t.Errorf("%q are deleted, want %q", got, c.expired)
			}
		})
	}
	many := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "new", File: "new.db"}}, Stored: storedOn(slices.Repeat([]string{"h1"}, 100)...), Retention: 5}
	many.Machines = many.Machines[:1]
	if got := Decide(many).Tasks["mh1"][0].Etcd.Remove; len(got) != 64 || got[63] != "99.db" {
		t.Errorf("%d files, with %s: want the 64 oldest", len(got), got[len(got)-1])
	}
}

func TestSnapshotsAreSpreadOverTheControlPlanes(t *testing.T) {
	for name, c := range map[string]struct {
		stored []Stored
		change func([]Machine)
		want   string
	}{
		"none was made":                         {nil, nil, "h1"},
		"the first has one":                     {storedOn("h1"), nil, "h2"},
		"all have one":                          {storedOn("h3", "h2", "h1"), nil, "h1"},
		"the latest of each counts":             {storedOn("h1", "h3", "h2", "h1"), nil, "h2"},
		"the oldest is away":                    {storedOn("h3", "h2", "h1"), func(all []Machine) { all[0].Connected = false }, "h2"},
		"one that fails does not get all":       {storedOn("h1!", "h3", "h2"), nil, "h2"},
		"its machine is being deleted":          {storedOn("h3", "h2"), func(all []Machine) { all[0].Leaving = true }, "h2"},
		"those of hosts that are none any more": {storedOn("h9", "h1", "h8"), nil, "h2"},
		"one that was added has none":           {storedOn("h2", "h1"), nil, "h3"},
	} {
		in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "new", File: "new.db"}}, Stored: c.stored, Retention: 5}
		if c.change != nil {
			c.change(in.Machines)
		}
		if got := Decide(in).Snapshots["new"].Host; got != c.want {
			t.Errorf("%s: %s makes it, want %s", name, got, c.want)
		}
	}
}

func TestASnapshotIsForgottenOnceItsFileIsRemoved(t *testing.T) {
	in := Input{Machines: planes(), Snapshots: []SnapshotWish{{UID: "new", File: "new.db"}}, Stored: storedOn("h1", "h1", "h2"), Retention: 1}
	in.Machines[0].Tasks = []Task{task("snapshot-new", Snapshot, infrav1.EtcdTask{Of: "new", Remove: []string{"0.db", "1.db"}}, "")}
	for state, want := range map[State]string{Waiting: "", Running: "", Failed: "", Succeeded: "u0 u1"} {
		in.Machines[0].Tasks[0].Status.State = state
		if got := strings.Join(Decide(in).Expired, " "); got != want {
			t.Errorf("state %s: %q are deleted, want %q", state, got, want)
		}
	}
	failed := Input{Machines: planes(), Stored: storedOn(slices.Repeat([]string{"h1!"}, 5)...), Retention: 1}
	failed.Machines[0].Tasks = []Task{task("snapshot-new", Snapshot, infrav1.EtcdTask{Of: "new", Remove: []string{"0.db", "3.db"}}, "")}
	for state, want := range map[State]string{Waiting: "", Running: "", Failed: "", Succeeded: "u3"} {
		failed.Machines[0].Tasks[0].Status.State = state
		if got := strings.Join(Decide(failed).Expired, " "); got != want {
			t.Errorf("state %s: of those that failed %q are deleted, want %q", state, got, want)
		}
	}
	in.Stored[1].Held, in.Machines[0].Tasks[0].Status.State = true, Succeeded
	if got := strings.Join(Decide(in).Expired, " "); got != "u0" {
		t.Errorf("%q are deleted, want that which a restore names to stay", got)
	}
}

func TestAnotherControlPlaneFetchesASnapshotOfAHostThatIsGone(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Input)
		want   []string
		phase  provisionv1.EtcdRestorePhase
		says   string
	}{
		"the host has it, or fetches it": {func(*Input) {}, []string{"h2:prepare"}, provisionv1.RestorePending, "host h2 is reading"},
		"the host is gone":               {func(in *Input) { in.Machines[1].Gone, in.Machines[1].Connected = true, false }, []string{"h1:prepare"}, provisionv1.RestorePending, "host h1 is reading"},
		"the host is none of the cluster": {func(in *Input) { in.Restore.Host = "h9" }, []string{"h1:prepare"}, provisionv1.RestorePending,
			"host h1 is reading"},
		"a file of the bucket":                 {func(in *Input) { in.Restore.Host = "" }, []string{"h1:prepare"}, provisionv1.RestorePending, "host h1 is reading"},
		"without a copy it cannot be":          {func(in *Input) { in.Restore.Host, in.Restore.S3 = "h9", nil }, nil, provisionv1.RestoreFailed, "h9 is not a control plane"},
		"a host that is away blocks as before": {func(in *Input) { in.Restore.Host, in.Machines[2].Connected = "h9", false }, nil, provisionv1.RestorePending, "h3, whose agent is not connected"},
		"a cluster that has no control plane":  {func(in *Input) { in.Restore.Host, in.Machines = "h9", nil }, nil, provisionv1.RestorePending, "waits for a control plane"},
		"it is fetched by the same when repeated": {func(in *Input) {
			in.Restore.Host = "h9"
			in.Machines[2].Tasks = []Task{task("restore-r-prepare-1", Prepare, infrav1.EtcdTask{Of: "r"}, Failed)}
		}, []string{"h3:prepare"}, provisionv1.RestorePending, "h3"},
	} {
		t.Run(name, func(t *testing.T) {
			in := Input{Machines: planes(), Restore: &RestoreWish{UID: "r", Host: "h2", File: "a.db", S3: object()}, Paused: true}
			c.change(&in)
			d := Decide(in)
			if got := news(in, d); !slices.Equal(got, c.want) || d.Restore.Phase != c.phase || !strings.Contains(d.Restore.Message, c.says) {
				t.Errorf("%v, %+v, want %v, %s, %q", got, d.Restore, c.want, c.phase, c.says)
			}
			for _, tasks := range d.Tasks {
				if last := tasks[len(tasks)-1]; last.Etcd.S3 == nil || last.Etcd.S3.Key != "f/a.db" {
					t.Errorf("%+v: want it to know the bucket", last)
				}
			}
		})
	}
}

func TestCredentialsAreNoArguments(t *testing.T) {
	by, no := map[string]string{"DROVER_S3_SECRET_KEY": "hush-hush"}, errors.New("no Secret")
	flags := []string{"--endpoint=s3.example.com:9000", "--bucket=b", "--region=r", "--bucket-lookup=DNS", "--key=f/a.db"}
	for _, c := range []struct {
		task Task
		want []string // nil for an error
		env  bool
		no   error // why there are no credentials
	}{
		{task("", Upload, infrav1.EtcdTask{File: "a.db", S3: object()}, ""), append([]string{"upload", Folder + "a.db"}, flags...), true, nil},
		{task("", Prepare, infrav1.EtcdTask{Of: "r", File: "a.db", S3: object()}, ""), append([]string{"prepare", "r", Folder + "a.db"}, flags...), true, nil},
		{task("", Snapshot, infrav1.EtcdTask{File: "a.db", S3: object(), Remove: []string{"b.db", "c.db"}}, ""), []string{"snapshot", Folder + "a.db", Folder + "b.db", Folder + "c.db"}, false, nil},
		{task("", Stop, infrav1.EtcdTask{Of: "r", S3: object()}, ""), []string{"stop", "r"}, false, nil},
		{task("", Prepare, infrav1.EtcdTask{Of: "r", File: "a.db", S3: object()}, ""), []string{"prepare", "r", Folder + "a.db", "--unreachable", "no Secret"}, false, no},
		{task("", Upload, infrav1.EtcdTask{File: "a.db"}, ""), nil, false, nil},
		{task("", Snapshot, infrav1.EtcdTask{File: "a.db", Remove: []string{"../a.db"}}, ""), nil, false, nil},
		{task("", Snapshot, infrav1.EtcdTask{File: "a.db", Remove: []string{".."}}, ""), nil, false, nil},
		{task("", Upload, infrav1.EtcdTask{File: "a.db", S3: object()}, ""), nil, false, no},
	} {
		got, err := Instruction(c.task.MachineTask, Bucket{by, c.no})
		if c.want == nil {
			if err == nil {
				t.Errorf("%+v: %q, want an error", c.task, got.Command)
			}
			continue
		}
		if err != nil || !slices.Equal(got.Command[4:], c.want) || (len(got.Env) > 0) != c.env || strings.Contains(fmt.Sprint(got.Command), "hush") {
			t.Errorf("%+v: %q with %d variables, %v, want %q", c.task, got.Command[4:], len(got.Env), err, c.want)
		}
	}
}
