// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-drover signs users in at a hub, has kubectl talk to its members, one or many, and imports clusters; it answers who may do what in which member, and why, shows how plans and upgrades of agents go, and brings members back after a restore: "kubectl drover why", "who-can", "plan", "agents", "adopt", "restored" and "revoked".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set at build time.
var version = "v0.1.0-dev"

// Exit codes. A denied action is an answer and not an error.
const (
	exitAllowed     = 0
	exitDenied      = 1
	exitError       = 2   // also if there is no answer
	exitInterrupted = 130 // as shells have it for Ctrl-C
)

// errDenied ends a command whose result is a no; everything is printed.
var errDenied = errors.New("denied")

func main() {
	klog.SetLogger(logr.Discard()) // what goes wrong is in the errors
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, argumentsOf(os.Args), os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// completerName is the name under which kubectl looks for what completes the arguments of this plugin.
const completerName = "kubectl_complete-drover"

// argumentsOf a command line. Called by that name, the plugin completes: a link with it in the PATH is all that kubectl needs.
func argumentsOf(line []string) []string {
	if name := strings.TrimSuffix(filepath.Base(line[0]), ".exe"); name == completerName {
		return append([]string{cobra.ShellCompRequestCmd}, line[1:]...)
	}
	return line[1:]
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, out, complaints io.Writer) int {
	out, complaints = terminal{out}, terminal{complaints}
	command := newCommand()
	command.SetArgs(args)
	command.SetOut(out)
	command.SetErr(complaints)
	switch err := command.ExecuteContext(ctx); {
	case err == nil:
		return exitAllowed
	case errors.Is(err, errDenied):
		return exitDenied
	case ctx.Err() != nil:
		return exitInterrupted // the user knows why
	default:
		fmt.Fprintln(complaints, "error:", strings.ReplaceAll(unreached(err).Error(), "\n", "\n  "))
		return exitError
	}
}
