// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"
)

// envDrillPage is the environment variable with the file for the page about the drill, set by "make drill".
const envDrillPage = "DROVER_DRILL_PAGE"

// drillPage contains the measurements of the drill.
type drillPage struct {
	listed string // what the command prints of one member
	rows   strings.Builder
}

// step adds a completed step: how long it took, and what the manager and the hub's API server have done since they
// started.
func (p *drillPage) step(t *testing.T, d *drill, name string, began time.Time) {
	t.Helper()
	took := time.Since(began)
	usage, err := d.hub.Manager.Usage()
	if err != nil {
		t.Fatal(err)
	}
	writes, err := d.hub.Writes(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&p.rows, "| %s | %.1f | %.1f | %.0f |\n", name, took.Seconds(), usage.CPU.Seconds(), writes)
}

// write writes the page of a drill that has passed.
func (p *drillPage) write(t *testing.T) {
	t.Helper()
	file := os.Getenv(envDrillPage)
	if file == "" || t.Failed() {
		return
	}
	commit := "unknown"
	if out, err := exec.CommandContext(t.Context(), "git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		load = []byte("unknown")
	}
	text := fmt.Sprintf(`# A restore with %d members

`+"`make drill`"+` wrote this page at commit %s, on a machine with %d cores and, after the run, a load of %.14s. The hub, etcd and the manager are processes. test/fleetsim simulates the members: keys, tunnels and backoff are real, but sets and Plans are only recorded and not applied. The test is `+"`TestARestoreWith100Members`"+`.

etcd is restored from a snapshot that was taken while a Plan was in progress and a second Plan had not started. After the snapshot, the first Plan continued with another version, the second Plan was deleted, one binding was deleted, and another binding was created. Each of these changes reached %d members, and the agents of %d of these members were then revoked. Nothing was sent to the other %d members. Before the manager starts, the test deletes the Secrets of the revoked agents again, as [Backup](../operations/backup.md) recommends. The test does not cover Hosts, direct access, users and tokens, replicas, or a load balancer that starts to accept connections later.

| action of the restored hub before its changes are confirmed | count |
|---|---|
| a set was sent to a member, or removed there | 0 |
| a Plan started in a member | 0 |
| anything was sent to a revoked agent | 0 |
| a member was not listed, or listed without the deleted binding, the deleted Plan and the new binding | 0 of %d |

For each waiting member, `+"`kubectl drover restored --all`"+` prints the changes. For the first member, they are:

`+"```\n%s\n```"+`

| step | s | the manager's CPU until then, s | writes on the hub until then |
|---|---|---|---|
%s
The second row includes the time in which agents reconnect. An agent waits for up to half a minute before it does. A Plan does not start before that time is over, and is not listed earlier either.
`, drillMembers, commit, runtime.NumCPU(), load, drillMembers-drillUntouched, drillRevoked, drillUntouched, waiting, p.listed, p.rows.String())
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}
