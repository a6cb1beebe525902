// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestAHostIsCleanWhenNothingRuns runs the script that cleans, with scripts of installers and a systemctl that are stand-ins.
func TestAHostIsCleanWhenNothingRuns(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		unit, state string // what systemctl says, before a script has run
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
			command := exec.CommandContext(t.Context(), "/bin/sh", "-c", Clean, "clean", filepath.Join(dir, "none"))
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
