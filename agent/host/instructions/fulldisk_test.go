// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instructions

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/test/testkit"
)

// TestInstructionThatFillsTheDiskHasAResult runs an instruction on a real file system of 1 MiB, and then another one,
// for which there is no room.
func TestInstructionThatFillsTheDiskHasAResult(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	runner, err := New(Options{
		State: filepath.Join(dir, "state"), Root: dir, Supervisor: supervisor, Log: logr.Discard(), retry: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	fill := `printf filled; cat /dev/zero >"$0" 2>/dev/null; test "$(stat -f -c %a "$0")" = 0`
	given := &protocol.HostInstructions{Instructions: []protocol.HostInstruction{
		{ID: "fills", Command: []string{"/bin/sh", "-c", fill, filepath.Join(dir, "all")}}, {ID: "later", Command: []string{"true"}},
	}}
	if err := runner.Set("", "v1", given); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() { runner.Run(ctx); close(over) }()
	t.Cleanup(func() { cancel(); <-over })
	testkit.Eventually(t, time.Minute, func(context.Context) error {
		p := runner.Progress()
		if p.Phase != protocol.HostFailed || p.Instruction != "later" || p.Done != 1 || !strings.Contains(p.Message, "no space left on device") {
			return fmt.Errorf("%+v, want the first to have ended, and the second not to begin since the disk is full", p)
		}
		return nil
	})
	state, result, _, err := runner.journal.look("fills")
	if err != nil || state != ended || result.ExitCode != 0 || result.Output != "filled" {
		t.Errorf("the first: %v, %+v (%v), want its result", state, result, err)
	}
	if state, _, _, err := runner.journal.look("later"); err != nil || state != unknown {
		t.Errorf("the second: %v (%v), want it not to have begun, so that it runs when there is room", state, err)
	}
	if err := os.Remove(filepath.Join(dir, "all")); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, 2*time.Minute, func(context.Context) error {
		if p := runner.Progress(); p.Phase != protocol.HostApplied || p.Done != 2 {
			return fmt.Errorf("%+v, want it to go on once the disk has room", p)
		}
		return nil
	})
}

func TestResultFitsIntoTheReservedRoom(t *testing.T) {
	t.Parallel()
	entry := t.TempDir()
	if err := reserve(entry); err != nil {
		t.Fatal(err)
	}
	output := strings.Repeat("\x00", 2*outputTail) + "end" // six bytes each in JSON
	if err := writeResult(entry, Result{ExitCode: 7, Output: output}); err != nil {
		t.Fatal(err)
	}
	if err := begin(entry, "d"); err != nil {
		t.Fatal(err)
	}
	state, result, _, err := journal{filepath.Dir(entry)}.look(filepath.Base(entry))
	if err != nil || state != ended || result.ExitCode != 7 || !strings.HasSuffix(result.Output, "end") {
		t.Errorf("%v, exit code %d, %d bytes of output (%v), want the last of it", state, result.ExitCode, len(result.Output), err)
	}
	if _, err := os.Stat(filepath.Join(entry, fileReserved)); err == nil {
		t.Error("the room is reserved still")
	}
}
