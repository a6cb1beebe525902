// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// disk is a server's disk, with programs that write the arguments of their calls to the file "ran".
type disk struct {
	t   *testing.T
	dir string
}

func newDisk(t *testing.T) *disk {
	t.Helper()
	d := &disk{t, t.TempDir()}
	d.write("server/db/etcd/member/data", "old")
	d.write("server/db/snapshots/before-1-node-17", "snapshot")
	d.write("server/db/reset-flag", "")
	d.write("server/cred/encryption-config.json", "old")
	d.write("server/tls/ca.key", "old")
	d.program("k3s", `case "$1" in
server) rm -rf "$DATA/server/db/etcd"; mkdir -p "$DATA/server/db/etcd/member"; for last; do :; done
	for to in db/etcd/member/data cred/encryption-config.json tls/ca.key; do cp "${last#*=}" "$DATA/server/$to"; done; test ! -e "$DATA/fail" ;;
kubectl) case "$*" in *get\ nodes*) echo "node/a node/b node/c-d" ;; *get\ secrets*) echo secret/a.node-password.k3s secret/k3s-serving ;; esac ;;
esac`)
	d.program("systemctl", `test "$1" != cat || test ! -e "$DATA/none"`)
	return d
}

func (d *disk) write(name, content string) {
	d.t.Helper()
	path := filepath.Join(d.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *disk) program(name, does string) {
	d.t.Helper()
	d.write("bin/"+name, fmt.Sprintf("#!/bin/sh\necho %s \"$@\" >>%q\n%s\n", name, d.dir+"/ran", does))
	if err := os.Chmod(filepath.Join(d.dir, "bin", name), 0o700); err != nil {
		d.t.Fatal(err)
	}
}

// run runs an instruction, and returns its output.
func (d *disk) run(i protocol.HostInstruction) (string, error) {
	d.t.Helper()
	words := slices.Clone(i.Command)
	for at, word := range words {
		if strings.HasPrefix(word, "PATH=") {
			words[at] = "PATH=" + d.dir + "/bin:" + os.Getenv("PATH")
		}
	}
	command := exec.CommandContext(d.t.Context(), words[0], words[1:]...)
	command.Env = []string{"PATH=" + d.dir + "/bin:" + os.Getenv("PATH"), "DATA=" + d.dir}
	for key, value := range i.Env {
		if key != "DATA" {
			command.Env = append(command.Env, key+"="+value)
		}
	}
	out, err := command.CombinedOutput()
	return string(out), err
}

// want checks the content of the disk, and which programs were run.
func (d *disk) want(when, etcd, before, replaced, ran string) {
	d.t.Helper()
	read := func(name string) string {
		raw, _ := os.ReadFile(filepath.Join(d.dir, name))
		return strings.ReplaceAll(strings.ReplaceAll(strings.TrimSpace(string(raw)), d.dir, ""), "\n", "; ")
	}
	for name, want := range map[string]string{
		"server/db/etcd/member/data": etcd, "server/db/etcd-before-restore/member/data": before,
		"server/db/etcd-replaced/member/data": replaced, "ran": ran,
	} {
		if got := read(name); got != want {
			d.t.Errorf("%s: %s is %q, want %q", when, name, got, want)
		}
	}
	_ = os.Remove(filepath.Join(d.dir, "ran"))
}

// wantKeys checks the keys and certificates that a server starts with, and those that can come back.
func (d *disk) wantKeys(when, now, before string) {
	d.t.Helper()
	for name, want := range map[string]string{
		"cred/encryption-config.json": now, "tls/ca.key": now,
		"cred-before-restore/encryption-config.json": before, "tls-before-restore/ca.key": before,
	} {
		if raw, _ := os.ReadFile(filepath.Join(d.dir, "server", name)); string(raw) != want {
			d.t.Errorf("%s: server/%s is %q, want %q", when, name, raw, want)
		}
	}
}

// restoresOf returns the instruction that restores a file.
func (d *disk) restoresOf(file string) protocol.HostInstruction {
	d.t.Helper()
	in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
	in.Spec.DataDir = d.dir
	p, err := in.RenderRestore(memberOf(provisionv1.RoleEtcd), &roster.Restoring{Restore: roster.Restore{ID: "r", Host: "m1", File: file, Begins: true}})
	if err != nil {
		d.t.Fatal(err)
	}
	return p.Instructions[len(p.Instructions)-1]
}

func script(text string, args ...string) protocol.HostInstruction {
	return protocol.HostInstruction{Command: append([]string{"/bin/sh", "-c", text}, args...)}
}

const reset = "k3s server --cluster-reset --data-dir  --etcd-s3=false --cluster-reset-restore-path=/server/db/snapshots/before-1-node-17"

func TestReplacedDataCanComeBackUntilTheNewDataIsKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fails              bool
		then               string
		etcd, before, kept string
	}{
		"it has succeeded, and is kept":                 {false, keep, "snapshot", "", "old"},
		"it has succeeded, which the hub does not know": {false, resume, "old", "", ""},
		"it has failed, and it resumes":                 {true, resume, "old", "", ""},
	} {
		d := newDisk(t)
		if tt.fails {
			d.write("fail", "")
		}
		if out, err := d.run(d.restoresOf("before-1")); (err != nil) != tt.fails {
			t.Errorf("%s: %v %s", name, err, out)
		}
		d.want(name, "snapshot", "old", "", reset)
		d.wantKeys(name, "snapshot", "old")
		if _, err := os.Stat(d.dir + "/server/db/reset-flag"); err == nil {
			t.Errorf("%s: the flag of the last reset is there", name)
		}
		for range 2 { // an instruction with another ID finds the work done
			if out, err := d.run(script(tt.then)); err != nil {
				t.Errorf("%s: %v %s", name, err, out)
			}
			d.want(name, tt.etcd, tt.before, tt.kept, "")
			d.wantKeys(name, tt.etcd, "")
		}
	}
}

func TestInterruptedRestoreStartsAgainFromTheFormerData(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	d.write("server/db/etcd/member/data", "half")
	d.write("server/db/etcd-before-restore/member/data", "old")
	if out, err := d.run(d.restoresOf("before-1")); err != nil {
		t.Fatal(err, out)
	}
	d.want("after the second", "snapshot", "old", "", reset)
	lost := newDisk(t)
	if err := os.RemoveAll(lost.dir + "/server/db/etcd"); err != nil {
		t.Fatal(err)
	}
	if out, err := lost.run(lost.restoresOf("before-1")); err != nil {
		t.Fatal(err, out)
	}
	lost.want("without data before", "snapshot", "", "", reset)
	lost.wantKeys("without data before", "snapshot", "old")
	if out, err := lost.run(script(resume)); err == nil || !strings.Contains(out, "has no data to start with") {
		t.Errorf("a host without data is started: %v %s", err, out)
	}
}

func TestFindSnapshotReportsMissingFiles(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	d.write("server/db/snapshots/two-1", "")
	d.write("server/db/snapshots/two-2", "")
	in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
	in.Spec.DataDir = d.dir
	for name, tt := range map[string]struct {
		file   string
		begins bool
		found  bool
	}{
		"its name":                {"before-1-node-17", false, true},
		"what it begins with":     {"before-1", true, true},
		"a beginning as its name": {"before-1", false, false},
		"the beginning of two":    {"two", true, false},
		"none":                    {"other", true, false},
		"a script":                {`$(touch "$DATA/hacked")`, true, false},
	} {
		out, err := d.run(in.FindFile(&roster.Restoring{Restore: roster.Restore{ID: "r", File: tt.file, Begins: tt.begins}}))
		if (err == nil) != tt.found || !tt.found && !strings.Contains(out, "have the name "+tt.file) {
			t.Errorf("%s: %v %s", name, err, out)
		}
	}
	if _, err := os.Stat(d.dir + "/hacked"); err == nil {
		t.Error("the name of a file was run")
	}
	if _, err := d.run(d.restoresOf("two")); err == nil {
		t.Error("one of two files was restored")
	}
	d.want("after all", "old", "", "", "")
}

func TestAServerMovesItsDataAwayOnceForEachRestore(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	for _, step := range []struct{ epoch, etcd, replaced string }{{"r1", "", "old"}, {"r1", "new", "old"}, {"r2", "", "new"}, {"r2", "new", "new"}} {
		if out, err := d.run(script(rejoin, step.epoch)); err != nil {
			t.Fatal(err, out)
		}
		d.want(step.epoch, step.etcd, "", step.replaced, "")
		d.wantKeys(step.epoch, step.etcd, "")        // k3s does not start with keys that are newer than the cluster's
		d.write("server/db/etcd/member/data", "new") // it has joined
		d.write("server/cred/encryption-config.json", "new")
		d.write("server/tls/ca.key", "new")
	}
}

func TestAServerIsStoppedAndNotStartedWithItsMachine(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	d.program("killall.sh", "")
	for name, ran := range map[string]string{
		"it is installed": "systemctl cat unit; systemctl stop unit; systemctl disable unit; killall.sh",
		"it is not":       "systemctl cat unit; killall.sh",
	} {
		if name == "it is not" {
			d.write("none", "")
		} else {
			_ = os.Remove(d.dir + "/none")
		}
		if out, err := d.run(script(stop, "unit", d.dir+"/bin/not-there", d.dir+"/bin/killall.sh")); err != nil {
			t.Fatal(err, out)
		}
		d.want(name, "old", "", "", ran)
	}
}

func TestNodesThatOnlyTheSnapshotHasAreRemoved(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	remove := script(cleanNodesScript(K3s))
	remove.Env = map[string]string{"NODES": "a c"}
	if out, err := d.run(remove); err != nil {
		t.Fatal(err, out)
	}
	d.want("after all", "old", "", "", strings.Join([]string{
		"k3s kubectl get nodes -o name", "k3s kubectl delete node b --ignore-not-found --timeout=60s",
		"k3s kubectl delete node c-d --ignore-not-found --timeout=60s", "k3s kubectl -n kube-system get secrets -o name",
		// of a machine that was reinstalled
		"k3s kubectl -n kube-system delete secret/a.node-password.k3s --ignore-not-found --timeout=60s",
	}, "; "))
}

func TestRestoreCommandsMatchTheDistributionsDocumentation(t *testing.T) {
	t.Parallel()
	etcd := memberOf(provisionv1.RoleEtcd, provisionv1.RoleControlPlane)
	etcd.Held = &roster.Held{Roles: etcd.Roles(), Join: "https://10.0.0.2:6443"}
	for name, tt := range map[string]struct {
		distribution provisionv1.Distribution
		restore      roster.Restore
		words, stop  []string
	}{
		"k3s, from a disk":    {provisionv1.DistributionK3s, roster.Restore{ID: "r", Host: "m1", File: "f"}, []string{`"$0" server --cluster-reset --data-dir "$DATA" --etcd-s3=false --cluster-reset-restore-path="$1"`, "$db/snapshots/$FILE"}, []string{"k3s"}},
		"RKE2, from a bucket": {provisionv1.DistributionRKE2, roster.Restore{ID: "r", File: "f"}, []string{`"$0" server --cluster-reset --data-dir "$DATA" --cluster-reset-restore-path="$FILE"`}, append([]string{"rke2-server"}, places("rke2-killall.sh")...)},
	} {
		in := inputOf(tt.distribution, fmt.Sprintf("v1.35.1+%s1", map[provisionv1.Distribution]string{"k3s": "k3s", "rke2": "rke2r"}[tt.distribution]), provisionv1.Installer{})
		p, err := in.RenderRestore(etcd, &roster.Restoring{Restore: tt.restore, By: "m1"})
		if err != nil {
			t.Fatal(err)
		}
		if config := string(p.Files[0].Content); strings.Contains(config, "server:") || p.Join != etcd.Held.Join || len(p.Probes) > 0 {
			t.Errorf("%s: a reset is refused where the configuration has a server: %s", name, config)
		}
		last := p.Instructions[len(p.Instructions)-1].Command
		script := last[slices.Index(last, "-c")+1]
		if last[len(last)-1] != rancherOf(in).name || !slices.Contains(last, "FILE=f") || !slices.Contains(last, "DATA="+rancherOf(in).dataDir(in.Input)) {
			t.Errorf("%s: %v", name, last)
		}
		for _, word := range tt.words {
			if !strings.Contains(script, word) {
				t.Errorf("%s: %q is not in %s", name, word, script)
			}
		}
		if got := p.Instructions[0]; got.ID != "stop-r" || !slices.Equal(got.Command[slices.Index(got.Command, "-c")+2:], tt.stop) {
			t.Errorf("%s: %+v", name, got)
		}
		if err := checkInstructions(p.HostInstructions); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func checkInstructions(given protocol.HostInstructions) error {
	raw, err := json.Marshal(given)
	if err == nil {
		_, err = protocol.ParseHostInstructions(raw)
	}
	return err
}
