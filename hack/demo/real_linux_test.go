// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	lablib "github.com/drover-dev/drover/test/lab/nodes"
)

func TestTheDemoOnRealNodes(t *testing.T) {
	r, printed := newReader(t), ""
	if err := labFault(r.files.lab()); err != nil {
		t.Skip(err)
	}
	before := machineState(t)
	for _, step := range []struct {
		name string
		test func(*testing.T)
	}{
		{"nothing is left after demo-down of a demo that was killed while it began", r.killed},
		{"it comes up", func(t *testing.T) { printed = r.types(t, "make demo NODES=real") }},
		{"the Plan is at work", r.planWorks},
		{"the member's only node runs the agent, and no column is empty", r.shows},
		{"both users sign in and see what they may", func(t *testing.T) { r.signsIn(t, printed) }},
		{"what the demo says to try is true", r.followsTheDemo},
		{"what the guide of plans says to try is true", r.followsThePlans},
		{"what the guide of teams says is true", r.followsTheTeam},
		{"a demo without its manager is healed, and the agent's pod stays", r.heals},
		{"other nodes are refused until the demo was removed", r.refuses},
		{"nothing is left after demo-down", r.removes},
	} {
		if !t.Run(step.name, step.test) {
			break // each goes on where the one before ended
		}
	}
	if after := machineState(t); !t.Failed() && after != before {
		t.Errorf("the machine was\n%s\nand is\n%s", before, after)
	}
}

// machineState is what the demo must leave alone: network devices, addresses, routes and rules of the machine.
func machineState(t *testing.T) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-ec", "ip -brief address; ip route show table all; nft list ruleset; cat /proc/sys/net/ipv4/ip_forward").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// killed kills the demo with all that it waits for when a node has begun, as kill -9 does.
func (r *reader) killed(t *testing.T) {
	var out bytes.Buffer
	begun := r.command(t.Context(), "make demo NODES=real")
	begun.Stdout, begun.Stderr = &out, &out
	if err := begun.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- begun.Wait() }()
	err := await(t.Context(), commandLimit, func(context.Context) error {
		select {
		case err := <-ended:
			return permanentError{err}
		default:
		}
		_, err := os.Stat(filepath.Join(r.files.lab(), "nodes/member-1/init.pid"))
		return err
	})
	if err != nil {
		t.Fatalf("the demo began no node: %v\n%s", err, out.String())
	}
	if err := begun.Cancel(); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("the start that was killed succeeded")
	}
	if left, err := lablib.FindLeftovers(r.files.lab()); err != nil || left.Empty() {
		t.Fatalf("nothing runs after the demo was killed (%v): the test proves nothing", err)
	}
	r.removes(t)
}

func (r *reader) shows(t *testing.T) {
	got := r.types(t, ".demo/bin/kubectl --kubeconfig .demo/hub.kubeconfig get clusters")
	rows := strings.Split(strings.TrimSpace(got), "\n")
	if len(rows) != 2 || len(strings.Fields(rows[0])) != len(strings.Fields(rows[1])) || !regexp.MustCompile(`True +Connected .* 1/1 `).MatchString(rows[1]) {
		t.Errorf("want one Cluster that is connected with 1/1 nodes and a value in each column, got\n%s", got)
	}
	if got := r.types(t, ".demo/bin/kubectl --kubeconfig .demo/proxy.kubeconfig get namespaces -o name"); !strings.Contains(got, "namespace/drover-agent\n") {
		t.Errorf("through the hub the member has the namespaces\n%s", got)
	}
	pods := ".demo/bin/kubectl --kubeconfig .demo/member.kubeconfig -n drover-agent get pods -o jsonpath='{.items[*].spec.nodeName} {.items[*].status.phase}'"
	if got := r.types(t, pods); got != "member-1 Running" {
		t.Errorf("the agent's pods are %q, want one that runs on member-1", got)
	}
	if got := r.types(t, ".demo/bin/kubectl --kubeconfig .demo/hub.kubeconfig get nodes -o name"); got != "node/hub-1\n" {
		t.Errorf("the hub has the nodes %q, want one", got)
	}
}

func (r *reader) followsTheDemo(t *testing.T) {
	_, lines, _ := strings.Cut(firstLines, "for example:\n")
	out := r.types(t, "set -e\n"+lines+realLines)
	for _, want := range []string{"hub:demo", "configmap/hello created", "deployment \"web\" successfully rolled out", " serves\nGET /\n", `"msg":"connected to the hub"`} {
		if !strings.Contains(out, want) {
			t.Errorf("the commands do not print %q", want)
		}
	}
}

func (r *reader) followsThePlans(t *testing.T) {
	text, err := os.ReadFile(r.files.source("docs/guide/plans.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## Try it\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(section, -1)
	if len(blocks) != 2 {
		t.Fatalf("the guide has %d blocks of commands, want 2", len(blocks))
	}
	prelude, _, _ := strings.Cut(blocks[0][1], "\n")
	if out := r.types(t, "set -e\n"+blocks[0][1]); !strings.Contains(out, " Complete: ") || !regexp.MustCompile(`(?m)^member-1 .* [0-9a-f]{20,}$`).MatchString(out) {
		t.Error("the plan was not completed on member-1")
	}
	out := r.types(t, prelude+"\n"+blocks[1][1]) // one of the commands is to fail
	if !strings.Contains(out, " TooManyFailures: ") || !strings.Contains(out, "\nfalse: this always fails\n") || !strings.Contains(out, " Complete: ") {
		t.Error("the version that fails was not reported and then completed")
	}
}

// followsTheTeam writes the files of the guide, runs its commands and compares their output with the guide's text.
func (r *reader) followsTheTeam(t *testing.T) {
	text, err := os.ReadFile(r.files.source("docs/guide/team.md"))
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```([a-z]+)\n(.*?)^```$").FindAllStringSubmatch(string(text), -1)
	prelude, printed := "", ""
	for i, block := range blocks {
		switch kind, content := block[1], block[2]; {
		case kind == "yaml":
			first, _, _ := strings.Cut(content, "\n")
			path := r.files.source(strings.TrimPrefix(first, "# "))
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		case kind == "sh" && prelude == "":
			prelude = content
		case kind == "sh" && i+1 < len(blocks) && blocks[i+1][1] == "text":
			printed, _ = r.tries(t.Context(), "set -e\n"+prelude+content) // it may fail as the text says
		case kind == "sh" || kind == "console":
			r.types(t, "set -e\n"+prelude+content)
		case kind == "text" && printed != content:
			t.Errorf("the guide says\n%s\nand the commands say\n%s", content, printed)
		}
	}
	if len(blocks) < 30 {
		t.Errorf("only %d blocks were found", len(blocks))
	}
}

func (r *reader) heals(t *testing.T) {
	pods := ".demo/bin/kubectl --kubeconfig .demo/member.kubeconfig -n drover-agent get pods -o name"
	was := r.types(t, pods)
	r.types(t, "kill $(cat .demo/pids/manager.pid)")
	r.types(t, "make demo")
	if is := r.types(t, pods); is != was {
		t.Errorf("the agent's pods were %q and are %q", was, is)
	}
}

func (r *reader) refuses(t *testing.T) {
	if out, err := r.tries(t.Context(), "make demo NODES=simulated"); err == nil || !strings.Contains(out, "the existing demo has real nodes") {
		t.Errorf("make demo NODES=simulated printed %q, %v: want it refused", out, err)
	}
}
