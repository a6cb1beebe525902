// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command demo starts a hub and an imported member on this machine, and removes them again.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const usage = `demo shows Drover on one machine: a hub and a member, real Kubernetes control planes on 127.0.0.1.

  demo up [NODES]   bring them up with the member imported, or heal what is there. NODES is
                    real: each has a node that runs containers, which takes root on Linux (docs/lab/README.md);
                    or simulated: the member has nodes that run nothing.
                    Default: what is there, else real where this machine can
  demo down         stop and remove them; the folder .demo goes with them
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if known, err := runLabProcess(os.Args[1:]); known {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	log.SetLogger(logr.Discard()) // discard logs from client libraries, because the demo's output is for users
	context.AfterFunc(ctx, stop)  // a second Ctrl-C terminates this process immediately
	err := run(ctx, os.Args[1:], os.Stdout)
	if err == nil {
		return
	}
	if ctx.Err() != nil { // an interrupted run reports nothing
		err = errors.New("interrupted; \"make demo\" continues from here, \"make demo-down\" removes the demo")
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	os.Exit(1)
}

func run(ctx context.Context, args []string, out io.Writer) error {
	command := "help"
	if len(args) > 0 {
		command = args[0]
	}
	nodesWanted, most := "", 1
	if command == "up" && len(args) > 1 {
		nodesWanted, most = args[1], 2
	}
	if len(args) > most {
		return fmt.Errorf("unexpected argument %q\n%s", args[most], usage)
	}
	switch command {
	case "up", "down":
	case "help", "-h", "--help":
		_, err := io.WriteString(out, usage)
		return err
	default:
		return fmt.Errorf("unknown command %q\n%s", command, usage)
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	files := layout{root: root}
	if command == "down" {
		return down(ctx, files, newReporter(out))
	}
	return up(ctx, files, nodesWanted, newReporter(out))
}

// moduleRoot returns the nearest folder at or above the working directory that contains a go.mod file.
func moduleRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("find the source tree: no go.mod at or above " + start + ": run this in a checkout of Drover")
		}
	}
}
