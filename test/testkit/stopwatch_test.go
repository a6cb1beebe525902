// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package testkit

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// standsStill is set in a child process that the test pauses for some time.
const standsStill = "DROVER_TEST_STANDS_STILL"

func TestAStopwatchDoesNotCountAStandstill(t *testing.T) {
	if os.Getenv(standsStill) != "" {
		watch := StartStopwatch()
		fmt.Println("runs")
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		fmt.Println(watch.Took(), time.Since(watch.began))
		return
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), standsStill+"=1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stdout)
	lines.Scan()
	signal := func(sig os.Signal) {
		t.Helper()
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	<-time.After(2 * time.Second)
	signal(syscall.SIGCONT)
	if _, err := stdin.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	lines.Scan()
	fields := strings.Fields(lines.Text())
	if len(fields) != 2 {
		t.Fatalf("it printed %q", lines.Text())
	}
	took, err := time.ParseDuration(fields[0])
	whole, err2 := time.ParseDuration(fields[1])
	if err := errors.Join(err, err2, cmd.Wait()); err != nil || whole < 2*time.Second || whole-took < 1800*time.Millisecond {
		t.Errorf("%v: it counts %s of %s, want all but the two seconds in which its process was stopped", err, took, whole)
	}
}

func TestAStopwatchDoesNotCountWaitsForAProcessor(t *testing.T) {
	watch := StartStopwatch()
	<-time.After(100 * time.Millisecond)
	if took, whole := watch.Took(), time.Since(watch.began); took > whole {
		t.Errorf("it counts %s of %s", took, whole)
	}
	if _, err := os.Stat("/proc/self/schedstat"); err != nil {
		t.Skip("this system does not tell what waits for a processor: ", err)
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8 * runtime.NumCPU()))
	var ended atomic.Bool
	defer ended.Store(true)
	for range 8 * runtime.NumCPU() { // threads that all want a processor
		go func() {
			for !ended.Load() {
			}
		}()
	}
	Eventually(t, 10*time.Second, func(ctx context.Context) error {
		if took, whole := watch.Took(), time.Since(watch.began); took > whole/2 {
			return fmt.Errorf("it counts %s of %s, though most threads wait", took, whole)
		}
		return nil
	})
}
