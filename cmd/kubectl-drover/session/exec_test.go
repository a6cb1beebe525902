// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/cmd/kubectl-drover/session/login"
	"github.com/drover-dev/drover/test/testkit"
)

// run runs a command line of the commands of this package.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	commands := func(o *cli.Options) []*cobra.Command { return []*cobra.Command{NewExec(o), NewCredential(o)} }
	return cli.Run(ctx, "test", commands, args, out, complaints)
}

func readyClusters(n int) reachable {
	var list reachable
	for i := range n {
		list.Items = append(list.Items, reachableCluster{Namespace: "team", Name: fmt.Sprintf("m%d", i), Ready: "True"})
	}
	return list
}

// text is a buffer that is safe for concurrent use.
type text struct {
	mu sync.Mutex
	strings.Builder
}

func (x *text) Write(p []byte) (int, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Builder.Write(p)
}

func (x *text) String() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.Builder.String()
}

// execute runs a shell command for Clusters.
func execute(ctx context.Context, f fanout, output string, list reachable, script string) (out, complaints string, err error) {
	c, o := &cobra.Command{}, &options{Options: &cli.Options{Output: output}}
	var printed, complained text
	c.SetContext(ctx)
	c.SetOut(&printed)
	c.SetErr(&complained)
	session := &login.Session{Issuer: "https://hub.example.com", CA: []byte("ca"), Token: "secret-token", Refresh: "secret-refresh"}
	if f.parallel == 0 {
		f.parallel = 8
	}
	err = o.fanOut(c, f, session, list, []string{"sh", "-c", script})
	return printed.String(), complained.String(), err
}

func TestACommandRunsForEachClusterWithAKubeconfigOfItsOwn(t *testing.T) {
	out, complaints, err := execute(t.Context(), fanout{}, cli.OutputText, readyClusters(20),
		`grep -o 'server: .*' "$KUBECONFIG"; echo "$DROVER_CLUSTER" >&2; stat -c %a "$KUBECONFIG"; grep -c secret "$KUBECONFIG"; printf 'no end'; true`)
	if err != nil {
		t.Fatal(err, complaints)
	}
	for i := range 20 {
		for _, want := range []string{"server: https://hub.example.com/k8s/clusters/team/m%d", "600", "0", "no end"} {
			line := fmt.Sprintf("[team/m%d] ", i) + strings.ReplaceAll(want, "%d", fmt.Sprint(i)) + "\n"
			if !strings.Contains(out, line) {
				t.Errorf("the output lacks %q", line)
			}
		}
		if !strings.Contains(complaints, fmt.Sprintf("[team/m%d] team/m%d\n", i, i)) {
			t.Errorf("the complaints lack those of m%d", i)
		}
	}
	if !strings.HasSuffix(complaints, "20 of 20 Clusters: succeeded\n") {
		t.Errorf("at the end it says %q", complaints)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "kubectl-drover-exec-*")); len(left) > 0 && t.Failed() {
		t.Errorf("kubeconfigs are left: %v", left)
	}
}

func TestLinesOfSeveralClustersAreNotMixed(t *testing.T) {
	out, _, err := execute(t.Context(), fanout{}, cli.OutputText, readyClusters(8), `i=0; while [ $i -lt 200 ]; do printf 'aaaaaaaaaa'; printf 'bbbbbbbbbb\n'; i=$((i+1)); done`)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
	if bad := slices.IndexFunc(lines, func(l string) bool { return !strings.HasSuffix(l, "] aaaaaaaaaabbbbbbbbbb") }); bad >= 0 || len(lines) != 8*200 {
		t.Errorf("%d lines, and line %d is wrong", len(lines), bad)
	}
}

func TestPartialResultsAreSaidSo(t *testing.T) {
	list := readyClusters(3)
	list.Items[1].Ready, list.Items[1].Reason = "False", "AgentLost"
	out, complaints, err := execute(t.Context(), fanout{}, cli.OutputText, list, `echo here; case "$DROVER_CLUSTER" in */m2) exit 3;; esac`)
	if !errors.Is(err, cli.ErrDenied) {
		t.Errorf("the error is %v, want the exit code 1", err)
	}
	if strings.Contains(out, "m1") || !strings.Contains(out, "[team/m0] here") {
		t.Errorf("printed %q", out)
	}
	for _, want := range []string{"team/m1: not run: the Cluster is not ready: AgentLost\n", "team/m2: exit status 3\n", "1 of 3 Clusters: succeeded\n"} {
		if !strings.Contains(complaints, want) {
			t.Errorf("the complaints %q lack %q", complaints, want)
		}
	}
	t.Run("in JSON too", func(t *testing.T) {
		out, _, err := execute(t.Context(), fanout{}, cli.OutputJSON, list, `echo here; echo there >&2; case "$DROVER_CLUSTER" in */m2) exit 3;; esac`)
		var got outcomes
		if decode := json.Unmarshal([]byte(out), &got); decode != nil || !errors.Is(err, cli.ErrDenied) || len(got.Items) != 3 {
			t.Fatalf("%v, %v: %s", err, decode, out)
		}
		if m := got.Items[0]; m.Stdout != "here\n" || m.Stderr != "there\n" || *m.ExitCode != 0 || m.Error != "" {
			t.Errorf("the first is %+v", m)
		}
		if m := got.Items[1]; m.ExitCode != nil || m.Error == "" || m.Stdout != "" {
			t.Errorf("that which was not run is %+v", m)
		}
		if m := got.Items[2]; m.ExitCode == nil || *m.ExitCode != 3 {
			t.Errorf("that which failed is %+v", m)
		}
	})
	t.Run("also where the hub could not say which Clusters there are", func(t *testing.T) {
		list := readyClusters(1)
		list.Incomplete = true
		if _, complaints, err := execute(t.Context(), fanout{}, cli.OutputText, list, "true"); !errors.Is(err, cli.ErrDenied) || !strings.Contains(complaints, "The list may be incomplete") {
			t.Errorf("%v: %q", err, complaints)
		}
	})
}

func TestACommandThatTakesTooLongIsEnded(t *testing.T) {
	watch := testkit.StartStopwatch()
	_, complaints, err := execute(t.Context(), fanout{timeout: 300 * time.Millisecond}, cli.OutputText, readyClusters(2), `exec sleep 600`)
	if !errors.Is(err, cli.ErrDenied) || strings.Count(complaints, "ended after 300ms") != 2 {
		t.Errorf("%v: %q", err, complaints)
	}
	if took := watch.Took(); took > 30*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestAnInterruptEndsAllCommandsAndBeginsNone(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	dir, complaints, ended := t.TempDir(), "", make(chan error)
	go func() {
		var err error
		_, complaints, err = execute(ctx, fanout{parallel: 2}, cli.OutputText, readyClusters(5), `touch '`+dir+`/begun-'"${DROVER_CLUSTER#*/}"; exec sleep 600`)
		ended <- err
	}()
	testkit.Eventually(t, 30*time.Second, func(context.Context) error {
		if begun, _ := filepath.Glob(filepath.Join(dir, "begun-*")); len(begun) != 2 {
			return fmt.Errorf("%d commands run, want 2", len(begun))
		}
		return nil
	})
	interrupt()
	if err := <-ended; !errors.Is(err, cli.ErrDenied) || strings.Count(complaints, "interrupted") != 5 || strings.Count(complaints, ": not run: interrupted") != 3 {
		t.Errorf("%v: %q", err, complaints)
	}
}

func TestNoMoreCommandsRunAtOnceThanSaid(t *testing.T) {
	dir := t.TempDir()
	out, _, err := execute(t.Context(), fanout{parallel: 3}, cli.OutputText, readyClusters(12),
		`touch '`+dir+`/'"${DROVER_CLUSTER#*/}"; ls '`+dir+`' | wc -l; sleep 0.05; rm '`+dir+`/'"${DROVER_CLUSTER#*/}"`)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out) {
		if n := strings.TrimSpace(line[strings.Index(line, "] ")+2:]); n > "3" {
			t.Errorf("%s at once, want 3 at most", n)
		}
	}
}

func TestExecTruncatesLongOutputAndReportsIt(t *testing.T) {
	for script, want := range map[string]struct {
		bytes     int
		truncated bool
	}{
		`head -c 3000000 /dev/zero | tr '\0' x`:                         {maxCaptured, true},
		`head -c 1048576 /dev/zero | tr '\0' x`:                         {maxCaptured, false},
		`printf x; head -c 1048577 /dev/zero | tr '\0' x >&2`:           {1, true},
		`head -c 3000000 /dev/zero | tr '\0' x >/dev/null; printf 'xx'`: {2, false},
	} {
		out, _, err := execute(t.Context(), fanout{}, cli.OutputJSON, readyClusters(1), script)
		var got outcomes
		if decode := json.Unmarshal([]byte(out), &got); err != nil || decode != nil || len(got.Items[0].Stdout) != want.bytes || got.Items[0].Truncated != want.truncated {
			t.Errorf("%s: %v, %v: %d bytes, truncated: %t; want %+v", script, err, decode, len(got.Items[0].Stdout), got.Items[0].Truncated, want)
		}
	}
}

func TestALineWithoutEndIsPrintedInPieces(t *testing.T) {
	var out strings.Builder
	l := (&merged{to: &out}).of("team/web")
	for range 40 {
		_, _ = l.Write([]byte(strings.Repeat("x", 10<<10)))
	}
	if len(l.pending) > maxLine || strings.Count(out.String(), "[team/web] ") < 5 {
		t.Errorf("%d bytes are kept, %d pieces printed", len(l.pending), strings.Count(out.String(), "\n"))
	}
}

func TestExecRefusesInvalidArguments(t *testing.T) {
	for name, tt := range map[string]struct {
		args    []string
		problem string
	}{
		"nothing to run":              {[]string{"exec", "--all"}, `add "-- COMMAND"`},
		"nothing after the dashes":    {[]string{"exec", "--all", "--"}, `add "-- COMMAND"`},
		"no Cluster":                  {[]string{"exec", "--", "true"}, "name Clusters, or use --all"},
		"both":                        {[]string{"exec", "--all", "prod", "--", "true"}, "name Clusters, or use --all"},
		"labels of named Clusters":    {[]string{"exec", "prod", "-l", "a=b", "--", "true"}, "require --all"},
		"none at once":                {[]string{"exec", "--all", "--parallel", "0", "--", "true"}, "must be 1 or more"},
		"an output that is not known": {[]string{"exec", "--all", "-o", "wide", "--", "true"}, "wide"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			var out, complaints strings.Builder
			if code := run(t.Context(), tt.args, &out, &complaints); code != cli.ExitError || !strings.Contains(complaints.String(), tt.problem) {
				t.Errorf("code %d, %q; want %q", code, complaints.String(), tt.problem)
			}
		})
	}
}
