// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCleanFailsWhileAServiceRuns runs the cleaning script with fake uninstall scripts and a fake systemctl.
func TestCleanFailsWhileAServiceRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		unit, state string // the answers of systemctl, before a script has run
		scripts     []string
		ran, failed string
	}{
		"nothing was installed":                      {"", "", nil, "", ""},
		"a script that removes it":                   {"k3s", "active", []string{"remove"}, "remove", ""},
		"two of them":                                {"rke2-server", "active", []string{"remove", "more"}, "remove more", ""},
		"a script at another place":                  {"rke2-server", "active", nil, "", "rke2-server still runs"},
		"a script that leaves it":                    {"rke2-agent", "active", []string{"more"}, "more", "rke2-agent still runs"},
		"a script that fails":                        {"k3s", "active", []string{"fail", "remove"}, "fail", "it failed"},
		"a service that is started again and again":  {"k3s-agent", "activating", nil, "", "k3s-agent still runs"},
		"a service that has failed and does not run": {"k3s-agent", "failed", nil, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write := func(file, text string) {
				if err := os.WriteFile(filepath.Join(dir, file), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			ran := filepath.Join(dir, "ran")
			write("systemctl", `test "$1" = is-active || exit 1; test "$2" = "`+tt.unit+`" && test ! -e `+dir+`/gone && echo "`+tt.state+`" || { echo inactive; exit 3; }`)
			for script, does := range map[string]string{"remove": "touch " + dir + "/gone", "more": "", "fail": "echo it failed >&2; exit 7"} {
				write(script, `printf '%s ' `+script+` >> `+ran+"\n"+does)
			}
			command := exec.CommandContext(t.Context(), "/bin/sh", "-c", clean, "clean", filepath.Join(dir, "none"))
			for _, script := range tt.scripts {
				command.Args = append(command.Args, filepath.Join(dir, script))
			}
			command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
			out, err := command.CombinedOutput()
			if (err != nil) != (tt.failed != "") || !strings.Contains(string(out), tt.failed) {
				t.Errorf("%v: %s, want %q", err, out, tt.failed)
			}
			if got, _ := os.ReadFile(ran); strings.TrimSpace(string(got)) != tt.ran {
				t.Errorf("ran %q, want %q", got, tt.ran)
			}
		})
	}
}

// TestCleanRemovesLeftoversOfUninstallScripts runs the cleaning script with a data directory of the user's choice.
func TestCleanRemovesLeftoversOfUninstallScripts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		variable, script, mountpoint string
		failed                       bool
		left                         string
	}{
		"k3s's script of before July 2024":    {"K3S_DATA_DIR", "exit 0", "exit 1", false, "own"},
		"RKE2's, and the folder is a mount":   {"RKE2_DATA_DIR", "exit 1", "exit 0", false, "own"},
		"RKE2's, which fails otherwise":       {"RKE2_DATA_DIR", "exit 1", "exit 1", true, "agent own server"},
		"k3s's, which fails on a mount":       {"K3S_DATA_DIR", "exit 1", "exit 0", true, "agent own server"},
		"no script, so nothing was installed": {"K3S_DATA_DIR", "", "exit 1", false, "agent own server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, folder := range []string{"bin", "data/server/db", "data/agent/images", "data/own"} {
				if err := os.MkdirAll(filepath.Join(dir, folder), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			for program, does := range map[string]string{"systemctl": "exit 3", "mountpoint": tt.mountpoint, "uninstall": tt.script} {
				if does == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, "bin", program), []byte("#!/bin/sh\n"+does), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			command := exec.CommandContext(t.Context(), "/bin/sh", "-c", clean, "clean", filepath.Join(dir, "bin/uninstall"))
			command.Env = append(os.Environ(), "PATH="+dir+"/bin:"+os.Getenv("PATH"), tt.variable+"="+filepath.Join(dir, "data"))
			if out, err := command.CombinedOutput(); (err != nil) != tt.failed {
				t.Errorf("%v: %s, want failed %t", err, out, tt.failed)
			}
			left, err := os.ReadDir(filepath.Join(dir, "data"))
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, entry := range left {
				names = append(names, entry.Name())
			}
			if got := strings.Join(names, " "); got != tt.left {
				t.Errorf("the folder still has %q, want %q", got, tt.left)
			}
		})
	}
}
