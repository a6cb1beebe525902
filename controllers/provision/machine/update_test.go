// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	infrav1 "github.com/drover-dev/drover/api/infrastructure/v1"
)

// programs are fake programs on a machine that only write to a log. The installer is fetched from a file.
var programs = map[string]string{
	"kubeadm":   `if test "$1" = version; then cat "$LOG.version"; else echo "kubeadm $*" >>"$LOG"; fi`,
	"systemctl": `echo "systemctl $*" >>"$LOG"`,
	"sleep":     `:`,
	"curl":      `while test "$1" != -o; do shift; done; cp "$LOG.fetched" "$2"`,
}

const installs = `echo "install $KUBERNETES_VERSION" >>"$LOG"; echo "$KUBERNETES_VERSION" >"$LOG.version"`

func TestUpdateRunsInstallerThenKubeadmThenKubelet(t *testing.T) {
	t.Parallel()
	sum := sha256.Sum256([]byte(installs))
	updated := "install v1.36.3\nkubeadm upgrade node\nsystemctl daemon-reload\nsystemctl restart kubelet\n"
	for name, tc := range map[string]struct {
		installer infrav1.Installer
		script    string
		ran, says string
	}{
		"by path":                            {infrav1.Installer{Path: "local"}, installs, updated, ""},
		"by URL":                             {infrav1.Installer{URL: "https://example.com/install.sh"}, installs, updated, ""},
		"by URL with its sum":                {infrav1.Installer{URL: "https://example.com/install.sh", SHA256: hex.EncodeToString(sum[:])}, installs, updated, ""},
		"another script than that of a sum":  {infrav1.Installer{URL: "https://example.com/install.sh", SHA256: strings.Repeat("0", 64)}, installs, "", "attempt 5 of 5"},
		"an installer that fails once":       {infrav1.Installer{Path: "local"}, `if test ! -e "$LOG.once"; then touch "$LOG.once"; exit 1; fi; ` + installs, updated, "attempt 1 of 5"},
		"one that fails always":              {infrav1.Installer{Path: "local"}, `echo "no space left" >&2; exit 3`, "", "no space left"},
		"one that installs another version":  {infrav1.Installer{Path: "local"}, `echo v1.36.2 >"$LOG.version"`, "", "kubeadm v1.36.2 on the machine, want v1.36.3"},
		"one that succeeds and does nothing": {infrav1.Installer{Path: "local"}, `:`, "", "want v1.36.3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			log := filepath.Join(dir, "log")
			for program, text := range programs {
				write(t, filepath.Join(dir, program), "#!/bin/sh\n"+text+"\n")
			}
			write(t, log+".version", "v1.36.1\n")
			write(t, log+".fetched", tc.script)
			if tc.installer.Path != "" {
				tc.installer.Path = filepath.Join(dir, "install.sh")
				write(t, tc.installer.Path, tc.script)
			}
			of := &infrav1.DroverMachine{}
			of.Spec.InPlaceUpdate = &infrav1.InPlaceUpdate{Installer: tc.installer}
			instruction, err := update(taskInput{machine: of}, infrav1.MachineTask{Update: &infrav1.UpdateTask{Version: "v1.36.3"}})
			if err != nil {
				t.Fatal(err)
			}
			command := exec.CommandContext(t.Context(), instruction.Command[0], instruction.Command[1:]...)
			command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "LOG=" + log, "TMPDIR=" + dir}
			out, err := command.CombinedOutput()
			ran, _ := os.ReadFile(log)
			if string(ran) != tc.ran || (err == nil) != (tc.ran != "") || !strings.Contains(string(out), tc.says) {
				t.Errorf("%v: it ran %q and said %q, want %q and %q", err, ran, out, tc.ran, tc.says)
			}
			if left, _ := filepath.Glob(filepath.Join(dir, "tmp.*")); len(left) > 0 {
				t.Errorf("the script that was fetched is left at %v", left)
			}
		})
	}
	if _, err := update(taskInput{machine: &infrav1.DroverMachine{}}, infrav1.MachineTask{}); err == nil {
		t.Error("a machine that has no installer any more is updated")
	}
}

func TestUpdatePassesPatchesAndIgnoredErrorsToKubeadm(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	for program, text := range programs {
		write(t, filepath.Join(dir, program), "#!/bin/sh\n"+text+"\n")
	}
	write(t, filepath.Join(dir, "install.sh"), installs)
	of := &infrav1.DroverMachine{}
	of.Spec.InPlaceUpdate = &infrav1.InPlaceUpdate{Installer: infrav1.Installer{Path: filepath.Join(dir, "install.sh")}}
	instruction, err := update(taskInput{machine: of}, infrav1.MachineTask{Update: &infrav1.UpdateTask{
		Version: "v1.36.3", Patches: "/etc/kubeadm/my patches", IgnorePreflightErrors: []string{"SystemVerification", "$(reboot)"}}})
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), instruction.Command[0], instruction.Command[1:]...)
	command.Env = []string{"PATH=" + dir + ":/usr/bin:/bin", "LOG=" + log, "TMPDIR=" + dir}
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ran, _ := os.ReadFile(log)
	if want := "kubeadm upgrade node --patches=/etc/kubeadm/my patches --ignore-preflight-errors=SystemVerification,$(reboot)\n"; !strings.Contains(string(ran), want) {
		t.Errorf("it ran %q, want %q", ran, want)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
}
