// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

// meaning describes the arguments of a command.
type meaning string

const (
	none    meaning = "none"
	known   meaning = "names that the hub, the session or the command knows"
	unknown meaning = "text that only the user knows"
	files   meaning = "files"
	folder  meaning = "a folder"
)

// meanings has the arguments of each command that has no subcommands. The command "agents" lists by itself.
func meanings() map[string]meaning {
	return map[string]meaning{
		"why": known, "who-can": known, "grant": known, "revoke": known,
		"project create": unknown, "project add-namespace": known, "project list": none,
		"plan watch": known, "plan check": files, "plan preview": files,
		"plan pause": known, "plan resume": known, "plan retry": known,
		"baseline list": none, "baseline status": known, "baseline history": known, "baseline rollback": known,
		"plan approve": known, "plan override": known, "baseline approve": known,
		"baseline pause": known, "baseline resume": known,
		"import": unknown, "agents": none, "agents pause": known, "agents resume": known, "status": none,
		"logs agent": none, "uninstall": none,
		"host list": none, "host join": known, "host clean": known, "host release": known, "host logs": known,
		"adopt": known, "restored": known, "revoked": files,
		"user create": unknown, "user password": known,
		"login": known, "logout": none, "whoami": none, "get-token": none, "credential": none, "clusters": none,
		"use": known, "kubeconfig": known, "exec": known, "version": none,
		"token create": none, "token list": none, "token revoke": known, "session list": none, "session revoke": known,
		"rancher export": folder,
	}
}

// eachCommand calls do for each command of the plugin, with its name.
func eachCommand(do func(name string, c *cobra.Command)) {
	var walk func(prefix string, all []*cobra.Command)
	walk = func(prefix string, all []*cobra.Command) {
		for _, c := range all {
			name := strings.TrimSpace(prefix + " " + c.Name())
			do(name, c)
			walk(name, c.Commands())
		}
	}
	walk("", commands(&cli.Options{Loading: &clientcmd.ClientConfigLoadingRules{}}))
}

// inEmptyHome runs a command line without a kubeconfig and sessions.
func inEmptyHome(t *testing.T, args ...string) (code int, text string) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	var out strings.Builder
	code = run(t.Context(), args, &out, &out)
	return code, out.String()
}

// offersFiles reports whether a shell offers files after a command line.
func offersFiles(t *testing.T, line string) bool {
	t.Helper()
	code, text := inEmptyHome(t, append([]string{cobra.ShellCompRequestCmd}, append(strings.Fields(line), "")...)...)
	if code != cli.ExitAllowed {
		t.Fatalf("completion of %q ends with %d: %s", line, code, text)
	}
	return slices.Contains(strings.Split(text, "\n"), ":0")
}

func TestEveryCommandCompletesItsArguments(t *testing.T) {
	all := meanings()
	eachCommand(func(name string, c *cobra.Command) {
		if c.HasSubCommands() && name != "agents" {
			return
		}
		what, listed := all[name]
		if delete(all, name); !listed {
			t.Errorf("the arguments of %s are not known: add them to this test", name)
			return
		}
		if completes := c.ValidArgsFunction != nil; completes != slices.Contains([]meaning{known, files, folder}, what) {
			t.Errorf("%s: the command completes its arguments is %v, and they are %s", name, completes, what)
		}
		if got := offersFiles(t, name); got != (what == files) {
			t.Errorf("%s: a shell offers files is %v, and the arguments are %s", name, got, what)
		}
	})
	if len(all) > 0 {
		t.Errorf("there are no such commands: %v", all)
	}
}

// fileFlags are the flags whose value is a file.
var fileFlags = []string{"ca", "bundle", "principals", "kubeconfig", "certificate-authority", "client-certificate",
	"client-key"}

func TestShellsOfferFilesOnlyWhereAFileIsMeant(t *testing.T) {
	check := func(name string, f *pflag.Flag) {
		if f.Value.Type() == "bool" || f.NoOptDefVal != "" {
			return
		}
		want := slices.Contains(fileFlags, f.Name) || name == "kubeconfig" && f.Name == "output"
		if got := offersFiles(t, strings.TrimSpace(name+" --"+f.Name)); got != want {
			t.Errorf("%s --%s: a shell offers files is %v, want %v", name, f.Name, got, want)
		}
	}
	eachCommand(func(name string, c *cobra.Command) {
		c.LocalFlags().VisitAll(func(f *pflag.Flag) { check(name, f) })
	})
	for _, file := range []string{"kubeconfig", "certificate-authority", "client-certificate", "client-key"} {
		check("version", &pflag.Flag{Name: file, Value: stringValue{}})
	}
	for _, other := range []string{"token", "as", "request-timeout", "user"} {
		check("version", &pflag.Flag{Name: other, Value: stringValue{}})
	}
}

// stringValue is a flag with a text.
type stringValue struct{ pflag.Value }

func (stringValue) Type() string { return "string" }

func TestEveryWrongCommandLineSaysWhatIsMeant(t *testing.T) {
	raw := []string{"arg(s)", "strconv", "time:", "flags in the group", "required flag"}
	eachCommand(func(name string, c *cobra.Command) {
		lines := [][]string{{}, {"1", "2", "3", "4", "5", "6"}, {"--nosuchflag"}}
		if c.HasSubCommands() {
			lines = append(lines, []string{c.Commands()[0].Name() + "x"})
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains([]string{"string", "stringArray", "stringSlice"}, f.Value.Type()) {
				lines = append(lines, []string{"--" + f.Name + "=\x1bx"})
			}
		})
		for _, line := range lines {
			code, text := inEmptyHome(t, append(strings.Fields(name), line...)...)
			if code != cli.ExitError && (len(line) > 0 || code != cli.ExitAllowed) || strings.Contains(text, "\x1b") {
				t.Errorf("%s %q: exit code %d: %q", name, line, code, text)
			}
			for _, word := range raw {
				if strings.Contains(text, word) {
					t.Errorf("%s %q says %s", name, line, text)
				}
			}
			if strings.Contains(text, "unknown command") && !c.HasSubCommands() {
				t.Errorf("%s %q says %s, want that it has no arguments", name, line, text)
			}
			if len(line) == 1 && strings.HasSuffix(line[0], "x") && line[0][0] != '-' &&
				!strings.Contains(text, `did you mean "`+strings.TrimSuffix(line[0], "x")+`"`) {
				t.Errorf("%s %q says %s, want a suggestion", name, line, text)
			}
		}
	})
}

func TestWrongFlagsSayWhatTheyTake(t *testing.T) {
	for line, want := range map[string]string{
		"plan preview x --nodes many": `error: --nodes is "many": use a whole number`,
		"plan preview x --upgrade 4":  `error: --upgrade is "4": use a duration such as 90s, 10m or 8h`,
		"import x --wait=perhaps":     `error: --wait is "perhaps": use true or false`,
		"logs agent --tail all":       `error: --tail is "all": use a whole number`,
		"logs prod": `error: unknown command "prod" for "kubectl drover logs": ` +
			`did you mean "kubectl drover logs agent -c CLUSTER`,
		"logs agent prod": `error: kubectl drover logs agent has no arguments but got "prod": ` +
			`use "kubectl drover logs agent -c prod"`,
		"logs agent":                        `for example "kubectl drover logs agent -c CLUSTER"`,
		"grant a b":                         `error: set --cluster, --selector or --project`,
		"baseline rollback x --to y --undo": `error: --to and --undo cannot be combined`,
		"grant a b --cluster c --project d": `error: --cluster and --project cannot be combined`,
		"version now": `error: kubectl drover version has no arguments but got "now": ` +
			`see "kubectl drover version --help"`,
	} {
		if code, text := inEmptyHome(t, strings.Fields(line)...); code != cli.ExitError || !strings.Contains(text, want) {
			t.Errorf("%s: exit code %d: %s, want %q", line, code, text, want)
		}
	}
}

func TestALoginThatFindsNoHubAdvisesToCheckItsURL(t *testing.T) {
	code, text := inEmptyHome(t, "login", "https://127.0.0.1:1")
	if code != cli.ExitError || !strings.Contains(text, "https://127.0.0.1:1 was not reached: ") ||
		!strings.Contains(text, "check the URL of the hub, the network, and HTTPS_PROXY") ||
		strings.Contains(text, "kubeconfig") {
		t.Errorf("exit code %d: %s, want advice about the URL, and not about a kubeconfig", code, text)
	}
}
