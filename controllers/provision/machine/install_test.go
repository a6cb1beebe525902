// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

// TestAgentIsInstalledWithTheControlPlanesKubeconfig runs the script with a directory in place of /etc, and with a fake
// kubectl that fails the first time.
func TestAgentIsInstalledWithTheControlPlanesKubeconfig(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ config, said string }{
		"kubeadm":                     {config: "kubernetes/admin.conf"},
		"RKE2":                        {config: "rancher/rke2/rke2.yaml"},
		"k3s":                         {config: "rancher/k3s/k3s.yaml"},
		"a bootstrap of another kind": {said: "no kubeconfig"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(name, text string) {
				path := filepath.Join(dir, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			write("sleep", "#!/bin/sh\n")
			write("kubectl", "#!/bin/sh\necho \"$@\" >> "+dir+"/ran; test \"$(wc -l < "+dir+"/ran)\" = 2\n")
			if tt.config != "" {
				write(tt.config, "")
			}
			script := exec.CommandContext(t.Context(), "/bin/sh", "-c", strings.ReplaceAll(installScript(), "/etc/", dir+"/"), "agent.yaml")
			script.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := script.CombinedOutput()
			ran, _ := os.ReadFile(filepath.Join(dir, "ran"))
			if failed := tt.said != ""; (err != nil) != failed || !strings.Contains(string(out), tt.said) {
				t.Errorf("%v: %s, want %q", err, out, tt.said)
			}
			want := "--kubeconfig " + filepath.Join(dir, tt.config) + " apply --server-side --force-conflicts -f agent.yaml\n"
			if tt.config == "" {
				want = ""
			}
			if string(ran) != want+want {
				t.Errorf("kubectl ran with\n%s, want twice\n%s", ran, want)
			}
		})
	}
}

// TestFailedBootstrapDoesNotPassWithAFormerSentinel runs the script and the command of a bootstrap, with another
// directory in place of /run.
func TestFailedBootstrapDoesNotPassWithAFormerSentinel(t *testing.T) {
	t.Parallel()
	const fails, succeeds = "false # drover://team-a/rack1", "touch " + sentinel + " # drover://team-a/rack1"
	file := func(path string) error { return os.WriteFile(path, nil, 0o600) }
	folder := func(path string) error { return os.Mkdir(path, 0o700) } // as a container's mount leaves it
	for name, tt := range map[string]struct {
		runs   string
		former func(path string) error
		failed bool
	}{
		"a join that fails":                    {fails, file, true},
		"a join that succeeds":                 {succeeds, file, false},
		"a join that fails beside a folder":    {fails, folder, true},
		"a join that succeeds beside a folder": {succeeds, folder, false},
	} {
		dir := t.TempDir()
		host := v1.Host{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "rack1"}}
		given, err := makeInstructions(bootstrapInput{uid: "u", host: &host, data: []byte("#cloud-config\nruncmd: [\"" + tt.runs + "\"]\n")})
		if err != nil {
			t.Fatal(err)
		}
		here := func(text string) string { return strings.ReplaceAll(text, "/run/cluster-api", dir) }
		script := filepath.Join(dir, "bootstrap.sh")
		former := filepath.Join(dir, filepath.Base(sentinel))
		if err := errors.Join(os.WriteFile(script, []byte(here(string(given.Files[0].Content))), 0o700), tt.former(former)); err != nil {
			t.Fatal(err)
		}
		command := given.Instructions[0].Command
		out, err := exec.CommandContext(t.Context(), command[0], command[1], here(command[2]), script).CombinedOutput()
		if (err != nil) != tt.failed || tt.failed && !strings.Contains(string(out), "the bootstrap did not write") {
			t.Errorf("%s, where a former one has succeeded: %v %s, want failed %t", name, err, out, tt.failed)
		}
	}
}
