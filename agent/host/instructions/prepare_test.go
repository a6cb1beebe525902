// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// TestInstructionThatHasBegunIsNotPreparedAgain acts as an agent that finds an instruction that has not started. The
// supervisor of a killed agent then starts it.
func TestInstructionThatHasBegunIsNotPreparedAgain(t *testing.T) {
	t.Parallel()
	j, once := journal{t.TempDir()}, protocol.HostInstruction{ID: "a", Command: []string{"true"}}
	entry := j.entry("a")
	if err := j.prepare(once); err != nil {
		t.Fatal(err)
	}
	var supervisor *os.File
	// A process that another test forks briefly holds the lock.
	testkit.Eventually(t, time.Minute, func(context.Context) (err error) {
		supervisor, err = lock(filepath.Join(entry, fileLock))
		return err
	})
	result := []byte(`{"exitCode":0}`)
	if err := os.WriteFile(filepath.Join(entry, fileReserved), result, 0o600); err != nil {
		t.Fatal(err)
	}
	wantKept := func(when string) {
		t.Helper()
		if err := j.prepare(once); err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(entry, fileReserved)); err != nil || string(got) != string(result) {
			t.Errorf("%s: the room for the result has %d other bytes (%v), want what the supervisor wrote", when, len(got), err)
		}
	}
	wantKept("while it runs")
	if err := begin(entry, once.Digest()); err != nil {
		t.Fatal(err)
	}
	if err := supervisor.Close(); err != nil {
		t.Fatal(err)
	}
	wantKept("after it has ended")
}
