// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"os"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	provisionv1 "github.com/drover-dev/drover/api/provision/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/provision/k3s/distribution"
	"github.com/drover-dev/drover/internal/provision/k3s/roster"
)

// hasRun returns the calls of a disk's programs that contain the words.
func (d *disk) hasRun(words string) (lines []string) {
	raw, _ := os.ReadFile(d.dir + "/ran")
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, words) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}

// instruction returns the instruction whose ID has this prefix.
func instruction(t *testing.T, all []protocol.HostInstruction, begins string) protocol.HostInstruction {
	t.Helper()
	i := slices.IndexFunc(all, func(i protocol.HostInstruction) bool { return strings.HasPrefix(i.ID, begins) })
	if i < 0 {
		t.Fatalf("no instruction %s in %+v", begins, all)
	}
	return all[i]
}

func TestUnsavedSnapshotFails(t *testing.T) {
	t.Parallel()
	const saved = `time="…" level=info msg="Snapshot before-1-node-17 saved."`
	const file = `echo data >"$DATA/server/db/snapshots/before-1-node-17"`
	for name, tt := range map[string]struct {
		places     string
		save, list string // the output of the distribution
		failed     string
	}{
		"on the disk":                      {"1", file + "; echo '" + saved + "' >&2", "", ""},
		"on the disk and in the bucket":    {"2", file + "; echo '" + saved + "'; echo '" + saved + "'", "", ""},
		"a disk that is full":              {"1", "echo 'no space left on device'", "", "has no file of it: is the disk full?"},
		"a full disk, and half a file":     {"1", `: >"$DATA/server/db/snapshots/before-1-node-17"; echo '` + saved + `'`, "", "has no file of it"},
		"half a file that is being saved":  {"1", `echo x >"$DATA/server/db/snapshots/before-1-node-17.part"; echo '` + saved + `'`, "", "has no file of it"},
		"a store that refuses the copy":    {"2", file + "; echo '" + saved + "'", "", "it is on the disk alone: does the store take it?"},
		"another snapshot's line":          {"1", file + "; echo 'Snapshot before-12-node-17 saved.'", "", "not saved at 1 places, but at 0"},
		"a command that fails":             {"1", "echo 'no leader'; exit 7", "", "no leader"},
		"a command that gives up too soon": {"1", file + "; echo 'context deadline exceeded'; exit 1", "before-1-node-17 file:///x 1 now", ""},
		"a server that never saves it":     {"2", file + "; echo 'context deadline exceeded'; exit 1", "before-1-node-17 file:///x 1 now", "on the disk alone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			_ = os.Remove(d.dir + "/server/db/snapshots/before-1-node-17")
			d.program("sleep", "")
			d.program("k3s", `case "$2" in save) `+tt.save+` ;; ls) echo Name Location; echo "`+tt.list+`" ;; esac`)
			run := script(snapshot, "k3s", tt.places, "before-1")
			run.Env = map[string]string{"DATA": d.dir}
			out, err := d.run(run)
			if (err != nil) != (tt.failed != "") || !strings.Contains(out, tt.failed) {
				t.Errorf("%v: %s, want %q", err, out, tt.failed)
			}
		})
	}
}

func TestInstallFailsUnlessTheVersionMatchesTheSpec(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ version, dropIn, failed string }{
		"that version":                          {"k3s version v1.35.1+k3s1 (abc)", "", ""},
		"what was there before":                 {"k3s version v1.34.3+k3s1 (abc)", "", "this machine has k3s v1.34.3+k3s1, and spec.version is v1.35.1+k3s1"},
		"another build of it":                   {"k3s version v1.35.1+k3s2 (abc)", "", "this machine has k3s v1.35.1+k3s2"},
		"a program that does not run":           {"", "", "this machine has k3s of no version"},
		"options beside Drover's":               {"k3s version v1.35.1+k3s1 (abc)", "node-label: [a=b]\ntls-san+: x\n# token: x\n", ""},
		"an option that Drover decides":         {"k3s version v1.35.1+k3s1 (abc)", "debug: true\ncluster-init: true\n", "sets cluster-init which Drover decides"},
		"one that is added to":                  {"k3s version v1.35.1+k3s1 (abc)", "server+: https://x\n", "sets server which"},
		"one by its short name":                 {"k3s version v1.35.1+k3s1 (abc)", "\"t\": x\n", "sets t which"},
		"one with its value in it":              {"k3s version v1.35.1+k3s1 (abc)", "token=x:\n", "sets token"},
		"one that only begins as Drover's does": {"k3s version v1.35.1+k3s1 (abc)", "config-x: 1\nserver-y: 2\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.program("k3s", `echo "`+tt.version+`"; echo go version go1.25`)
			if tt.dropIn != "" {
				d.write("config.yaml.d/10-site.yaml", tt.dropIn)
			}
			in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
			p, err := in.Render(memberOf(provisionv1.RoleWorker), "https://10.0.0.2:6443", distribution.Duties{})
			if err != nil {
				t.Fatal(err)
			}
			check := instruction(t, p.Instructions, "check-")
			check.Command[len(check.Command)-1] = d.dir // in place of /etc/rancher/k3s
			out, err := d.run(check)
			if (err != nil) != (tt.failed != "") || !strings.Contains(out, tt.failed) {
				t.Errorf("%v: %s, want %q", err, out, tt.failed)
			}
		})
	}
}

func TestARestoreChecksWhatItInstalls(t *testing.T) {
	t.Parallel()
	in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
	p, err := in.RenderRestore(memberOf(provisionv1.RoleEtcd), &roster.Restoring{Restore: roster.Restore{ID: "r", File: "f"}})
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, i := range p.Instructions {
		kind, _, _ := strings.Cut(i.ID, "-")
		kinds = append(kinds, kind)
	}
	if got := strings.Join(kinds, " "); got != "stop install check restore" {
		t.Errorf("a restore runs %q, want the check between installation and restore", got)
	}
}

func TestAServerLeavesEtcdBeforeItIsCleaned(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		get, nodes, remove string // the output of kubectl
		removed, failed    bool
	}{
		"a member of a cluster that works":       {"echo node/m1", "echo node/m1; echo node/s2", "", true, false},
		"a node that was removed":                {"", "echo node/s2", "", false, false},
		"a cluster that does not answer":         {"exit 1", "exit 1", "exit 1", false, false},
		"the last server":                        {"echo node/m1", "echo node/m1", "exit 1", false, false},
		"a member that cannot be removed":        {"echo node/m1", "echo node/m1; echo node/s2", "exit 1", true, true},
		"a cluster that ends while it is left":   {`test ! -e "$DATA/tried" && echo node/m1`, "echo node/m1; echo node/s2", `touch "$DATA/tried"; exit 1`, true, false},
		"one that answers at the second attempt": {`test -e "$DATA/asked" || { touch "$DATA/asked"; exit 1; }; echo node/m1`, "echo node/m1; echo node/s2", "", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.program("sleep", "")
			d.program("k3s", `case "$*" in *"get node "*) `+tt.get+` ;; *"get nodes "*) `+tt.nodes+` ;; *delete*) `+tt.remove+` ;; esac`)
			in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
			in.Spec.DataDir = d.dir
			p, err := in.Render(memberOf(provisionv1.RoleEtcd, provisionv1.RoleControlPlane), "https://10.0.0.2:6443", distribution.Duties{})
			if err != nil {
				t.Fatal(err)
			}
			out, err := d.run(p.Clean[0])
			if (err != nil) != tt.failed || tt.failed && !strings.Contains(out, "since etcd would count it") {
				t.Errorf("%v: %s, want failed %t", err, out, tt.failed)
			}
			if got := len(d.hasRun("delete node m1")) > 0; got != tt.removed {
				t.Errorf("its node is removed: %t, want %t", got, tt.removed)
			}
		})
	}
}

func TestAllServersButTheRestorerJoinWithoutTheirFormerKeys(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		roles []provisionv1.HostRole
		held  roster.Held
		want  string
	}{
		"the restorer":                  {[]provisionv1.HostRole{"etcd", "control-plane"}, roster.Held{Part: roster.Part{Epoch: "old", Restores: "new"}}, "keep start password"},
		"another server with etcd":      {[]provisionv1.HostRole{"etcd", "control-plane"}, roster.Held{Part: roster.Part{Epoch: "old"}}, "rejoin start password"},
		"one with etcd alone":           {[]provisionv1.HostRole{"etcd"}, roster.Held{Part: roster.Part{Epoch: "old"}}, "rejoin start"},
		"one without etcd":              {[]provisionv1.HostRole{"control-plane"}, roster.Held{Part: roster.Part{Epoch: "old"}}, "rejoin start password"},
		"one that has joined since":     {[]provisionv1.HostRole{"control-plane"}, roster.Held{Part: roster.Part{Epoch: "new"}}, "start"},
		"one that has data to resume":   {[]provisionv1.HostRole{"etcd"}, roster.Held{Part: roster.Part{Epoch: "new", Stopped: "r"}}, "resume start"},
		"one without etcd that resumes": {[]provisionv1.HostRole{"control-plane"}, roster.Held{Part: roster.Part{Epoch: "new", Stopped: "r"}}, "start"},
		"a worker":                      {[]provisionv1.HostRole{"worker"}, roster.Held{Part: roster.Part{Epoch: "old"}}, "start"},
	} {
		in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
		in.Stored.Epoch, in.Stored.Stops = "new", "new"
		host := memberOf(tt.roles...)
		host.Held = &tt.held
		p, err := in.Render(host, "https://10.0.0.2:6443", distribution.Duties{})
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		for _, i := range p.Instructions[2:] {
			kind, _, _ := strings.Cut(i.ID, "-")
			kinds = append(kinds, kind)
		}
		if got := strings.Join(kinds, " "); got != tt.want {
			t.Errorf("%s runs %q after its installation, want %q", name, got, tt.want)
		}
	}
}

func TestFailedKeyRotationIsReportedInTime(t *testing.T) {
	t.Parallel()
	const status = `status) if test -e "$DATA/rotated"; then echo "Current Rotation Stage: reencrypt_$(cat "$DATA/stage")"; echo " * AES-CBC new"; else echo " * AES-CBC old"; fi ;;`
	for name, tt := range map[string]struct {
		rotate string
		rounds string // the rounds of waiting after which all Secrets are encrypted, or empty for never
		failed string
	}{
		"it succeeds":                            {`touch "$DATA/rotated"`, "0", ""},
		"the command gives up, and it goes on":   {`touch "$DATA/rotated"; exit 1`, "100", ""},
		"the command fails, and the stage stays": {`touch "$DATA/rotated"; exit 1`, "", "the stage stays"},
		"the key stays":                          {`exit 3`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDisk(t)
			d.write("stage", "active")
			d.write("left", tt.rounds)
			d.write("bin/sleep", `#!/bin/sh
left=$(cat "$DATA/left"); test -n "$left" || exit 0
if test "$left" -le 0; then echo finished >"$DATA/stage"; else echo $((left - 1)) >"$DATA/left"; fi`)
			if err := os.Chmod(d.dir+"/bin/sleep", 0o700); err != nil {
				t.Fatal(err)
			}
			d.program("k3s", `case "$2" in `+status+` rotate-keys) `+tt.rotate+` ;; get) echo secret/a; echo secret/b ;; esac`)
			run := script(rotateKeys(K3s), "k3s")
			run.Env = map[string]string{"DATA": d.dir}
			out, err := d.run(run)
			if failed := tt.failed != "" || tt.rotate == "exit 3"; (err != nil) != failed || !strings.Contains(out, tt.failed) {
				t.Errorf("%v: %s, want failed %t: %q", err, out, failed, tt.failed)
			}
			if n := len(d.hasRun("secrets-encrypt status")); n > 300 {
				t.Errorf("it has asked %d times, every five seconds: want it to end in some minutes", n)
			}
		})
	}
}

func TestTheBucketKeepsAsManySnapshotsAsAServer(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		version string
		config  map[string]any
		want    any
	}{
		"a version that counts both":         {"v1.34.3+k3s1", nil, float64(7)},
		"a patch that does":                  {"v1.33.4+k3s1", nil, float64(7)},
		"one before it, which knows no such": {"v1.33.3+k3s1", nil, nil},
		"a minor version before":             {"v1.30.14+k3s1", nil, nil},
		"a later one":                        {"v1.40.0+k3s1", nil, float64(7)},
		"a count of the user's":              {"v1.34.3+k3s1", map[string]any{"etcd-s3-retention": 30}, float64(30)},
	} {
		in := inputOf(provisionv1.DistributionK3s, tt.version, provisionv1.Installer{})
		in.Spec.Etcd = provisionv1.Etcd{Retention: 7, S3: &provisionv1.EtcdS3{Bucket: "b"}}
		in.Spec.ServerConfig = tt.config
		raw, err := rancherOf(in).render(in.Input, memberOf(provisionv1.RoleEtcd), "https://10.0.0.2:6443")
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(raw, &got); err != nil || got["etcd-s3-retention"] != tt.want {
			t.Errorf("%s: etcd-s3-retention is %v (%v), want %v", name, got["etcd-s3-retention"], err, tt.want)
		}
	}
}

func TestANodeOfADualStackClusterHasAnAddressOfEachFamily(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server map[string]any
		other  string
		want   string
	}{
		"one family":                 {map[string]any{"cluster-cidr": "10.42.0.0/16"}, "fd00::1", "10.1.0.1"},
		"none said":                  {nil, "fd00::1", "10.1.0.1"},
		"both, with a comma":         {map[string]any{"cluster-cidr": "10.42.0.0/16,fd00:42::/56"}, "fd00::1", "[10.1.0.1 fd00::1]"},
		"both, as a list":            {map[string]any{"cluster-cidr": []any{"10.42.0.0/16", "fd00:42::/56"}}, "fd00::1", "[10.1.0.1 fd00::1]"},
		"both, and a host has IPv4":  {map[string]any{"cluster-cidr": "10.42.0.0/16,fd00:42::/56"}, "", "10.1.0.1"},
		"what is no range, is k3s's": {map[string]any{"cluster-cidr": "x,fd00:42::/56"}, "fd00::1", "10.1.0.1"},
	} {
		for _, role := range []provisionv1.HostRole{provisionv1.RoleControlPlane, provisionv1.RoleWorker} {
			in := inputOf(provisionv1.DistributionK3s, "v1.35.1+k3s1", provisionv1.Installer{})
			in.Spec.ServerConfig = tt.server
			host := memberOf(role)
			host.NodeIPs = slices.DeleteFunc([]string{"10.1.0.1", tt.other}, func(ip string) bool { return ip == "" })
			raw, err := rancherOf(in).render(in.Input, host, "https://10.0.0.2:6443")
			if err != nil {
				t.Fatal(err)
			}
			var got map[string]any
			if err := yaml.Unmarshal(raw, &got); err != nil {
				t.Fatal(err)
			}
			if text := strings.Trim(strings.ReplaceAll(strings.Join(append(texts(got["node-ip"]), ""), " "), "  ", " "), " "); text != strings.Trim(tt.want, "[]") {
				t.Errorf("%s, %s: node-ip is %v, want %s", name, role, got["node-ip"], tt.want)
			}
		}
	}
}

func TestReservedOptionsAreRefusedInEverySpelling(t *testing.T) {
	t.Parallel()
	for config, refused := range map[string]string{
		`{"token":"hush"}`:                      "spec.config.token ",
		`{"token+":"hush"}`:                     "spec.config.token+ ",
		`{"t":"hush"}`:                          "spec.config.t ",
		`{"s":"https://x"}`:                     "spec.config.s ",
		`{"d":"/x"}`:                            "spec.config.d ",
		`{"token=hush":""}`:                     "spec.config.token",
		`{"t=hush":""}`:                         "spec.config.t",
		`{"data_dir":"/x"}`:                     "spec.config.data_dir ",
		`{"--data-dir":"/x"}`:                   "spec.config.--data-dir ",
		`{"cluster-secret":"hush"}`:             "spec.config.cluster-secret ",
		`{"supervisor-port":9345}`:              "spec.config.supervisor-port ",
		`{"apiserver-port":6444}`:               "spec.config.apiserver-port ",
		`{"apiserver-bind-address":"::1"}`:      "spec.config.apiserver-bind-address ",
		`{"kubelet-arg":["healthz-port=0"]}`:    "argument healthz-port:",
		`{"kubelet-arg":"healthz-port=0"}`:      "argument healthz-port:",
		`{"kubelet-arg+":["--healthz_port=0"]}`: "argument healthz-port:",
		`{"kubelet-arg":["max-pods=9","--healthz-bind-address=0.0.0.0"]}`:       "argument healthz-bind-address:",
		`{"kubelet-arg=healthz-port=0":""}`:                                     "argument healthz-port:",
		`{"kubelet_arg":["healthz-port=0"]}`:                                    "argument healthz-port:",
		`{"kubelet-arg":["hostname-override=x"]}`:                               "argument hostname-override:",
		`{"kubelet-arg":["config=/etc/kubelet.yaml"]}`:                          "argument config:",
		`{"kubelet-arg":["--config_dir=/etc/kubelet.d"]}`:                       "argument config-dir:",
		`{"etcd-arg":["listen-metrics-urls=http://0.0.0.0:1"]}`:                 "argument listen-metrics-urls:",
		`{"kube-apiserver-arg":["secure-port+=1"]}`:                             "argument secure-port:",
		`{"kubelet-arg":["max-pods=200"],"etcd-arg":["quota-backend-bytes=1"]}`: "",
		`{"kube-apiserver-arg":["healthz-port=0"]}`:                             "", // an argument that it does not have
		`{"etcd-s3-insecure":true,"etcd-s3-retention":9,"tls-san":["x"],"n":1}`: "",
	} {
		_, err := K3s.CheckConfig("spec.config", []byte(config))
		if (err != nil) != (refused != "") || err != nil && !strings.Contains(err.Error(), refused) {
			t.Errorf("%s: %v, want %q", config, err, refused)
		}
		if err != nil && strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error has a value: %v", config, err)
		}
	}
}

func TestBucketOptionsMatchTheStoresNeeds(t *testing.T) {
	t.Parallel()
	for lookup, want := range map[provisionv1.BucketLookup]any{"": nil, provisionv1.BucketLookupDNS: "dns", provisionv1.BucketLookupPath: "path"} {
		in := inputOf(provisionv1.DistributionK3s, "v1.34.3+k3s1", provisionv1.Installer{})
		in.Spec.Etcd.S3 = &provisionv1.EtcdS3{Bucket: "b", BucketLookup: lookup}
		raw, err := rancherOf(in).render(in.Input, memberOf(provisionv1.RoleEtcd), "https://10.0.0.2:6443")
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]any
		if err := yaml.Unmarshal(raw, &got); err != nil || got["etcd-s3-bucket-lookup-type"] != want {
			t.Errorf("bucketLookup %q gives %v (%v), want %v", lookup, got["etcd-s3-bucket-lookup-type"], err, want)
		}
	}
}
