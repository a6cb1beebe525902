// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nodes

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	mountsV1 = `31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/agent,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
50 23 0:40 / /home/a/cgroup rw - cgroup cgroup rw,pids
`
	mountsV2 = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
)

func TestHierarchies(t *testing.T) {
	for name, c := range map[string]struct {
		mountinfo string
		want      []hierarchy
	}{
		"v1, and v2 for the init system": {mountsV1, []hierarchy{
			{"/sys/fs/cgroup/cpu,cpuacct", "/cpu,cpuacct", "cpu,cpuacct"}, {"/sys/fs/cgroup/memory", "/memory", "memory"},
			{"/sys/fs/cgroup/systemd", "/systemd", "name=systemd"},
		}},
		"v2":   {mountsV2, []hierarchy{{"/sys/fs/cgroup", "", ""}}},
		"none": {"23 1 0:1 / / rw - ext4 /dev/vda rw\nbroken\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			if got := hierarchies(c.mountinfo); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestMountsBelow(t *testing.T) {
	mountinfo := "1 0 0:1 / / rw - ext4 a rw\n2 1 0:1 / /x/lab rw - ext4 a rw\n3 1 0:1 / /x/lab/a\\040b rw - ext4 a rw\n4 1 0:1 / /x/laboratory rw - ext4 a rw\n"
	if got := mountsBelow(mountinfo, "/x/lab"); !slices.Equal(got, []string{"/x/lab", "/x/lab/a b"}) {
		t.Errorf("got %q", got)
	}
}

func TestACgroupIsOfOneFolder(t *testing.T) {
	if a, b := cgroupOf("/a/lab"), cgroupOf("/b/lab"); a == b || !strings.HasPrefix(a, "drover-lab-lab-") {
		t.Errorf("labs of one name in two folders have the cgroups %s and %s", a, b)
	}
}

func TestMachine(t *testing.T) {
	good := func() machine {
		return machine{root: true, cni: "/usr/lib/cni", filesystems: "nodev\tproc\nnodev\toverlay\n", hierarchies: hierarchies(mountsV2), controllers: requiredControllers()}
	}
	for name, c := range map[string]struct {
		change func(*machine)
		want   string
	}{
		"all is there":            {func(*machine) {}, ""},
		"without root":            {func(m *machine) { m.root = false }, "sudo"},
		"without programs":        {func(m *machine) { m.missing = []string{"runc", "nft"} }, "(runc, nft): apt-get install"},
		"without CNI plugins":     {func(m *machine) { m.cni = "" }, "containernetworking-plugins"},
		"without namespaces":      {func(m *machine) { m.namespaces = errors.New("not permitted") }, "--privileged"},
		"without overlayfs":       {func(m *machine) { m.filesystems = "nodev\tproc\n" }, "modprobe overlay"},
		"without cgroups":         {func(m *machine) { m.hierarchies = nil }, "no cgroups"},
		"v2 without a controller": {func(m *machine) { m.controllers = []string{"cpu", "cpuset", "pids"} }, "(memory)"},
		"v1 without a controller": {func(m *machine) { m.hierarchies = hierarchies(mountsV1); m.controllers = nil }, "(cpuset, pids)"},
	} {
		t.Run(name, func(t *testing.T) {
			m := good()
			c.change(&m)
			err := m.check()
			if c.want == "" && err != nil {
				t.Errorf("got %v, want no error", err)
			}
			if c.want != "" && (!errors.Is(err, ErrMachine) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("got %v, want ErrMachine with %q", err, c.want)
			}
		})
	}
}

func TestAnImageOfTheSameProgramIsTheSame(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("program"), 0o700); err != nil {
		t.Fatal(err)
	}
	var written []string
	for _, name := range []string{"a.tar", "b.tar"} {
		path := filepath.Join(dir, name)
		if err := WriteImage(path, Image{Name: "example.com/a:1", Programs: []string{program}, User: "65532"}); err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		written = append(written, string(content))
	}
	if written[0] != written[1] {
		t.Error("two tarballs of the same program differ")
	}
	for _, want := range []string{`"RepoTags":["example.com/a:1"]`, `"Entrypoint":["/program"]`, `"User":"65532"`} {
		if !strings.Contains(written[0], want) {
			t.Errorf("the tarball lacks %s", want)
		}
	}
}

func TestALabIsChangedByOneProgramAtATime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lab.lock")
	held, err := tryLock(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tryLock(path); err == nil {
		t.Fatal("it was locked twice")
	}
	if err := errors.Join(os.Remove(path), held.Close()); err != nil { // as Down does
		t.Fatal(err)
	}
	again, err := tryLock(path)
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestCRIRunsOnlyIfItsPluginIsOK(t *testing.T) {
	const header = "TYPE                            ID                       PLATFORMS      STATUS    \nio.containerd.runtime.v2        task                     linux/amd64    ok        \n"
	for plugins, want := range map[string]bool{
		header + "io.containerd.grpc.v1           cri                      linux/amd64    ok        \n": true,
		header + "io.containerd.grpc.v1           cri                      linux/amd64    error     \n": false,
		header + "io.containerd.cri.v1            runtime                  linux/amd64    ok        \n": false,
		header: false,
	} {
		if got := criRuns(plugins); got != want {
			t.Errorf("got %t, want %t, of\n%s", got, want, plugins)
		}
	}
}
