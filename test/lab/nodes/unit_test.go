// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// inFolder writes files into a new folder.
func inFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestAUnitStartsAsItsFilesSay uses the kubelet's unit and drop-in from the packages of kubernetes.io.
func TestAUnitStartsAsItsFilesSay(t *testing.T) {
	root := inFolder(t, map[string]string{
		"usr/lib/systemd/system/kubelet.service": "[Unit]\nDescription=kubelet\n[Service]\nExecStart=/usr/bin/kubelet\nRestart=always\nRestartSec=10\n",
		"usr/lib/systemd/system/kubelet.service.d/10-kubeadm.conf": `# Note: This dropin only works with kubeadm
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/a.conf --kubeconfig=/b.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
EnvironmentFile=-/etc/sysconfig/kubelet
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS
`,
		"var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"--node-ip=10.0.0.1 --provider-id=drover://a/b\"\n",
	})
	u, err := readUnit(root, "kubelet.service")
	if err != nil {
		t.Fatal(err)
	}
	args, env, err := u.start(root)
	want := []string{"/usr/bin/kubelet", "--bootstrap-kubeconfig=/a.conf", "--kubeconfig=/b.conf", "--config=/var/lib/kubelet/config.yaml", "--node-ip=10.0.0.1", "--provider-id=drover://a/b"}
	if err != nil || !slices.Equal(args, want) {
		t.Errorf("it runs %q, %v, want %q", args, err, want)
	}
	if !slices.Contains(env, "KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml") || !strings.HasPrefix(env[0], "PATH=") {
		t.Errorf("its environment is %q", env)
	}
	if !u.restarts || !u.always || u.pause != 10*time.Second {
		t.Errorf("it is %+v, want it to be started again after 10 s", u)
	}
}

func TestAUnitOfTheHostWinsOverThatOfAPackage(t *testing.T) {
	root := inFolder(t, map[string]string{
		"etc/systemd/system/a.service":     "[Service]\nEnvironment=X=b\nExecStart=/bin/sh -c \"echo ${X} $Y\"\nRestart=on-failure\nRestartSec=5\nKillMode=process\n",
		"usr/lib/systemd/system/a.service": "[Service]\nExecStart=/bin/false\n",
	})
	u, err := readUnit(root, "a.service")
	if err != nil {
		t.Fatal(err)
	}
	if args, _, err := u.start(root); err != nil || !slices.Equal(args, []string{"/bin/sh", "-c", "echo b "}) {
		t.Errorf("it runs %q, %v", args, err)
	}
	if u.always || !u.restarts || u.pause != 5*time.Second {
		t.Errorf("it is %+v, want it to be started again on failure after 5 s", u)
	}
}

func TestMissingUnitIsReportedAsBySystemctl(t *testing.T) {
	if _, err := readUnit(t.TempDir(), "a.service"); err == nil || !strings.Contains(err.Error(), "could not be found") {
		t.Errorf("got %v", err)
	}
}

func TestAUnitWithoutACommandDoesNotStart(t *testing.T) {
	root := inFolder(t, map[string]string{"etc/systemd/system/a.service": "[Service]\nExecStart=/bin/true\nExecStart=\n", "etc/systemd/system/b.service": "[Service]\nEnvironmentFile=/missing\nExecStart=/bin/true\n"})
	for _, name := range []string{"a.service", "b.service"} {
		u, err := readUnit(root, name)
		if err != nil {
			t.Fatal(err)
		}
		if args, _, err := u.start(root); err == nil {
			t.Errorf("%s runs %q, want an error", name, args)
		}
	}
}
